"""Two agents one after the other. The first does what the message says, the second says what the first has said."""

from __future__ import annotations

from safepoint import Agent, Finished, Sequential
from tests.server.apps.worker.agent import Obedient, ask, nap, note, tell

first = Agent("first", model=Obedient(), tools=[nap, note, ask, tell])
second = Agent("second", model=Obedient())


def repeated(found: Finished[str]) -> str:
    return f"say second heard {found.text.strip()}"


agent = Sequential("pipeline", first).then(second, input=repeated)

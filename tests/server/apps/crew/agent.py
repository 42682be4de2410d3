"""Two agents at once, both of which do what the message says."""

from __future__ import annotations

from safepoint import Agent, Parallel
from tests.server.apps.worker.agent import Obedient, nap, note

agent = Parallel(
    "crew", [Agent("left", model=Obedient(), tools=[nap, note]), Agent("right", model=Obedient(), tools=[nap, note])]
)

"""One agent, again and again."""

from __future__ import annotations

from safepoint import Agent, Loop
from tests.server.apps.worker.agent import Obedient, nap, note

agent = Loop("rounds", Agent("walker", model=Obedient(), tools=[nap, note]), max_rounds=2)

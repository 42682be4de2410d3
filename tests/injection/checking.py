"""One entry checked whole, wherever it runs: everything that judges it, and how much of it is tried."""

from __future__ import annotations

from collections.abc import Callable

from safepoint.testing import Report, check_cancellable
from tests.injection.entries import ENTRIES, SHELF
from tests.injection.parts import EFFECTS

# Here an effect may begin twice, because the scenario asks for it or has two runs with equal calls.
MAY_REPEAT = {
    "all_runs_of_an_agent",
    "resumed_and_the_cut_call_made_again",
    "resumed_and_a_person_asked_about_the_cut_call",
    "sent_while_busy_and_rolling_back_in_memory",
    "sent_while_busy_and_rolling_back_in_sqlite",
}


def oracles_of(name: str) -> list[Callable[[], object]]:
    return [SHELF.is_sound] if name in MAY_REPEAT else [SHELF.is_sound, EFFECTS.began_once]


def check(name: str) -> Report:
    return check_cancellable(ENTRIES[name], oracles=oracles_of(name))

"""What the package shows, and the words that are fixed."""

from __future__ import annotations

from safepoint import history
from safepoint.history import CLOSED_STATES, LedgerState


def test_the_window_shows_what_it_says() -> None:
    assert sorted(history.__all__) == history.__all__
    assert all(hasattr(history, name) for name in history.__all__)


def test_the_ledgers_words_are_fixed() -> None:
    assert [str(state) for state in LedgerState] == [
        "not_started",
        "running",
        "waiting",
        "finished",
        "failed",
        "cut",
        "stopped",
        "compensated",
        "finished_late",
    ]
    assert set(LedgerState) - CLOSED_STATES == {"running"}

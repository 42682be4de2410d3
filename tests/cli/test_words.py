"""Every rung of the ladder has words that a person understands."""

from __future__ import annotations

from safepoint._core.ladder import Rung
from safepoint.cli.chat.words import RUNGS


def test_every_rung_has_words() -> None:
    assert set(RUNGS) == set(Rung)

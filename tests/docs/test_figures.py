"""The figures of the guides show what the code does today."""

from __future__ import annotations

from docs.scripts.figures import FOLDER, figures, measure
from safepoint import SafePoint


def test_the_figures_are_those_that_would_be_drawn_now() -> None:
    old = [name for name, svg in figures() if (FOLDER / name).read_text() != svg]
    assert old == [], "draw them again: make figures"


def test_a_figure_is_measured_and_not_made_up() -> None:
    now, later = measure(SafePoint.NOW), measure(SafePoint.AFTER_TOOLS)
    assert (now.at, later.at) == (3.0, 6.0)
    assert {bar.lane: bar.state for bar in now.bars} == {
        "model": "finished",
        "look": "cut",
        "pay": "cut",
        "mail": "not_started",
    }

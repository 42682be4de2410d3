"""The table of endings, cell by cell."""

from __future__ import annotations

import pytest

from safepoint._core.reasons import Source
from safepoint.agent.stop_reason import StopReason
from safepoint.protocols.endings import ACP, AG_UI, UI_STREAM, Ending

BY_CLIENT = (Source.USER, Source.PREEMPT, Source.DISCONNECT)


@pytest.mark.parametrize("source", Source)
def test_a_cancelled_run_was_cancelled_by_the_client_or_by_another(source: Source) -> None:
    expected = Ending.CANCELLED_BY_CLIENT if source in BY_CLIENT else Ending.CANCELLED_OTHERWISE
    assert Ending.of(StopReason.CANCELLED, source) is expected


@pytest.mark.parametrize("stop_reason", [each for each in StopReason if each is not StopReason.CANCELLED])
def test_any_other_end_is_a_row_of_its_own_whoever_asked(stop_reason: StopReason) -> None:
    for source in (None, *Source):
        assert Ending.of(stop_reason, source).value == stop_reason.value


@pytest.mark.parametrize(
    ("ending", "word"),
    [
        (Ending.END_TURN, "end_turn"),
        (Ending.CANCELLED_BY_CLIENT, "cancelled"),
        (Ending.CANCELLED_OTHERWISE, -32800),
        (Ending.INTERRUPTED, "end_turn"),
        (Ending.MAX_STEPS, "max_turn_requests"),
        (Ending.BUDGET, "max_turn_requests"),
        (Ending.MAX_TOKENS, "max_tokens"),
        (Ending.REFUSED, "refusal"),
        (Ending.ERROR, -32603),
    ],
)
def test_acp_says(ending: Ending, word: str | int) -> None:
    assert ACP[ending] == word


@pytest.mark.parametrize(
    ("ending", "ag_ui", "ui_stream"),
    [
        (Ending.END_TURN, ("RUN_FINISHED", "success"), "stop"),
        (Ending.CANCELLED_BY_CLIENT, ("RUN_FINISHED", "cancelled"), "interrupted"),
        (Ending.CANCELLED_OTHERWISE, ("RUN_FINISHED", "cancelled"), "interrupted"),
        (Ending.INTERRUPTED, ("RUN_FINISHED", "interrupt"), "tool-calls"),
        (Ending.MAX_STEPS, ("RUN_ERROR", "max_steps"), "other"),
        (Ending.BUDGET, ("RUN_ERROR", "budget"), "other"),
        (Ending.MAX_TOKENS, ("RUN_FINISHED", "success"), "length"),
        (Ending.REFUSED, ("RUN_FINISHED", "success"), "content-filter"),
        (Ending.ERROR, ("RUN_ERROR", "error"), "error"),
    ],
)
def test_front_ends_are_told(ending: Ending, ag_ui: tuple[str, str], ui_stream: str) -> None:
    assert (AG_UI[ending], UI_STREAM[ending]) == (ag_ui, ui_stream)


def test_every_column_has_every_row() -> None:
    for column in (ACP, AG_UI, UI_STREAM):
        assert set(column) == set(Ending)

"""What is known of a stop: why, where, how hard, and whose asks brought it about."""

from __future__ import annotations

import pytest

from safepoint._core.asks import Ask, fold
from safepoint._core.endings import Cancellation, Stop
from safepoint._core.points import Level, SafePoint
from safepoint._core.reasons import Reason, Source

MILD = Ask(SafePoint.AFTER_TOOLS, Reason("lunch", Source.SHUTDOWN), asked_at=10.0)
TIMED = Ask(SafePoint.AFTER_MODEL, Reason("slow", Source.DEADLINE), deadline=5.0, asked_at=11.0)
HARD = Ask(SafePoint.NOW, Reason("fire"), asked_at=12.0)
HARDEST = Ask(SafePoint.FORCE, Reason("flood"), asked_at=13.0)


def stop(*asks: Ask, place: str, level: Level, timed_out: bool = False) -> Stop:
    request = fold(asks)
    assert request is not None
    return Stop(request, place, level, timed_out, at=1.0)


def test_the_record_of_a_stop_has_every_reason_and_the_time_of_the_first_ask() -> None:
    stopped = stop(MILD, HARD, place="now", level=Level.NOW)
    assert stopped.recorded(20.0) == Cancellation(
        reason=HARD.reason,
        reasons=(MILD.reason, HARD.reason),
        place="now",
        level=Level.NOW,
        escalated=True,
        timed_out=False,
        asked_at=10.0,
        stopped_at=20.0,
    )


@pytest.mark.parametrize(
    ("stopped", "took_part"),
    [
        (stop(MILD, TIMED, place="after_tools", level=Level.SAFE), [MILD]),
        (stop(MILD, TIMED, place="now", level=Level.NOW, timed_out=True), [TIMED]),
        (stop(MILD, HARD, place="now", level=Level.NOW), [HARD]),
        (stop(HARD, HARDEST, place="now", level=Level.FORCE), [HARD, HARDEST]),
        (stop(HARD, HARDEST, place="force", level=Level.FORCE), [HARDEST]),
        (stop(MILD, HARD, HARDEST, place="after_tools", level=Level.FORCE), [MILD, HARDEST]),
        (stop(TIMED, HARD, HARDEST, place="now", level=Level.FORCE, timed_out=True), [TIMED, HARDEST]),
    ],
    ids=[
        "a place",
        "a deadline",
        "now",
        "now, then force",
        "force at once",
        "a place, then force",
        "a deadline, then force",
    ],
)
def test_an_ask_took_part_if_it_made_the_node_stop_there_or_that_hard(stopped: Stop, took_part: list[Ask]) -> None:
    assert [ask for ask in (MILD, TIMED, HARD, HARDEST) if stopped.took_part(ask)] == took_part

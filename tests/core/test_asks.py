"""The words of a `cancel(…)` call: what becomes an ask, and what is refused with the right form."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from safepoint._core.asks import Ask, fold, is_seconds, make_ask
from safepoint._core.endings import Stop
from safepoint._core.points import Level, SafePoint
from safepoint._core.reasons import Reason, Source

SAFE = SafePoint.AFTER_TOOLS


def untyped(value: object) -> Any:  # Any: what a caller without a type checker passes
    return value


def asked(at: object = SAFE, *, within: object = None, recursive: bool = False, reason: object = None) -> Ask:
    return make_ask(
        untyped(at), within=untyped(within), recursive=recursive, reason=untyped(reason), now=100.0, wall=7.0
    )


def test_an_ask_keeps_the_words_it_was_made_of() -> None:
    ask = asked(SAFE, within=2.5, recursive=True, reason="lunch")
    assert (ask.at, ask.deadline, ask.recursive, ask.reason, ask.asked_at) == (SAFE, 102.5, True, Reason("lunch"), 7.0)
    assert asked().deadline is None
    assert asked().recursive is False


def test_every_ask_has_an_id_of_its_own() -> None:
    assert len({asked().id for _ in range(100)}) == 100


@pytest.mark.parametrize("at", ["now", "after_tools", None, 1, Level.NOW, [SAFE]])
def test_what_is_no_safe_point_is_refused(at: object) -> None:
    with pytest.raises(
        ValueError,
        match=r"is not a safe point: write SafePoint.NOW, .* or SafePoint.named\('x'\), and \| between several",
    ) as caught:
        asked(at)
    assert str(caught.value).startswith(f"at={at!r} ")


def test_an_empty_safe_point_is_refused() -> None:
    with pytest.raises(ValueError, match=r"at has no place in it, so it would never come: write SafePoint.ANY"):
        asked(SafePoint(Level.SAFE, frozenset()))


@pytest.mark.parametrize("at", [SafePoint.NOW, SafePoint.FORCE])
@pytest.mark.parametrize("within", [1.0, 0, -1, math.nan])
def test_within_does_not_go_with_now_or_force(at: SafePoint, within: float) -> None:
    with pytest.raises(ValueError, match=r"is immediate already; leave within out, or write SafePoint.ANY") as caught:
        asked(at, within=within)
    assert str(caught.value).startswith(f"within={within!r} with {at!r}: ")


@pytest.mark.parametrize("within", [0, 0.0, -0.1, -3, math.inf, -math.inf, math.nan, True, False, "2", [1]])
def test_within_is_a_positive_finite_number_of_seconds(within: object) -> None:
    assert not is_seconds(within)
    with pytest.raises(
        ValueError, match=r"write a number of seconds above 0, or at=SafePoint.NOW to stop at once"
    ) as caught:
        asked(SAFE, within=within)
    assert str(caught.value).startswith(f"within={within!r}: ")


@pytest.mark.parametrize("within", [1, 0.001, 86400, 5e-324])
def test_any_positive_number_of_seconds_will_do(within: float) -> None:
    assert is_seconds(within)
    assert asked(SAFE, within=within).deadline == 100.0 + within


@pytest.mark.parametrize(
    ("level", "at"),
    [(Level.SAFE, SAFE), (Level.NOW, SafePoint.NOW), (Level.FORCE, SafePoint.FORCE)],
)
def test_a_child_sees_its_parents_ask_with_its_parent_as_the_source(level: Level, at: SafePoint) -> None:
    ask = asked(SAFE, within=5, reason=Reason("lunch", Source.USER, by="kim"))
    handed = ask.handed_down(level)
    assert handed == replace(ask, at=at, reason=Reason("lunch", Source.PARENT, by="kim"))
    assert handed.handed_down(level) is handed, "two levels down it looks as it does one level down"


@pytest.mark.parametrize(("level", "at"), [(Level.NOW, SafePoint.NOW), (Level.FORCE, SafePoint.FORCE)])
def test_an_ask_from_far_above_gets_as_hard_as_what_stands_beside_it_on_the_way(level: Level, at: SafePoint) -> None:
    handed = asked(SAFE, reason="lunch").handed_down(Level.SAFE)
    assert handed.at == SAFE
    assert handed.handed_down(level) == replace(handed, at=at)


def test_a_request_expires_exactly_at_its_deadline() -> None:
    request = fold([asked(SAFE, within=5)])
    assert request is not None
    assert not request.expired(104.999)
    assert request.expired(105.0)
    assert (request.level(104.999), request.level(105.0)) == (Level.SAFE, Level.NOW)
    assert not request.hits(None, 104.999)
    assert request.hits(None, 105.0)
    assert request.hits("after_model", 105.0), "after the deadline every place will do"


def test_only_a_safe_point_request_expires() -> None:
    request = fold([asked(SAFE, within=5), asked(SafePoint.NOW)])
    assert request is not None
    assert request.deadline == 105.0
    assert not request.expired(200.0)
    endless = fold([asked(SAFE)])
    assert endless is not None
    assert not endless.expired(math.inf)


def test_a_request_hits_its_own_places_and_now_hits_everywhere() -> None:
    safe, hard = fold([asked(SAFE)]), fold([asked(SafePoint.NOW)])
    assert safe is not None
    assert hard is not None
    assert safe.hits("after_tools", 0.0)
    assert not safe.hits("after_tool", 0.0)
    assert not safe.hits(None, 0.0)
    assert hard.hits(None, 0.0)
    assert hard.hits("after_tool", 0.0)


def stopped_by(*asks: Ask, place: str, level: Level, timed_out: bool = False) -> Stop:
    request = fold(asks)
    assert request is not None
    return Stop(request, place, level, timed_out=timed_out, at=0.0)


def test_an_ask_took_part_if_it_covers_the_place_or_pushed_as_hard_as_the_stop() -> None:
    here, there, hard = asked(SafePoint.AFTER_TOOL), asked(SafePoint.AFTER_MODEL), asked(SafePoint.NOW)
    stranger = asked(SafePoint.NOW)
    safe = stopped_by(here, there, place="after_tool", level=Level.SAFE)
    assert [safe.took_part(ask) for ask in (here, there, stranger)] == [True, False, False]
    pushed = stopped_by(here, there, hard, place="now", level=Level.NOW)
    assert [pushed.took_part(ask) for ask in (here, there, hard)] == [False, False, True]


def test_a_deadline_is_the_work_of_the_ask_that_set_it() -> None:
    early, late, endless = asked(SAFE, within=1), asked(SAFE, within=9), asked(SAFE)
    stop = stopped_by(early, late, endless, place="now", level=Level.NOW, timed_out=True)
    assert [stop.took_part(ask) for ask in (early, late, endless)] == [True, False, False]


def test_a_force_took_part_also_after_the_deadline_had_struck() -> None:
    early, hard = asked(SAFE, within=1), asked(SafePoint.FORCE)
    stop = stopped_by(early, hard, place="now", level=Level.FORCE, timed_out=True)
    assert [stop.took_part(ask) for ask in (early, hard)] == [True, True]


def test_escalated_means_that_a_safe_point_request_became_now() -> None:
    safe, hard = asked(SAFE), asked(SafePoint.NOW)
    assert stopped_by(safe, hard, place="now", level=Level.NOW).escalated
    assert stopped_by(safe, place="now", level=Level.NOW, timed_out=True).escalated
    assert stopped_by(safe, asked(SafePoint.FORCE), place="force", level=Level.FORCE).escalated
    assert not stopped_by(hard, place="now", level=Level.NOW).escalated
    assert not stopped_by(hard, asked(SafePoint.FORCE), place="force", level=Level.FORCE).escalated
    assert not stopped_by(safe, place="after_tools", level=Level.SAFE).escalated

"""One declared escalation: a plan is computed from what the work is, and never takes longer than the cap."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from safepoint._core.ladder import CUT_AT_ONCE, Climb, Ladder, Rung, StopPolicy, WorkKind, plan

ABANDON = Climb(Rung.ABANDON, 0.0)
DEFAULT = Ladder()


def untyped(value: object) -> Any:  # Any: what a caller without a type checker passes
    return value


def test_the_defaults_are_the_declared_ones() -> None:
    assert (DEFAULT.task, DEFAULT.thread, DEFAULT.term, DEFAULT.kill) == (1.0, 0.25, 2.0, 1.0)
    assert (DEFAULT.undo, DEFAULT.cap) == (2.0, 10.0)


def test_a_ladder_is_frozen() -> None:
    with pytest.raises(AttributeError, match="immutable"):
        DEFAULT.cap = 20.0  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]  # that is the point


PLANS = {
    "a task is cancelled": (StopPolicy(), [Climb(Rung.CANCEL, 1.0)]),
    "a task with a grace": (StopPolicy(grace=3.0), [Climb(Rung.CANCEL, 3.0)]),
    "a thread is flagged": (StopPolicy(WorkKind.THREAD), [Climb(Rung.FLAG, 0.25)]),
    "a thread with a grace": (StopPolicy(WorkKind.THREAD, grace=3.0), [Climb(Rung.FLAG, 3.0)]),
    "a child is asked, and has all the time there is": (StopPolicy(WorkKind.CHILD), [Climb(Rung.ASK, 10.0)]),
    "a task that is to finish": (StopPolicy(finish=True), [Climb(Rung.FINISH, 1.0), Climb(Rung.CANCEL, 1.0)]),
    "a thread that is to finish": (
        StopPolicy(WorkKind.THREAD, finish=True, grace=2.0),
        [Climb(Rung.FINISH, 2.0), Climb(Rung.FLAG, 0.25)],
    ),
    "a process is asked to end, then killed": (
        StopPolicy(WorkKind.PROCESS),
        [Climb(Rung.TERM, 2.0), Climb(Rung.KILL, 1.0)],
    ),
    "a process with a grace": (
        StopPolicy(WorkKind.PROCESS, grace=0.5),
        [Climb(Rung.TERM, 0.5), Climb(Rung.KILL, 1.0)],
    ),
    "a process that is to finish": (
        StopPolicy(WorkKind.PROCESS, finish=True, grace=3.0),
        [Climb(Rung.FINISH, 3.0), Climb(Rung.TERM, 2.0), Climb(Rung.KILL, 1.0)],
    ),
    "a process whose finishing takes the whole cap is killed all the same": (
        StopPolicy(WorkKind.PROCESS, finish=True, grace=10.0),
        [Climb(Rung.FINISH, 9.0), Climb(Rung.TERM, 0.0), Climb(Rung.KILL, 1.0)],
    ),
    "finishing takes nearly the whole cap": (
        StopPolicy(finish=True, grace=9.5),
        [Climb(Rung.FINISH, 9.5), Climb(Rung.CANCEL, 0.5)],
    ),
    "finishing takes the whole cap": (
        StopPolicy(finish=True, grace=10.0),
        [Climb(Rung.FINISH, 10.0), Climb(Rung.CANCEL, 0.0)],
    ),
}


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_has_the_rungs_that_apply(name: str) -> None:
    stop_policy, climbs = PLANS[name]
    assert plan(stop_policy, DEFAULT, force=False) == (*climbs, ABANDON)


FORCED = {
    WorkKind.TASK: Climb(Rung.CANCEL, 0.0),
    WorkKind.THREAD: Climb(Rung.FLAG, 0.0),
    WorkKind.CHILD: Climb(Rung.ASK, 1.0),
    WorkKind.PROCESS: Climb(Rung.KILL, 1.0),
}


@pytest.mark.parametrize("kind", WorkKind)
@pytest.mark.parametrize("finish", [False, True])
def test_force_ignores_grace_and_finish_and_leaves_a_moment_to_record_or_to_die(kind: WorkKind, finish: bool) -> None:
    assert plan(StopPolicy(kind, finish=finish, grace=5.0), DEFAULT, force=True) == (FORCED[kind], ABANDON)


def test_work_is_cut_at_once_unless_it_says_otherwise() -> None:
    assert StopPolicy(WorkKind.TASK, finish=False, grace=None) == CUT_AT_ONCE


seconds = st.floats(0.01, 30)
RUNGS = [each.name for each in fields(Ladder) if each.name != "cap"]


@st.composite
def ladders(draw: st.DrawFn) -> Ladder:
    cap = draw(st.floats(1, 30))
    return Ladder(**{rung: min(draw(seconds), cap) for rung in RUNGS}, cap=cap)


manners = st.builds(StopPolicy, st.sampled_from(WorkKind), finish=st.booleans(), grace=st.none() | seconds)


@settings(deadline=None)
@given(manners, ladders(), st.booleans())
def test_no_plan_takes_longer_than_the_cap_and_each_ends_in_abandoning(
    stop_policy: StopPolicy, ladder: Ladder, force: bool
) -> None:
    climbs = plan(stop_policy, ladder, force=force)
    assert sum(climb.seconds for climb in climbs) <= ladder.cap + 1e-9
    assert all(climb.seconds >= 0 for climb in climbs)
    assert [climb for climb in climbs if climb.rung is Rung.ABANDON] == [climbs[-1]] == [ABANDON]
    pushes = 2 if stop_policy.kind is WorkKind.PROCESS and not force else 1
    assert len(climbs) == pushes + 1 + (stop_policy.finish and not force)
    kills = [climb for climb in climbs if climb.rung is Rung.KILL]
    assert kills == ([Climb(Rung.KILL, ladder.kill)] if stop_policy.kind is WorkKind.PROCESS else [])


@pytest.mark.parametrize("rung", [each.name for each in fields(Ladder)])
@pytest.mark.parametrize("value", [0, -1, math.inf, math.nan, "2", None, True])
def test_every_rung_is_a_positive_number_of_seconds(rung: str, value: object) -> None:
    with pytest.raises(ValueError, match="write a number of seconds above 0") as caught:
        Ladder(**{rung: untyped(value)})
    assert str(caught.value).startswith(f"Ladder({rung}={value!r}): ")


@pytest.mark.parametrize("rung", RUNGS)
def test_no_rung_is_longer_than_the_cap(rung: str) -> None:
    assert Ladder(**{rung: 10.0}) is not None
    with pytest.raises(ValueError, match=r"above the ladder's cap of 10.0 s: shorten it or raise Ladder\(cap=…\)"):
        Ladder(**{rung: 10.1})


def test_what_is_left_out_makes_room_for_a_lower_cap() -> None:
    low = Ladder(cap=1)
    assert (low.task, low.thread, low.term, low.kill, low.undo) == (1.0, 0.25, 1.0, 0.5, 1.0)
    assert Ladder(task=0.5, cap=0.5) == Ladder(0.5, 0.25, 0.5, 0.25, 0.5, 0.5)
    assert replace(low, cap=0.2) == replace(DEFAULT, cap=0.2) == Ladder(cap=0.2)


def test_a_process_under_a_low_cap_has_a_moment_to_end_before_it_is_killed() -> None:
    climbs = plan(StopPolicy(WorkKind.PROCESS), Ladder(cap=1), force=False)
    assert climbs == (Climb(Rung.TERM, 0.5), Climb(Rung.KILL, 0.5), ABANDON)


@pytest.mark.parametrize("rung", RUNGS)
def test_a_rung_that_was_written_is_refused_above_a_lower_cap_also_if_it_is_the_default(rung: str) -> None:
    with pytest.raises(ValueError, match=rf"^Ladder\({rung}=…\) is .* above the ladder's cap of 0.1 s: shorten it"):
        Ladder(**{rung: float(getattr(DEFAULT, rung))}, cap=0.1)


def test_what_is_declared_is_bounded_by_the_cap() -> None:
    assert DEFAULT.bound(10.0, "grace") == 10.0
    with pytest.raises(ValueError, match=r"^grace is 10.5 s, above the ladder's cap of 10.0 s: shorten it or raise"):
        DEFAULT.bound(10.5, "grace")
    with pytest.raises(ValueError, match=r"^ctx.shield\(0\) is 0: write a number of seconds above 0$"):
        DEFAULT.bound(0, "ctx.shield(0)")

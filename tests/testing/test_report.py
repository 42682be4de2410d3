"""What a report counts and says, what is refused, and kinds other than the caller's cancel."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from safepoint.errors import UsageError
from safepoint.testing.clock import run_virtual
from safepoint.testing.frames import Place
from safepoint.testing.injections import CALLER, Injection, Shot, clock_jump, may_raise, must_return
from safepoint.testing.injector import check_cancellable
from safepoint.testing.points import Moment
from safepoint.testing.report import Report
from safepoint.testing.runs import SafepointRuns
from safepoint.testing.subject import NullSubject, default_subject
from safepoint.testing.virtual_sleep import pass_time


def check(scenario: Callable[[], Coroutine[Any, Any, object]], **options: Any) -> Report:
    """`check_cancellable` with nothing but asyncio under test."""
    return check_cancellable(scenario, subject=NullSubject(), **options)


def problems_of(report: Report) -> str:
    return "\n".join(problem for failure in report.failures for problem in failure.problems)


async def two_waits() -> None:
    async def child() -> None:
        await pass_time(1)

    await asyncio.create_task(child())
    await asyncio.sleep(0)


def fails_each_time() -> None:
    """An oracle that is content with the two recordings and with the run after each injection, and nothing else."""
    global _runs
    _runs += 1
    if _runs > 2 and _runs % 2:
        raise AssertionError("as always")


_runs = 0


@pytest.fixture
def failing() -> Report:
    global _runs
    _runs = 0
    return check(two_waits, oracles=[fails_each_time])


def test_the_report_counts_what_was_tried(failing: Report) -> None:
    points = {(point.task, point.moments) for point in failing.points}
    assert points == {
        ("two_waits/1.child", (Moment.UNSTARTED,)),
        ("two_waits/1.child", (Moment.BLOCKED, Moment.WOKEN)),
        ("two_waits", (Moment.BLOCKED, Moment.WOKEN)),
        ("two_waits", (Moment.BLOCKED,)),
    }
    assert (failing.injections, failing.distinct, len(failing.failures)) == (6, 6, 6)
    assert failing.table().split("\n")[1].split() == ["caller", "blocked", "3", "3"]
    assert str(failing).startswith("two_waits: 6 injections (6 distinct) at 4 points, 6 failures, 0 missed, 0 idle\n")


def test_a_failure_names_entry_kind_moment_line_landing_and_how_to_see_it_again(failing: Report) -> None:
    first, last = str(failing.failures[0]), str(failing.failures[-1])
    assert re.match(r"two_waits: caller, unstarted, timed by \S*test_report.py:\d+ in two_waits \(the start of", first)
    assert re.match(r"two_waits: caller, blocked, timed by \S*test_report.py:\d+ in two_waits \(the wait of", last)
    assert "oracle fails_each_time: as always" in last
    assert re.search(r"landed at \S*test_report.py:\d+ in two_waits \(task two_waits\)", last)
    assert re.search(
        r'again: check_cancellable\(two_waits, oracles=\[fails_each_time\], only="caller:blocked:two_waits@', last
    )


def test_only_repeats_one_injection(failing: Report) -> None:
    global _runs
    for failure in failing.failures:
        found = re.search('only="(.*)"', failure.again)
        assert found is not None
        _runs = 0
        again = check(two_waits, oracles=[fails_each_time], only=found[1])
        assert again.injections == 1
        assert [str(one) for one in again.failures] == [str(failure)]


def test_only_refuses_what_it_does_not_know_and_lists_what_it_knows() -> None:
    with pytest.raises(ValueError, match=r"only='nonsense' is none of.*\n  caller:unstarted:!two_waits/1.child@"):
        check(two_waits, only="nonsense")


def test_failures_are_raised_whole(failing: Report) -> None:
    with pytest.raises(AssertionError) as caught:
        failing.raise_for_failures()
    assert str(caught.value) == str(failing) == repr(failing)


def test_a_point_that_a_later_run_does_not_reach_is_listed_as_missed() -> None:
    runs = 0

    async def scenario() -> None:
        nonlocal runs
        runs += 1
        if runs <= 2:
            await pass_time(1)

    report = check(scenario)
    assert [missed.rpartition("@")[0] for missed in report.missed] == [
        "caller:blocked:scenario",
        "caller:woken:scenario",
    ]
    assert (report.injections, report.failures) == (0, [])


def test_two_recordings_that_differ_are_a_failure_that_says_where() -> None:
    runs = 0

    async def scenario() -> None:
        nonlocal runs
        runs += 1
        await pass_time(1)
        if runs % 2:
            await pass_time(1)

    report = check(scenario)
    assert re.search(r"two recordings differ at point 1: the end, then scenario@test_rep\S+#0", problems_of(report))


def test_a_first_run_that_fills_a_cache_is_not_held_against_the_scenario() -> None:
    cache: list[str] = []

    async def scenario() -> None:
        if not cache:
            await pass_time(1)
            cache.append("filled")
        await pass_time(1)

    report = check(scenario)
    assert (report.injections, report.failures) == (2, [])


def test_what_is_wrong_without_any_cancel_is_said_once_and_nothing_is_injected() -> None:
    async def scenario() -> None:
        tasks.append(asyncio.create_task(pass_time(5)))
        await pass_time(1)

    tasks: list[asyncio.Task[None]] = []
    report = check(scenario)
    assert [failure.kind for failure in report.failures] == ["without any injection"]
    assert "a task is left" in problems_of(report)
    assert report.injections == 0


def test_a_scenario_that_fails_by_itself_is_refused() -> None:
    async def scenario() -> None:
        raise LookupError("by itself")

    with pytest.raises(UsageError, match="has to pass before") as caught:
        check(scenario)
    assert isinstance(caught.value.__cause__, LookupError)


@pytest.mark.parametrize("wrong", [two_waits(), lambda: 3], ids=["a coroutine", "a plain function"])
def test_what_is_no_async_function_is_refused(wrong: Any) -> None:
    with pytest.raises(UsageError, match="async function"):
        check(wrong)
    if asyncio.iscoroutine(wrong):
        wrong.close()


def test_inside_a_running_loop_it_says_what_to_write() -> None:
    async def main() -> None:
        with pytest.raises(UsageError, match="from a plain function"):
            check(two_waits)

    run_virtual(main)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"within": 0}, "within=0"),
        ({"kinds": []}, "must not be empty"),
        ({"moments": []}, "must not be empty"),
        ({"moments": ["bloked"]}, "'bloked' is not a valid Moment"),
    ],
)
def test_an_option_that_cannot_be_honoured_is_refused(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        check(two_waits, **options)


class Runs:
    """A runtime in small: a run is a task, and its own cancel is a normal return."""

    def __init__(self, *, leaks: bool = False) -> None:
        self.live: list[asyncio.Task[str]] = []
        self.log: list[str] = []
        self._leaks = leaks

    def begin(self) -> None:
        self.live.clear()
        self.log.append("begin")

    def disturbed(self, *, cancels: bool) -> None:
        self.log.append("disturbed")

    def held(self) -> list[str]:
        return []

    def seams_of(self, task: str, places: list[Place]) -> frozenset[str]:
        return frozenset()

    def cancel_all(self) -> int:
        for run in self.live:
            run.cancel()
        return len(self.live)

    def check(self) -> list[str]:
        return ["no terminal event"] if self.log[-1] == "cut" else []

    def remember(self) -> None:
        self.log.append("remember")

    async def run(self) -> str:
        run = asyncio.create_task(self._work())
        self.live.append(run)
        try:
            await asyncio.wait([run])
        except asyncio.CancelledError:
            run.cancel()
            await asyncio.wait([run])
            raise
        finally:
            self.live.remove(run)
        if run.cancelled() and self._leaks:
            raise asyncio.CancelledError
        return "cancelled" if run.cancelled() else run.result()

    async def _work(self) -> str:
        try:
            await pass_time(1)
            self.log.append("whole")
        except asyncio.CancelledError:
            self.log.append("cut")
            raise
        return "end_turn"


def test_own_cancels_are_injected_and_idle_ones_are_not_counted() -> None:
    runs = Runs()

    async def scenario() -> None:
        await asyncio.sleep(0)
        await runs.run()

    report = check_cancellable(scenario, subject=runs)
    assert {case.kind for case in report.cases} == {"own", "caller"}
    assert report.idle == 1, "no run is live at the first sleep"
    assert {failure.problems for failure in report.failures} == {("no terminal event",)}
    assert {failure.kind for failure in report.failures} == {"own", "caller"}
    assert runs.log.index("remember") == runs.log.index("whole", 2) + 1


def test_an_own_cancel_that_comes_out_as_a_cancelled_error_is_found() -> None:
    runs = Runs(leaks=True)

    async def scenario() -> None:
        await runs.run()

    problems = problems_of(check_cancellable(scenario, subject=runs))
    assert "Safepoint's own cancel came out of the scenario as a CancelledError" in problems


def test_a_clock_jump_is_injected() -> None:
    jumps: list[float] = []

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        try:
            async with asyncio.timeout(10):
                await pass_time(1)
        finally:
            jumps.append(loop.time() - begun)

    report = check(scenario, kinds=[clock_jump(3600)])
    assert report.failures == []
    assert report.injections == 2
    assert set(jumps) == {1.0, 3600.0, 3601.0}


def test_a_long_scenario_may_take_as_long_after_an_injection_as_it_takes_anyway() -> None:
    harmless = Injection("harmless", lambda shot: True, must_return)

    async def scenario() -> None:
        await pass_time(1000)
        await pass_time(1000)

    report = check(scenario, kinds=[harmless], within=1)
    assert (report.injections, report.failures) == (4, [])


def test_a_clock_jump_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="seconds > 0"):
        clock_jump(0)


def test_a_kind_of_one_s_own_is_fired_judged_and_repeated_by_name() -> None:
    shots: list[tuple[str, Moment]] = []

    def fire(shot: Shot) -> bool:
        shots.append((shot.point.id, shot.moment))
        return not shot.task.done()

    disconnect = Injection("disconnect", fire, lambda ending: f"ended with {ending}")
    report = check(two_waits, kinds=[disconnect], moments=[Moment.WOKEN])
    assert len(shots) == report.injections == len(report.failures) == 2
    assert {failure.problems for failure in report.failures} == {("ended with None",)}
    assert report.failures[0].again.startswith(
        'check_cancellable(two_waits, kinds=[disconnect], only="disconnect:woken:'
    )


def test_a_kind_that_allows_an_error_accepts_that_error_only() -> None:
    judge = may_raise(LookupError)
    assert judge(None) is None
    assert judge(KeyError()) is None
    assert judge(ValueError("other")) == "the scenario raised ValueError('other')"


def test_an_injection_that_breaks_is_a_failure() -> None:
    broken = Injection("broken", lambda shot: bool(shot.task.result()), must_return)
    report = check(two_waits, kinds=[broken])
    assert "InvalidStateError" in problems_of(report)
    assert CALLER.judge(None) is not None


def test_an_oracle_that_raises_another_error_is_a_failure_too() -> None:
    def looks() -> None:
        raise LookupError("nothing there")

    report = check(two_waits, oracles=[looks])
    assert "oracle looks: LookupError('nothing there')" in problems_of(report)


def test_without_a_runtime_there_is_no_own_cancel_to_inject() -> None:
    report = check_cancellable(two_waits, subject=NullSubject())
    assert {case.kind for case in report.cases} == {"caller"}


def test_the_runtime_s_own_runs_are_the_default_subject() -> None:
    assert isinstance(default_subject(), SafepointRuns)
    report = check_cancellable(two_waits)
    assert report.injections == 6
    assert report.idle == 6, "no run is live, so there is nothing for Safepoint's own cancel"

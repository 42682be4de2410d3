"""The injector finds what was planted, in the moment that shows it, and finds nothing where nothing is wrong."""

from __future__ import annotations

import asyncio
import gc
import itertools
import re
import socket
import subprocess
import sys
import threading
import warnings
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing, suppress
from typing import Any

import anyio
import anyio.to_thread
import pytest

from safepoint.testing.injector import check_cancellable
from safepoint.testing.points import Moment
from safepoint.testing.report import Report
from safepoint.testing.subject import NullSubject
from safepoint.testing.virtual_sleep import pass_time


def check(scenario: Callable[[], Coroutine[Any, Any, object]], **options: Any) -> Report:
    """`check_cancellable` with nothing but asyncio under test."""
    return check_cancellable(scenario, subject=NullSubject(), **options)


class Permits:
    """A counter that has to come back to zero, and the oracle that says so."""

    def __init__(self) -> None:
        self.held = 0

    def all_came_back(self) -> None:
        lost, self.held = self.held, 0
        assert lost == 0, f"{lost} permits lost"


def moments_of(report: Report) -> set[Moment | None]:
    return {failure.moment for failure in report.failures}


def problems_of(report: Report) -> str:
    return "\n".join(problem for failure in report.failures for problem in failure.problems)


# --- planted bugs ---------------------------------------------------------------------------------------------------


def test_a_permit_that_is_lost_at_an_unguarded_await_is_found_where_the_cancel_landed() -> None:
    permits = Permits()

    async def leaks() -> None:
        permits.held += 1
        await pass_time(1)
        permits.held -= 1

    async def scenario() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(leaks())

    report = check(scenario, oracles=[permits.all_came_back])
    assert report.failures
    assert all("1 permits lost" in str(failure) for failure in report.failures)
    assert all(re.search(r"landed at .*test_injector\.py:\d+ in .*leaks", str(failure)) for failure in report.failures)


def test_a_swallowed_cancellation_is_found_in_both_moments() -> None:
    async def scenario() -> None:
        with suppress(asyncio.CancelledError):
            await pass_time(1)

    report = check(scenario)
    assert moments_of(report) == {Moment.BLOCKED, Moment.WOKEN}
    assert "the caller's cancellation was swallowed" in problems_of(report)


def test_a_replaced_cancellation_is_found_with_the_line_that_raised() -> None:
    async def scenario() -> None:
        try:
            await pass_time(1)
        finally:
            if asyncio.current_task() in asyncio.all_tasks() and asyncio.get_running_loop().time() < 1001:
                raise LookupError("in the clean-up")

    report = check(scenario, moments=[Moment.BLOCKED])
    assert re.search(
        r"was replaced: .*LookupError\('in the clean-up'\) at .*test_injector\.py:\d+", problems_of(report)
    )


class Pool:
    """Hands its one connection directly to the next in line."""

    def __init__(self, *, gives_back: bool) -> None:
        self.free = ["connection"]
        self.waiting: deque[asyncio.Future[str]] = deque()
        self.gives_back = gives_back

    async def acquire(self) -> str:
        if self.free:
            return self.free.pop()
        handed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.waiting.append(handed)
        try:
            return await handed
        except asyncio.CancelledError:
            if handed in self.waiting:
                self.waiting.remove(handed)
            elif self.gives_back and not handed.cancelled():
                self.release(handed.result())
            raise

    def release(self, connection: str) -> None:
        while self.waiting:
            handed = self.waiting.popleft()
            if not handed.done():
                return handed.set_result(connection)
        self.free.append(connection)


@pytest.mark.parametrize("gives_back", [True, False])
def test_a_connection_lost_in_the_hand_off_is_found_only_when_woken(gives_back: bool) -> None:
    pools: list[Pool] = []

    async def uses(pool: Pool) -> None:
        connection = await pool.acquire()
        try:
            await pass_time(1)
        finally:
            pool.release(connection)

    async def scenario() -> None:
        pool = Pool(gives_back=gives_back)
        pools.append(pool)
        async with asyncio.TaskGroup() as group:
            group.create_task(uses(pool))
            await asyncio.sleep(0)
            await uses(pool)

    def connection_came_back() -> None:
        assert pools[-1].free, "the connection was lost"

    report = check(scenario, oracles=[connection_came_back])
    assert moments_of(report) == (set() if gives_back else {Moment.WOKEN})
    assert len(report.failures) == (0 if gives_back else 1)


@pytest.mark.parametrize("guarded_by", ["parent", "child"])
def test_a_handler_that_never_ran_is_found_only_before_the_first_step(guarded_by: str) -> None:
    permits = Permits()

    async def child() -> None:
        try:
            await pass_time(1)
        finally:
            permits.held -= guarded_by == "child"

    async def scenario() -> None:
        permits.held += 1
        try:
            await asyncio.create_task(child())
        finally:
            permits.held -= guarded_by == "parent"

    report = check(scenario, oracles=[permits.all_came_back])
    assert moments_of(report) == (set() if guarded_by == "parent" else {Moment.UNSTARTED})
    if report.failures:
        assert "child, before its first line" in str(report.failures[0])


def test_a_task_that_outlives_the_scenario_is_found_and_named() -> None:
    cleaned_up: list[str] = []

    async def straggles() -> None:
        try:
            await pass_time(1)
        except asyncio.CancelledError:
            await pass_time(1)
            cleaned_up.append("after a while")
            raise

    async def scenario() -> None:
        task = asyncio.create_task(straggles(), name="the straggler")
        await pass_time(2)
        assert task.done()

    report = check(scenario)
    assert re.search(
        r"a task is left: the straggler waits at .*test_injector\.py:\d+ in .*straggles", problems_of(report)
    )
    landed = [landing.task for landing in report.failures[0].landings]
    assert len(cleaned_up) == len(report.failures), "what was left is ended before the next run"
    assert landed == ["scenario"], "the cancel that cleaned up the straggler is none of the scenario's"


def test_a_thread_that_outlives_the_scenario_is_found() -> None:
    gates: list[threading.Event] = []

    async def scenario() -> None:
        gate = threading.Event()
        gates.append(gate)
        threading.Thread(target=gate.wait, name="the sleeper", daemon=True).start()
        await pass_time(1)
        gate.set()

    try:
        report = check(scenario, moments=[Moment.BLOCKED])
    finally:
        for gate in gates:
            gate.set()
    assert "a thread is left: the sleeper" in problems_of(report)


def test_a_thread_that_ends_a_little_later_is_waited_for() -> None:
    async def scenario() -> None:
        gate = threading.Event()
        threading.Thread(target=gate.wait).start()
        try:
            await pass_time(1)
        finally:
            gate.set()

    assert check(scenario).failures == []


def test_a_child_process_that_outlives_the_scenario_is_found() -> None:
    started: list[subprocess.Popen[bytes]] = []

    async def scenario() -> None:
        started.append(subprocess.Popen(["cat"], stdin=subprocess.PIPE))  # noqa: ASYNC220 (the leak is the point)
        await pass_time(1)
        started.pop().communicate(b"")

    report = check(scenario, moments=[Moment.BLOCKED])
    for process in started:
        process.communicate(b"")
    assert "a child process is left" in problems_of(report)


def test_a_connection_that_is_still_watched_is_found() -> None:
    ends: list[socket.socket] = []

    async def scenario() -> None:
        left, right = socket.socketpair()
        ends.extend([left, right])
        loop = asyncio.get_running_loop()
        loop.add_reader(left, print)
        await pass_time(1)
        loop.remove_reader(left)

    report = check(scenario, moments=[Moment.BLOCKED])
    for end in ends:
        end.close()
    assert "a connection is left: file descriptor" in problems_of(report)


def test_an_anyio_scope_that_is_still_open_is_found() -> None:
    async def scenario() -> None:
        scope = anyio.CancelScope()
        scope.__enter__()
        await pass_time(1)
        scope.__exit__(None, None, None)

    assert "an AnyIO scope is left open" in problems_of(check(scenario))


def test_a_scenario_that_hangs_after_the_cancel_is_found_at_once() -> None:
    async def scenario() -> None:
        answered = asyncio.Event()
        try:
            await pass_time(1)
            answered.set()
        finally:
            await answered.wait()

    report = check(scenario)
    assert "the scenario does not end: nothing can happen any more" in problems_of(report)
    assert re.search(r"waits at .*test_injector\.py:\d+ in .*scenario", problems_of(report))


async def _again_and_again(seconds: float) -> None:
    for _ in itertools.count():
        await asyncio.sleep(seconds)


@pytest.mark.parametrize("pause", [0.0, 0.1])
def test_a_scenario_that_goes_on_for_ever_after_the_cancel_is_found(pause: float) -> None:
    async def scenario() -> None:
        try:
            await pass_time(1)
        except asyncio.CancelledError:
            await _again_and_again(pause)

    report = check(scenario, moments=[Moment.BLOCKED])
    assert "the scenario does not end" in problems_of(report)


def test_a_scenario_that_takes_longer_than_it_may_is_found() -> None:
    async def scenario() -> None:
        try:
            await pass_time(1)
        except asyncio.CancelledError:
            await pass_time(100)
            raise

    assert "past the horizon" in problems_of(check(scenario))
    assert check(scenario, within=100).failures == []


def test_an_exception_that_nobody_retrieved_is_found() -> None:
    async def fails() -> None:
        try:
            await pass_time(2)
        except asyncio.CancelledError:
            raise LookupError("unseen") from None

    async def scenario() -> None:
        task = asyncio.create_task(fails())
        try:
            await pass_time(1)
            await task
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait([task])
            raise

    assert "Task exception was never retrieved: LookupError('unseen')" in problems_of(check(scenario))


def test_a_coroutine_that_was_never_awaited_is_found() -> None:
    async def closes() -> None: ...

    async def scenario() -> None:
        closing = closes()
        await pass_time(1)
        await closing

    assert re.search(r"RuntimeWarning: coroutine '.*closes' was never awaited", problems_of(check(scenario)))


def test_a_socket_that_is_not_closed_is_found_even_in_a_cycle() -> None:
    async def scenario() -> None:
        left, right = socket.socketpair()
        keeps: list[object] = [left]
        keeps.append(keeps)
        with right:
            await pass_time(1)
        left.close()

    assert "ResourceWarning: unclosed <socket" in problems_of(check(scenario, moments=[Moment.BLOCKED]))


def test_an_error_in_a_thread_is_found() -> None:
    async def scenario() -> None:
        failing = threading.Thread(target=deque[int]().pop)
        try:
            await pass_time(1)
        except asyncio.CancelledError:
            failing.start()
            failing.join()
            raise

    assert re.search(r"thread .* raised IndexError", problems_of(check(scenario)))


def test_an_error_where_nobody_can_catch_it_is_found() -> None:
    class Fragile:
        def __del__(self) -> None:
            if run_time < 1:
                raise LookupError("in __del__")

    run_time = 0.0

    async def scenario() -> None:
        nonlocal run_time
        run_time = 0.0
        fragile = Fragile()
        await pass_time(1)
        run_time = 1.0
        del fragile

    assert "LookupError('in __del__')" in problems_of(check(scenario))


@pytest.mark.parametrize(("category", "failures"), [(UserWarning, 2), (DeprecationWarning, 0)])
def test_a_warning_is_a_failure_unless_it_only_announces_a_change(category: type[Warning], failures: int) -> None:
    async def scenario() -> None:
        try:
            await pass_time(1)
        except asyncio.CancelledError:
            warnings.warn("look here", category, stacklevel=1)
            raise

    with warnings.catch_warnings():
        warnings.simplefilter("default")
        report = check(scenario)
    assert len(report.failures) == failures
    assert problems_of(report).count("UserWarning: look here") == failures


def test_a_scenario_that_cannot_run_again_is_found() -> None:
    broken: list[str] = []

    async def scenario() -> None:
        assert not broken, "broken by an earlier cancel"
        try:
            await pass_time(1)
        except asyncio.CancelledError:
            broken.append("")
            raise

    report = check(scenario, moments=[Moment.BLOCKED])
    assert len(report.failures) == 1
    assert re.search("afterwards, uncancelled: the scenario raised .*broken by an earlier", problems_of(report))


# --- nothing wrong --------------------------------------------------------------------------------------------------


async def work(seconds: float) -> None:
    await asyncio.sleep(seconds)


async def plain_tasks() -> None:
    async def worker(queue: asyncio.Queue[int | None]) -> None:
        async with asyncio.timeout(60):
            while (seconds := await queue.get()) is not None:
                await work(seconds)

    queue: asyncio.Queue[int | None] = asyncio.Queue()
    async with asyncio.TaskGroup() as group:
        for _ in range(2):
            group.create_task(worker(queue))
        for item in (1, 2, 3, None, None):
            await pass_time(0.05)
            queue.put_nowait(item)


async def time_outs() -> None:
    lock = asyncio.Lock()
    for seconds in (1, 3):
        try:
            async with asyncio.timeout(2), lock:
                await asyncio.sleep(seconds)
        except TimeoutError:
            pass
    assert not lock.locked()


async def generators() -> None:
    async def numbers() -> AsyncGenerator[int, None]:
        try:
            for number in range(3):
                await pass_time(0.1)
                yield number
        finally:
            await pass_time(0.1)

    async with aclosing(numbers()) as stream:
        async for _ in stream:
            await pass_time(0.1)


async def gathered() -> None:
    async def one(seconds: float) -> float:
        await asyncio.sleep(seconds)
        return seconds

    assert list(await asyncio.gather(one(1), one(2), one(3))) == [1, 2, 3]


async def anyio_groups() -> None:
    send, receive = anyio.create_memory_object_stream[int](1)

    async def produce() -> None:
        async with send:
            for number in range(3):
                await send.send(number)

    async with receive, anyio.create_task_group() as group:
        group.start_soon(produce)
        async for _ in receive:
            await pass_time(0.1)
    with anyio.move_on_after(1) as scope:
        await pass_time(5)
    assert scope.cancelled_caught


async def threads() -> None:
    assert await asyncio.to_thread(lambda: 1) == 1
    assert await anyio.to_thread.run_sync(lambda: 2) == 2


@pytest.mark.parametrize("scenario", [plain_tasks, time_outs, generators, gathered, anyio_groups, threads])
def test_code_that_cleans_up_has_no_failures(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    report = check(scenario)
    report.raise_for_failures()
    assert report.missed == []
    assert report.injections >= 2
    assert report.distinct >= 2
    assert {case.entry for case in report.cases} == {scenario.__name__}


def test_the_race_in_wait_for_of_python_3_11_is_found_and_that_of_3_12_is_gone() -> None:
    async def scenario() -> None:
        await asyncio.wait_for(pass_time(1), 4)

    report = check(scenario)
    assert moments_of(report) == (set() if sys.version_info >= (3, 12) else {Moment.WOKEN})
    if report.failures:
        assert "swallowed" in problems_of(report)


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_rests_while_a_scenario_runs_and_everything_is_as_before_afterwards(enabled: bool) -> None:
    seen: set[tuple[bool, bool]] = set()

    async def scenario() -> None:
        seen.add((gc.isenabled(), gc.get_freeze_count() > 0))
        await pass_time(1)

    hooks = sys.unraisablehook, threading.excepthook
    if not enabled:
        gc.disable()
    try:
        check(scenario).raise_for_failures()
        assert gc.isenabled() is enabled
    finally:
        gc.enable()
    assert seen == {(False, True)}
    assert gc.get_freeze_count() == 0
    assert (sys.unraisablehook, threading.excepthook) == hooks


def test_a_cancelled_gather_that_wait_for_forgets_is_not_an_error() -> None:
    async def scenario() -> None:
        await asyncio.wait_for(asyncio.gather(pass_time(1), pass_time(2)), 4)

    check(scenario, moments=[Moment.BLOCKED]).raise_for_failures()


def test_an_exception_handler_of_the_user_s_hears_what_it_should() -> None:
    heard: list[str] = []

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: heard.append(str(context["exception"])))
        loop.call_soon(lambda: int("not a number"))
        await pass_time(1)

    check(scenario).raise_for_failures()
    assert "not a number" in heard[0]


def test_a_task_that_is_about_to_end_is_not_left_and_what_it_does_then_is_no_point() -> None:
    tasks: list[asyncio.Task[None]] = []

    async def ending() -> None:
        for _ in range(6):
            await asyncio.sleep(0)

    async def scenario() -> None:
        tasks.append(asyncio.create_task(ending()))
        await asyncio.sleep(0)

    report = check(scenario)
    report.raise_for_failures()
    waits = [point for point in report.points if point.place.function.endswith("ending")]
    assert 0 < len(waits) < 6


def test_a_shielded_task_that_is_left_alone_is_found() -> None:
    async def scenario() -> None:
        await asyncio.shield(pass_time(1))

    assert "a task is left" in problems_of(check(scenario))

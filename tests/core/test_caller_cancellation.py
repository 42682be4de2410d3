"""Where a caller's own cancellation meets a run: the run closes itself first, then the caller's exception goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import anyio
import pytest

from safepoint._core.caller_cancellation import outlast, outlive
from tests.core.piece import settled
from tests.virtual import now, passes, virtual


class Closing:
    """Something that, once told to stop, needs its time to close itself."""

    def __init__(self, seconds: float) -> None:
        self.told: list[float] = []
        self.closed_at: float | None = None
        self._began = now()
        self._seconds = seconds
        self._stop = asyncio.Event()
        self.task: asyncio.Task[None] = asyncio.create_task(self._run())

    def stop(self) -> None:
        self.told.append(self.age)
        self._stop.set()

    @property
    def age(self) -> float:
        return round(now() - self._began, 6)

    async def _run(self) -> None:
        await self._stop.wait()
        await asyncio.sleep(self._seconds)
        self.closed_at = self.age

    async def outlive(self) -> str:
        await outlive(self.task, self.stop)
        return "a normal return"


async def end_of(task: asyncio.Task[str]) -> BaseException | str:
    await asyncio.wait({task})
    if task.cancelled():
        return asyncio.CancelledError()
    return task.exception() or task.result()


@virtual
async def test_without_a_cancellation_it_is_a_plain_wait() -> None:
    closing = Closing(2)
    asyncio.get_running_loop().call_later(1, closing.stop)
    assert await closing.outlive() == "a normal return"
    assert (closing.told, closing.closed_at) == ([1.0], 3.0)


@virtual
async def test_a_task_that_is_done_already_needs_no_waiting() -> None:
    closing = Closing(0)
    closing.stop()
    await passes(1)
    assert await closing.outlive() == "a normal return"
    await outlast(closing.task)
    assert closing.told == [0.0]


@virtual
async def test_the_callers_cancellation_tells_the_run_waits_for_it_and_goes_on() -> None:
    closing = Closing(2)
    caller = asyncio.create_task(closing.outlive())
    await passes(1)
    caller.cancel("enough")
    await passes(1.9)
    assert not caller.done()
    with pytest.raises(asyncio.CancelledError, match="enough"):
        await caller
    assert (closing.told, closing.closed_at) == ([1.0], 3.0)


@virtual
@pytest.mark.parametrize("again", [0.0, 0.5, 1.9])
async def test_a_second_cancellation_does_not_cut_the_wait_short(again: float) -> None:
    closing = Closing(2)
    caller = asyncio.create_task(closing.outlive())
    await settled()
    caller.cancel("first")
    if again:
        await passes(again)
    caller.cancel("second")
    await passes(0.05)
    caller.cancel("third")
    assert isinstance(await end_of(caller), asyncio.CancelledError)
    assert caller.cancelling() == 3, "none of them was taken back on the caller's behalf"
    assert (len(closing.told), closing.closed_at) == (1, 2.0)


@virtual
async def test_outlasting_puts_a_cancellation_off_until_the_task_is_done() -> None:
    closing = Closing(2)
    closing.stop()

    async def leave() -> str:
        await outlast(closing.task)
        return "a normal return"

    caller = asyncio.create_task(leave())
    await passes(1)
    caller.cancel()
    assert isinstance(await end_of(caller), asyncio.CancelledError)
    assert closing.closed_at == 2.0
    assert await leave() == "a normal return"


@virtual
async def test_a_cancellation_that_comes_together_with_the_end_is_not_swallowed() -> None:
    closing = Closing(0)
    caller = asyncio.create_task(closing.outlive())
    await settled()
    closing.task.add_done_callback(lambda _: caller.cancel())
    closing.stop()
    assert isinstance(await end_of(caller), asyncio.CancelledError)


Wrap = Callable[[Callable[[], Awaitable[object]]], Awaitable[object]]


async def asyncio_timeout(wait: Callable[[], Awaitable[object]]) -> None:
    async with asyncio.timeout(1):
        await wait()


async def nested_timeouts_inner_first(wait: Callable[[], Awaitable[object]]) -> None:
    async with asyncio.timeout(10), asyncio.timeout(1):
        await wait()


async def nested_timeouts_outer_first(wait: Callable[[], Awaitable[object]]) -> None:
    async with asyncio.timeout(1), asyncio.timeout(10):
        await wait()


async def nested_timeouts_both_while_it_closes(wait: Callable[[], Awaitable[object]]) -> None:
    async with asyncio.timeout(2), asyncio.timeout(1):
        await wait()


async def anyio_fail_after(wait: Callable[[], Awaitable[object]]) -> None:
    with anyio.fail_after(1):
        await wait()


async def anyio_inside_asyncio(wait: Callable[[], Awaitable[object]]) -> None:
    async with asyncio.timeout(2):
        with anyio.fail_after(1):
            await wait()


TIMEOUTS: list[Wrap] = [
    asyncio_timeout,
    nested_timeouts_inner_first,
    nested_timeouts_outer_first,
    nested_timeouts_both_while_it_closes,
    anyio_fail_after,
    anyio_inside_asyncio,
]


@virtual
@pytest.mark.parametrize("timeout", TIMEOUTS)
async def test_a_time_out_around_the_wait_is_never_swallowed(timeout: Wrap) -> None:
    closing = Closing(3)
    with pytest.raises(TimeoutError):
        await timeout(closing.outlive)
    assert (closing.told, closing.closed_at) == ([1.0], 4.0), "the run has closed itself before the exception went on"
    await asyncio.sleep(0)  # nothing of the cancellation is left in this task
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


@virtual
async def test_a_scope_that_is_cancelled_ends_behind_the_wait_and_the_clock_goes_on() -> None:
    closing = Closing(3)
    reached: list[str] = []
    with anyio.CancelScope() as scope:
        asyncio.get_running_loop().call_later(1, scope.cancel)
        await closing.outlive()
        reached.append("after the wait")
    assert scope.cancelled_caught
    assert reached == []
    assert closing.closed_at == 4.0


@virtual
async def test_of_nested_scopes_each_catches_its_own() -> None:
    closing, outer, inner = Closing(3), anyio.CancelScope(), anyio.CancelScope()
    asyncio.get_running_loop().call_later(1, inner.cancel)
    asyncio.get_running_loop().call_later(2, outer.cancel)
    with outer:
        with inner:
            await closing.outlive()
        await anyio.lowlevel.checkpoint()
        raise AssertionError("the outer scope was cancelled too")
    assert inner.cancel_called
    assert outer.cancelled_caught
    assert closing.closed_at == 4.0


@virtual
async def test_a_failing_sibling_in_a_task_group_cancels_the_wait_and_its_error_goes_on() -> None:
    closing = Closing(3)

    async def fail() -> None:
        await passes(1)
        raise LookupError("sibling")

    async def both() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(closing.outlive())
            group.create_task(fail())

    with pytest.raises(ExceptionGroup) as caught:
        await both()
    assert [type(error) for error in caught.value.exceptions] == [LookupError]
    assert closing.closed_at == 4.0


def test_a_task_that_was_done_on_a_loop_that_is_closed_is_not_waited_for() -> None:
    async def nothing() -> None:
        pass

    async def begun() -> asyncio.Task[None]:
        task = asyncio.create_task(nothing())
        await task
        return task

    task = asyncio.run(begun())
    asyncio.run(outlive(task, pytest.fail))

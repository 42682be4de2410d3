"""A switch that is set once: nobody who waits for it, in whatever thread or loop, misses it."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from functools import partial

import pytest

from safepoint._core.latch import Latch
from tests.virtual import passes, rounds, virtual


def in_thread(call: Callable[[], object]) -> None:
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


def test_it_is_set_once_and_stays_set() -> None:
    latch = Latch()
    assert not latch.is_set
    latch.set()
    latch.set()
    assert latch.is_set


def test_calls_are_made_once_when_it_is_set_in_the_order_they_came() -> None:
    latch, made = Latch(), list[int]()
    latch.when_set(lambda: made.append(1))
    latch.when_set(lambda: made.append(2))
    assert made == []
    latch.set()
    latch.set()
    assert made == [1, 2]
    latch.when_set(lambda: made.append(3))
    assert made == [1, 2, 3], "at once, if it was set before"


def test_a_call_that_sets_it_again_is_harmless() -> None:
    latch, made = Latch(), list[int]()
    latch.when_set(latch.set)
    latch.when_set(lambda: made.append(1))
    latch.set()
    assert made == [1]


@virtual
async def test_every_waiting_task_is_woken() -> None:
    latch = Latch()
    waiting = [asyncio.create_task(latch.wait()) for _ in range(3)]
    await rounds(3)
    assert not any(task.done() for task in waiting)
    latch.set()
    await asyncio.gather(*waiting)
    await latch.wait()


@virtual
async def test_a_waiter_that_leaves_takes_nobody_along() -> None:
    latch = Latch()
    leaves, stays = asyncio.create_task(latch.wait()), asyncio.create_task(latch.wait())
    await rounds(2)
    leaves.cancel()
    await asyncio.wait({leaves})
    assert leaves.cancelled()
    latch.set()
    await stays


@virtual
async def test_a_waiter_cancelled_just_after_the_latch_was_set_does_not_break_the_loop() -> None:
    latch = Latch()
    waiting = asyncio.create_task(latch.wait())
    await rounds(2)
    latch.set()
    waiting.cancel()
    await asyncio.wait({waiting})
    await rounds(3)


@virtual
async def test_it_may_be_set_from_another_thread() -> None:
    latch = Latch()
    waiting = asyncio.create_task(latch.wait())
    await rounds(2)
    in_thread(latch.set)
    await waiting


def test_a_thread_waits_until_it_is_set_or_its_time_is_up() -> None:
    latch = Latch()
    assert latch.wait_sync(0.001) is False
    threading.Thread(target=latch.set).start()
    assert latch.wait_sync() is True
    assert latch.wait_sync(0) is True


def test_a_waiter_on_a_closed_loop_is_left_out() -> None:
    latch, told = Latch(), threading.Event()
    loop = asyncio.new_event_loop()
    task = loop.create_task(latch.wait())
    loop.run_until_complete(asyncio.sleep(0))
    latch.when_set(told.set)
    loop.close()
    latch.set()
    assert told.is_set(), "those after it are told all the same"
    coroutine = task.get_coro()
    assert coroutine is not None
    coroutine.close()  # pyright: ignore[reportAttributeAccessIssue]  # a coroutine, here
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]  # left on purpose


class Race:
    """Two threads set one latch at the same moment, each with a call of its own."""

    def __init__(self) -> None:
        self.latch = Latch()
        self.made: list[int] = []
        self._together = threading.Barrier(2)
        for number in range(20):
            self.latch.when_set(partial(self.made.append, number))

    def run(self) -> None:
        threads = [threading.Thread(target=self._set) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _set(self) -> None:
        self._together.wait()
        self.latch.when_set(partial(self.made.append, 99))
        self.latch.set()


def test_two_threads_that_set_it_at_once_make_every_call_once() -> None:
    for _ in range(50):
        race = Race()
        race.run()
        assert sorted(race.made) == [*range(20), 99, 99]


@virtual
async def test_waiting_takes_no_time_once_it_is_set() -> None:
    latch = Latch()
    asyncio.get_running_loop().call_later(5, latch.set)
    async with asyncio.timeout(6):
        await latch.wait()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await Latch().wait()
    await passes(0)


def test_a_set_latch_makes_nobody_wait_not_even_for_one_round() -> None:
    latch = Latch()
    latch.set()
    with pytest.raises(StopIteration):
        latch.wait().send(None)


@virtual
async def test_a_waiter_that_has_left_leaves_nothing_behind() -> None:
    latch = Latch()
    task = asyncio.ensure_future(latch.wait())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert not latch._waiters  # pyright: ignore[reportPrivateUsage]  # a leak shows nowhere else


def test_a_thread_whose_time_was_up_leaves_nothing_behind() -> None:
    latch = Latch()
    assert latch.wait_sync(0.001) is False
    assert not latch._waiters  # pyright: ignore[reportPrivateUsage]  # as above


class SetMeanwhile(deque[Callable[[], object]]):
    """Waiters; another thread sets the latch at the very moment in which one leaves."""

    def remove(self, waiter: Callable[[], object], /) -> None:
        super().remove(waiter)
        waiter()


class Met(Latch):
    def __init__(self) -> None:
        super().__init__()
        self._waiters = SetMeanwhile()


def test_a_thread_whose_time_was_up_in_the_moment_of_the_setting_is_told_the_truth() -> None:
    assert Met().wait_sync(0.001) is True


class Emptied(deque[Callable[[], object]]):
    """Waiters that another thread takes away at the very moment in which one is wanted."""

    def popleft(self) -> Callable[[], object]:
        self.clear()
        return super().popleft()


class Raced(Latch):
    def __init__(self) -> None:
        super().__init__()
        self._waiters = Emptied()


def test_what_another_thread_has_called_is_not_called_again() -> None:
    latch, calls = Raced(), list[int]()
    latch.when_set(lambda: calls.append(1))
    latch.set()
    assert calls == []


def test_everybody_is_told_also_if_telling_some_of_them_fails_and_the_first_failure_is_raised() -> None:
    latch, told = Latch(), list[int]()

    def fails(number: int) -> None:
        told.append(number)
        raise ValueError(number)

    latch.when_set(partial(fails, 1))
    latch.when_set(lambda: told.append(2))
    latch.when_set(partial(fails, 3))
    with pytest.raises(ValueError, match="1"):
        latch.set()
    assert told == [1, 2, 3]

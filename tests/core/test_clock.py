"""Time comes from the loop, so a loop with its own clock moves everything."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref

import pytest

from safepoint._core.clock import Clock, current_clock
from safepoint.testing.clock import EPOCH, START
from tests.virtual import now, passes, virtual


class CountingLoop(asyncio.SelectorEventLoop):
    """A loop that counts what goes on outside it, and has a calendar of its own."""

    virtual = True

    def __init__(self) -> None:
        super().__init__()
        self.named: list[str] = []

    def wall(self) -> float:
        return 42.0

    def outside(self, name: str) -> str:
        self.named.append(name)
        return name


def test_without_a_loop_it_is_the_machines_time() -> None:
    clock = current_clock()
    before = time.monotonic()
    assert before <= clock.now() <= time.monotonic()
    assert abs(clock.wall() - time.time()) < 60
    assert not clock.is_virtual


@virtual
async def test_in_a_loop_it_is_the_loops_time() -> None:
    clock = current_clock()
    assert (clock.now(), clock.wall()) == (START, EPOCH)
    await passes(2.5)
    assert (clock.now(), clock.wall()) == (START + 2.5, EPOCH + 2.5)


def test_a_plain_loop_has_the_machines_calendar_and_counts_nothing() -> None:
    async def look() -> None:
        clock = current_clock()
        assert clock.now() == pytest.approx(asyncio.get_running_loop().time(), abs=1)  # pyright: ignore[reportUnknownMemberType]  # its stub
        assert abs(clock.wall() - time.time()) < 60
        assert not clock.is_virtual
        outside = clock.outside("thread")
        outside.flagged()
        outside.done()

    asyncio.run(look())


def test_a_loop_may_bring_its_own_calendar_and_count_work_outside() -> None:
    loop = CountingLoop()
    clock = Clock(loop)
    assert clock.wall() == 42.0
    assert clock.is_virtual
    assert str(clock.outside("thread")) == "thread"
    assert loop.named == ["thread"]
    loop.close()


@virtual
async def test_a_timer_is_called_at_its_time() -> None:
    clock, called = current_clock(), list[float]()
    clock.call_at(clock.now() + 3, lambda: called.append(now()))
    handle = clock.call_at(clock.now() + 1, lambda: called.append(0.0))
    handle.cancel()
    await passes(3)
    assert called == [START + 3]


def test_a_timer_needs_a_loop() -> None:
    with pytest.raises(AssertionError, match="a timer needs a loop"):
        Clock().call_at(0.0, lambda: None)


def test_a_clock_does_not_keep_its_loop_alive_and_goes_on_with_the_machines_time() -> None:
    loop = asyncio.new_event_loop()
    clock, alive = Clock(loop), weakref.ref(loop)
    before = clock.now()
    loop.close()
    del loop
    gc.collect()
    assert alive() is None
    assert before <= clock.now() <= time.monotonic()

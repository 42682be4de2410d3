"""A loop that does not answer is named, with its stack, by a thread that can still look."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
import threading
import time
import warnings
from contextlib import closing

import pytest

from safepoint._core.clock import Clock, current_clock
from safepoint._core.endings import Ending
from safepoint._core.supervisor import Supervisor
from safepoint._core.tree import Node, Propagation
from safepoint._core.watchdog import (
    PATIENCE,
    PERIOD,
    _watched,  # pyright: ignore[reportPrivateUsage]  # nothing else shows which loops are looked at
    blocked,
    watch,
)
from tests.virtual import virtual

WITHIN = 1.0  # what the contract promises


def watchdogs() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "safepoint-watchdog"]


def block_until_named(loop: asyncio.AbstractEventLoop) -> float:
    """Block the loop's thread until the watchdog has seen it; how long that took."""
    began = time.monotonic()
    while blocked(loop) is None:
        assert time.monotonic() - began < 10
    return time.monotonic() - began


def wait_until_it_answers(loop: asyncio.AbstractEventLoop) -> None:
    began = time.monotonic()
    while blocked(loop) is not None:
        assert time.monotonic() - began < 10


def test_the_watchdog_looks_often_enough_to_name_a_blocked_loop_in_time() -> None:
    assert PATIENCE + 2 * PERIOD < 0.7 * WITHIN, "the rest is for a busy machine"


def test_a_blocked_loop_is_named_with_its_stack_and_forgotten_when_it_answers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        release = watch(loop, current_clock())
        assert blocked(loop) is None
        took = block_until_named(loop)
        found = blocked(loop)
        assert found is not None
        assert PATIENCE <= found.seconds < took + 2, "since the loop was asked, not since ever"
        assert "block_until_named" in found.stack
        await asyncio.to_thread(wait_until_it_answers, loop)
        release()
        assert blocked(loop) is None

    with caplog.at_level(logging.WARNING, "safepoint"):
        asyncio.run(main())
    named = [record for record in caplog.records if record.name == "safepoint"]
    assert len(named) == 1, "once, however long it lasts"
    assert "the event loop has not answered for" in named[0].message
    assert "block_until_named" in named[0].message


def test_a_node_knows_what_blocks_its_loop() -> None:
    async def main() -> None:
        node = Node("r", "r", "run", propagation=Propagation.TO_CALLS)
        assert node.blocked() is None
        Supervisor.current().enrol(node)
        block_until_named(asyncio.get_running_loop())
        found = node.blocked()
        assert found is not None
        assert "block_until_named" in found.stack
        node.seal()
        node.finish(Ending(cancelled=False, stopped_at=0.0))
        assert node.blocked() is None, "nobody watches a loop without runs"

    asyncio.run(main())


def test_one_daemon_thread_watches_every_loop_while_any_run_lives_on_it() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        releases = [watch(loop, current_clock()) for _ in range(3)]
        assert len(watchdogs()) == 1
        assert watchdogs()[0].daemon
        releases[0]()
        releases[1]()
        block_until_named(loop)
        releases[2]()
        assert blocked(loop) is None

    asyncio.run(main())


def test_a_loop_that_was_never_watched_is_not_blocked() -> None:
    loop = asyncio.new_event_loop()
    assert blocked(loop) is None
    loop.close()


def test_a_loop_that_was_closed_is_not_looked_at_for_ever() -> None:
    loop = asyncio.new_event_loop()
    release = watch(loop, Clock(loop))
    loop.close()
    wait_until_forgotten(id(loop))
    assert blocked(loop) is None
    release()


def wait_until_forgotten(address: int) -> None:
    began = time.monotonic()
    while address in _watched:
        gc.collect()
        assert time.monotonic() - began < 10


def test_a_loop_that_is_stopped_before_it_could_answer_is_not_blocked_any_longer() -> None:
    loop = asyncio.new_event_loop()
    release = watch(loop, Clock(loop))

    def block_and_stop() -> None:
        block_until_named(loop)
        loop.stop()  # what the watchdog has asked stays in the queue

    loop.call_soon(block_and_stop)
    loop.run_forever()
    wait_until_it_answers(loop)
    release()
    loop.close()


def test_a_loop_that_is_gone_is_not_watched_any_longer() -> None:
    loops = [asyncio.new_event_loop()]
    release, address = watch(loops[0], Clock(loops[0])), id(loops[0])
    watched = _watched[address]
    with pytest.warns(ResourceWarning):  # it was not even closed
        lose(loops)
    wait_until_forgotten(address)  # the watchdog itself may be looking at it
    watched.check()  # or be about to
    assert watched.blocked is None
    release()

    async def other() -> None:
        running = asyncio.get_running_loop()
        free = watch(running, current_clock())
        block_until_named(running)
        free()

    asyncio.run(other())


def lose(loops: list[asyncio.AbstractEventLoop]) -> None:
    loops.clear()
    gc.collect()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_after_a_fork_the_child_has_a_watchdog_of_its_own() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        release = watch(loop, current_clock())
        block_until_named(loop)
        release()

    asyncio.run(main())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python warns of a fork beside threads; that is the point
        child = os.fork()
    if child == 0:
        code = 1
        try:
            asyncio.run(main())
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_without_runs_the_watchdog_stands_still() -> None:
    async def main() -> None:
        watch(asyncio.get_running_loop(), current_clock())()

    asyncio.run(main())
    began = time.monotonic()
    while not waits_for_good(watchdogs()[0]):
        assert time.monotonic() - began < 10, "it goes on looking, although there is nothing to see"


def waits_for_good(thread: threading.Thread) -> bool:
    frame = sys._current_frames().get(thread.ident or 0)  # pyright: ignore[reportPrivateUsage]  # documented, despite its name
    return frame is not None and frame.f_code is threading.Condition.wait.__code__


def test_with_runs_the_watchdog_looks_now_and_then_and_no_more() -> None:
    times: list[float] = []

    class Pinged(asyncio.SelectorEventLoop):
        def _write_to_self(self) -> None:  # somebody wakes it from outside
            times.append(time.monotonic())
            super()._write_to_self()  # type: ignore[misc]  # asyncio's own, and typeshed has it not

    async def main() -> None:
        loop = asyncio.get_running_loop()
        release = watch(loop, current_clock())
        await asyncio.to_thread(wait_for_three, times)
        release()

    with closing(Pinged()) as loop:
        loop.run_until_complete(main())
    assert times[2] - times[0] > PERIOD, "twice as long, if clocks were exact"


def wait_for_three(times: list[float]) -> None:
    began = time.monotonic()
    while len(times) < 3:
        assert time.monotonic() - began < 10


@virtual
async def test_a_virtual_clock_is_not_watched_in_real_time() -> None:
    loop = asyncio.get_running_loop()
    release = watch(loop, current_clock())
    assert blocked(loop) is None
    release()

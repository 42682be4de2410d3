"""A loop that does not answer is named, with its stack, by a thread that can still look."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import threading
import time
import warnings
import weakref

import pytest

from safepoint._core.clock import Clock, current_clock
from safepoint._core.endings import Ending
from safepoint._core.supervisor import Supervisor
from safepoint._core.tree import Node, Passing
from safepoint._core.watchdog import (
    PATIENCE,
    PERIOD,
    _watched,  # pyright: ignore[reportPrivateUsage]  # nothing else shows which loop is at which address
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
    assert PATIENCE + 2 * PERIOD < WITHIN


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
        node = Node("r", "r", "run", passing=Passing.TO_CALLS)
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


def test_a_loop_that_was_closed_while_watched_does_no_harm() -> None:
    loop = asyncio.new_event_loop()
    release = watch(loop, Clock(loop))
    loop.close()

    async def other() -> None:
        running = asyncio.get_running_loop()
        free = watch(running, current_clock())
        block_until_named(running)
        assert blocked(loop) is None, "nobody runs it, so nothing blocks it"
        free()

    asyncio.run(other())
    release()
    assert blocked(loop) is None


def test_a_loop_that_is_gone_does_not_end_the_watch_of_others() -> None:
    gone = asyncio.new_event_loop()
    watch(gone, Clock(gone))
    gone.close()
    left, address = weakref.ref(gone), id(gone)
    del gone
    gc.collect()
    assert left() is None

    async def other() -> None:
        running = asyncio.get_running_loop()
        free = watch(running, current_clock())
        block_until_named(running)
        free()

    asyncio.run(other())
    _watched.pop(address, None)


def test_a_loop_at_the_address_of_one_that_is_gone_is_watched_anew() -> None:
    gone = asyncio.new_event_loop()
    release = watch(gone, Clock(gone))

    async def main() -> None:
        loop = asyncio.get_running_loop()
        _watched[id(loop)] = _watched.pop(id(gone))  # an address cannot be asked for
        free = watch(loop, current_clock())
        release()
        block_until_named(loop)
        free()
        assert blocked(loop) is None

    asyncio.run(main())
    gone.close()


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


@pytest.mark.parametrize("runs", [0, 1])
def test_the_watchdog_costs_next_to_nothing(runs: int) -> None:
    """Without runs it waits for one; with runs it looks now and then."""

    async def main() -> float:
        loop = asyncio.get_running_loop()
        watch(loop, current_clock())()
        releases = [watch(loop, current_clock()) for _ in range(runs)]
        idle: asyncio.Future[None] = loop.create_future()
        loop.call_later(2 * PERIOD, idle.set_result, None)
        begun = time.process_time()
        await idle
        spent = time.process_time() - begun
        for release in releases:
            release()
        return spent

    assert asyncio.run(main()) < PERIOD / 4


@virtual
async def test_a_virtual_clock_is_not_watched_in_real_time() -> None:
    loop = asyncio.get_running_loop()
    release = watch(loop, current_clock())
    assert blocked(loop) is None
    release()

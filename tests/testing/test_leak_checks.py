"""What is left is seen, and the next run starts clean."""

from __future__ import annotations

import asyncio
import gc
import itertools
import queue
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from typing import Any

import anyio
import pytest

from safepoint.testing import leak_checks
from safepoint.testing.clock import START, Endless, VirtualLoop
from safepoint.testing.virtual_sleep import pass_time


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    made = VirtualLoop(max_rounds=1000)
    yield made
    made.close()


async def never() -> None:
    await asyncio.get_running_loop().create_future()


def test_settling_runs_what_is_ready_and_does_not_move_the_clock(loop: VirtualLoop) -> None:
    async def ending() -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    soon, later = loop.create_task(ending()), loop.create_task(pass_time(1))
    leak_checks.settle(loop)
    assert (soon.done(), later.done(), loop.time()) == (True, False, START)
    assert leak_checks.end(loop) == []


def test_an_open_scope_is_reported_only_of_a_task_that_has_ended(loop: VirtualLoop) -> None:
    async def in_scope() -> None:
        with anyio.CancelScope():
            await never()

    async def leaves_scope() -> None:
        anyio.CancelScope().__enter__()

    waits, left = loop.create_task(in_scope(), name="waits"), loop.create_task(leaves_scope(), name="left")
    leak_checks.settle(loop)
    found = leak_checks.in_loop(loop)
    assert found[0].startswith("a task is left: waits waits at")
    assert found[1:] == ["an AnyIO scope is left open in task left"]
    assert leak_checks.end(loop) == []
    assert waits.cancelled()
    assert left.done()


def test_the_end_cancels_tasks_closes_generators_and_joins_threads(loop: VirtualLoop) -> None:
    ended: list[str] = []
    gate = threading.Event()

    async def task() -> None:
        try:
            await never()
        finally:
            await pass_time(1)
            ended.append("task")

    async def generator() -> AsyncGenerator[int, None]:
        try:
            yield 1
        finally:
            ended.append("generator")

    def job() -> None:
        gate.wait()
        ended.append("thread")

    async def main() -> AsyncGenerator[int, None]:
        tasks.append(loop.create_task(task()))
        loop.run_in_executor(None, job).cancel()
        started = generator()
        await anext(started)
        return started

    tasks: list[asyncio.Task[None]] = []
    kept = loop.run_until_complete(main())
    gate.set()
    assert leak_checks.end(loop) == []
    assert ended.index("task") < ended.index("generator")
    assert sorted(ended) == ["generator", "task", "thread"]
    assert kept is not None
    assert loop.is_closed()


async def _deaf(wait: Callable[[], Coroutine[Any, Any, None]]) -> None:
    for _ in itertools.count():
        try:
            await wait()
        except asyncio.CancelledError:
            continue


@pytest.mark.parametrize(
    ("wait", "complaint"),
    [
        (never, "nothing can happen any more"),
        (lambda: pass_time(1), "past the horizon"),
        (lambda: asyncio.sleep(0), "rounds"),
    ],
    ids=["waits", "naps", "spins"],
)
def test_what_does_not_end_when_cancelled_is_said_and_given_up(
    loop: VirtualLoop,
    wait: Callable[[], Coroutine[Any, Any, None]],
    complaint: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    task = loop.create_task(_deaf(wait))
    leak_checks.settle(loop)
    (said,) = leak_checks.end(loop)
    assert said.startswith("what is left does not end when cancelled: ")
    assert complaint in said
    assert loop.is_closed()
    assert not task.done()
    del task
    gc.collect()
    assert caplog.messages == [], "it has been said once"


def test_a_loop_that_ran_too_long_can_still_be_cleaned_up(loop: VirtualLoop) -> None:
    async def spins() -> None:
        for _ in itertools.count():
            await asyncio.sleep(0)

    task = loop.create_task(spins())
    with pytest.raises(Endless):
        loop.run_until_complete(task)
    assert leak_checks.end(loop) == []
    assert task.cancelled()


def test_a_task_factory_left_behind_does_not_disturb_the_end(loop: VirtualLoop) -> None:
    def refuses(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
        raise LookupError("no more tasks")

    loop.set_task_factory(refuses)
    assert leak_checks.end(loop) == []


def start_child() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)


def test_a_child_that_was_there_before_is_not_left() -> None:
    with start_child() as process:
        assert leak_checks.Outside().left() == []
        process.communicate(b"")


def test_a_child_that_ends_a_little_later_is_waited_for() -> None:
    started: queue.Queue[subprocess.Popen[bytes]] = queue.Queue()
    reaper = threading.Thread(target=lambda: started.get().communicate(b""))
    reaper.start()
    outside = leak_checks.Outside()
    with start_child() as process:
        started.put(process)
        assert outside.left() == []
        reaper.join()


def test_a_child_and_a_thread_that_stay_are_left() -> None:
    outside = leak_checks.Outside()
    gate = threading.Event()
    thread = threading.Thread(target=gate.wait, name="stays")
    thread.start()
    with start_child() as process:
        assert outside.left() == ["a thread is left: stays", f"a child process is left: {process.pid}"]
        process.communicate(b"")
    gate.set()
    thread.join()

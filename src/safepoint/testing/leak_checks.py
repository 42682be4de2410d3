"""What a scenario left behind: tasks, AnyIO scopes, watched connections, threads and child processes.

Tasks, scopes and connections are checked when the loop has run everything that was ready, before the clock moves.
Threads and processes live outside the loop, so they get `GRACE` seconds of real time to end.

After a fault the clock may move by `RECOVERY` seconds first: failed work may be retried in the background, within
limits. After a cancel, no work may continue.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from time import monotonic, sleep
from typing import Any

from safepoint.testing.clock import Stuck, VirtualLoop
from safepoint.testing.frames import describe

GRACE = 0.5
RECOVERY = 30.0
_SETTLING = 10
# How long leftover tasks may take to end once they are cancelled: virtual seconds, and rounds of the loop.
_SECONDS = 60.0
_ROUNDS = 10_000


def settle(loop: VirtualLoop) -> None:
    """Run ready callbacks for a few rounds, while tasks are left. The clock does not move."""
    for _ in range(_SETTLING):
        if not asyncio.all_tasks(loop):
            return
        loop.call_soon(loop.stop)
        loop.run_forever()


def recover(loop: VirtualLoop) -> None:
    """Let leftover tasks end by themselves, for as long as a recovery may take."""
    loop.horizon = loop.time() + RECOVERY
    with suppress(Stuck):  # tasks that are left then are reported
        while left := asyncio.all_tasks(loop):
            task = min(left, key=asyncio.Task[Any].get_name)
            task.add_done_callback(_stop)
            try:
                loop.run_forever()
            finally:
                task.remove_done_callback(_stop)


def _stop(task: asyncio.Task[Any]) -> None:  # Any: any task
    task.get_loop().stop()


def in_loop(loop: VirtualLoop) -> list[str]:
    tasks = sorted(map(describe, asyncio.all_tasks(loop)))
    left = [f"a task is left: {task}" for task in tasks]
    left += [f"an AnyIO scope is left open in task {task.get_name()}" for task in _tasks_with_open_scope(loop)]
    return left + [f"a connection is left: file descriptor {fd} is still watched" for fd in loop.open_fds()]


def _tasks_with_open_scope(loop: VirtualLoop) -> list[asyncio.Task[Any]]:  # Any: any task
    backend = sys.modules.get("anyio._backends._asyncio")
    states: Mapping[asyncio.Task[Any], Any] = getattr(backend, "_task_states", {})  # Any: AnyIO's own record
    return [
        task
        for task, state in list(states.items())
        if task.get_loop() is loop and task.done() and state.cancel_scope is not None
    ]


def end(loop: VirtualLoop) -> list[str]:
    """End all leftovers, so that the next run starts clean, and close the loop. Returns what did not end."""
    left = asyncio.all_tasks(loop)
    if not left and not loop.has_loose_ends:
        loop.close()
        return []

    async def finish() -> None:
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left)
        await loop.shutdown_asyncgens()
        await loop.shutdown_default_executor()

    loop.set_task_factory(None)
    loop.horizon = loop.time() + _SECONDS
    if loop.max_rounds is not None:
        loop.max_rounds += _ROUNDS
    try:
        loop.run_until_complete(finish())
        return []
    except Stuck as stuck:
        for task in asyncio.all_tasks(loop):
            # It is reported here; asyncio need not report it again when it collects the task.
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # as for an orphan
        return [f"what is left does not end when cancelled: {stuck}"]
    finally:
        loop.close()


class Outside:
    """The threads and child processes that exist now; `left` lists new ones that do not end."""

    def __init__(self) -> None:
        self._threads = frozenset(threading.enumerate())
        self._children = _children()

    def left(self) -> list[str]:
        deadline = monotonic() + GRACE
        threads = [thread for thread in threading.enumerate() if thread not in self._threads]
        for thread in threads:
            thread.join(max(0.0, deadline - monotonic()))
        while (children := _children() - self._children) and monotonic() < deadline:
            sleep(0.005)
        left = [f"a thread is left: {thread.name}" for thread in threads if thread.is_alive()]
        return left + [f"a child process is left: {pid}" for pid in sorted(children)]


def _children() -> frozenset[int]:
    """The ids of this process's children; outside Linux, only those that multiprocessing started."""
    if sys.platform != "linux":
        return frozenset(child.pid for child in multiprocessing.active_children() if child.pid is not None)
    pids: set[int] = set()
    for thread in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{thread}/children", "rb") as file:
                pids.update(map(int, file.read().split()))
        except FileNotFoundError:
            continue  # that thread has just ended
    return frozenset(pids)

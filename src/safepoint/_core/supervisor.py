"""One supervisor per event loop owns every task that Safepoint makes, and knows every root that is live.

A task is created here and nowhere else. The supervisor keeps it until it is done or handed to the orphan list, so no
task of ours is ever unowned, and `roots` is the answer to "what is running in this process?".
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from contextvars import Context
from functools import partial
from typing import Any

from safepoint._core.clock import Clock
from safepoint._core.ladder import CUT_AT_ONCE, Ladder, StopPolicy
from safepoint._core.orphans import disown
from safepoint._core.tree import Node
from safepoint._core.watchdog import watch
from safepoint._core.work import T, Work


def _nothing(_task: asyncio.Task[None]) -> None:
    pass


class Supervisor:
    """Use `Supervisor.current()`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.clock = Clock(loop)
        self.roots: dict[str, Node] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @staticmethod
    def current() -> Supervisor:
        """The supervisor of the running loop."""
        loop = asyncio.get_running_loop()
        supervisor = _supervisors.get(loop)
        if supervisor is None:
            supervisor = _supervisors[loop] = Supervisor(loop)
        return supervisor

    def enrol(self, node: Node) -> None:
        """The node lives on this loop from now on: asks wake it here, and a root is listed until it ends."""
        loop = asyncio.get_running_loop()
        node.attach(loop, self.clock)
        if node.parent is None:
            self.roots[node.id] = node
            release = watch(loop, self.clock)

            def leave() -> None:
                self.roots.pop(node.id, None)
                release()

            node.ended.when_set(leave)

    def spawn(
        self,
        coroutine: Coroutine[object, object, None],
        name: str,
        context: Context | None,
        on_done: Callable[[asyncio.Task[None]], object] = _nothing,
    ) -> asyncio.Task[None]:
        """A task of ours, kept until it is done. Without a context of its own it gets a copy of the present one."""
        loop, label = asyncio.get_running_loop(), f"safepoint:{name}"
        task: asyncio.Task[None]
        if loop.get_task_factory() is None:
            task = loop.create_task(coroutine, name=label, context=context)
        else:  # a factory may run the first step in here, before anybody knows the task: it could not be stopped there
            task = asyncio.Task(coroutine, loop=loop, name=label, context=context)
        self._tasks.add(task)
        task.add_done_callback(partial(self._done, on_done))
        return task

    def _done(self, on_done: Callable[[asyncio.Task[None]], object], task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        on_done(task)

    def begin(
        self,
        make: Callable[[], Awaitable[T]],
        *,
        name: str,
        path: str,
        ladder: Ladder,
        stop_policy: StopPolicy = CUT_AT_ONCE,
        context: Context | None = None,
        on_end: Callable[[], object],
        limit: float | None = None,
    ) -> Work[T]:
        """Start a piece of work. Its outcome is on the work when `on_end` is called.

        `limit`: seconds after which it is stopped by itself, whatever else happens.
        """
        work: Work[T] = Work(name, path, clock=self.clock, ladder=ladder, stop_policy=stop_policy)
        work.on_end = on_end
        if limit is not None:
            work.stop_at(self.clock.now() + limit)
        work.task = self.spawn(work.guard(make), path, context, work.task_done)
        return work


async def wind_down(ladder: Ladder) -> None:
    """End everything that is left on a loop of our own before it is closed, and wait for nobody past the ladder.

    Runs close themselves. Tasks that a tool has left behind get what a cut task gets, then they are disowned. The
    threads of an executor are not waited for: closing the loop lets go of them.
    Cancellation: there is nobody left to cancel it.
    """
    supervisor = Supervisor.current()
    for task in _others():
        task.cancel()
    with suppress(TimeoutError):
        async with asyncio.timeout(ladder.cap):
            for root in tuple(supervisor.roots.values()):
                await root.ended.wait()
    await _part_with(_others(), ladder.task)
    generators = asyncio.get_running_loop().shutdown_asyncgens()
    await _part_with({supervisor.spawn(generators, "generators", None)}, ladder.task)
    await _part_with(_others(), 0)


async def _part_with(tasks: set[asyncio.Task[Any]], seconds: float) -> None:  # Any: tasks of anybody
    if tasks:
        _, stubborn = await asyncio.wait(tasks, timeout=seconds)
        for task in stubborn:
            disown(task)


def _others() -> set[asyncio.Task[Any]]:  # Any: as above
    return {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}


_supervisors: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Supervisor] = weakref.WeakKeyDictionary()

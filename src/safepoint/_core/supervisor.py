"""One supervisor per event loop owns every task that Safepoint makes, and knows every live root.

Tasks are created here and nowhere else. The supervisor keeps each until it is done or handed to the orphan list, so no
Safepoint task is ever unowned, and `roots` answers "what is running in this process?".
"""

from __future__ import annotations

import asyncio
import sys
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from contextvars import Context
from functools import partial
from typing import Any, TypeAlias, cast

from safepoint._core.clock import current_clock
from safepoint._core.ladder import CUT_AT_ONCE, Ladder, StopPolicy
from safepoint._core.orphans import disown
from safepoint._core.tree import Node
from safepoint._core.watchdog import watch
from safepoint._core.work import T, Work

_StartEagerly: TypeAlias = Callable[[Coroutine[object, object, None], str, Context], "asyncio.Task[None]"]


def start_eagerly(
    kind: Callable[..., asyncio.Task[T]],
    loop: asyncio.AbstractEventLoop,
    coroutine: Coroutine[object, object, T],
    name: str,
    context: Context,
) -> asyncio.Task[T]:
    """Make a task and take its first step at once; in that step it is the current task.

    A new task waits for a turn of the loop even if its work needs none. That turn was most of the time of a run whose
    model answers at once. Python 3.12 has the parameter `eager_start` for it.
    """
    if sys.version_info >= (3, 12):
        return kind(coroutine, loop=loop, name=name, context=context, eager_start=True)
    first_step: list[Callable[[], object]] = []

    def catch(step: Callable[[], object], **_context: Context) -> None:
        first_step.append(step)

    # The task schedules its first step with `loop.call_soon`; here the step is caught instead. No other code calls it
    # in between: it belongs to the loop's own thread, and other threads use `call_soon_threadsafe`.
    loop.call_soon = catch  # type: ignore[method-assign,assignment]  # for the length of one call
    try:
        task = kind(coroutine, loop=loop, name=name, context=context)
    finally:
        del loop.call_soon
    outer = asyncio.current_task(loop)
    if outer is not None:
        asyncio.tasks._leave_task(loop, outer)  # pyright: ignore[reportPrivateUsage]  # documented for task authors
    try:
        context.run(first_step[0])
    finally:
        if outer is not None:
            asyncio.tasks._enter_task(loop, outer)  # pyright: ignore[reportPrivateUsage]  # likewise
    return task


_TASK = cast("Callable[..., asyncio.Task[None]]", asyncio.Task)


class Supervisor:
    """Owns the tasks of one loop. Use `Supervisor.current()`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.clock = current_clock()
        self.roots: dict[str, Node] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_watched = hasattr(loop, "start_eagerly")

    @staticmethod
    def current() -> Supervisor:
        """The supervisor of the running loop."""
        loop = asyncio.get_running_loop()
        supervisor = _supervisors.get(loop)
        if supervisor is None:
            supervisor = _supervisors[loop] = Supervisor(loop)
        return supervisor

    def enrol(self, node: Node) -> None:
        """Attach the node to this loop: asks wake it here, and a root is listed until it ends."""
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
        on_done: Callable[[asyncio.Task[None]], object] | None = None,
    ) -> asyncio.Task[None]:
        """Create a task and keep it until it is done. Without a context it gets a copy of the present one."""
        loop, label = asyncio.get_running_loop(), f"safepoint:{name}"
        task: asyncio.Task[None]
        if loop.get_task_factory() is None:
            task = loop.create_task(coroutine, name=label, context=context)
        else:  # a task factory may run the first step here, before the supervisor knows the task and could stop it
            task = asyncio.Task(coroutine, loop=loop, name=label, context=context)
        return self._keep(task, on_done)

    def spawn_eagerly(
        self, coroutine: Coroutine[object, object, None], name: str, context: Context
    ) -> asyncio.Task[None]:
        """As `spawn`, but the task's first step has run when this returns, and perhaps the whole task.

        So the coroutine must not need anything that the caller does with the returned task. Nothing need be called when
        the task is done: a coroutine that has begun can tell its end itself.
        """
        loop, label = asyncio.get_running_loop(), f"safepoint:{name}"
        # A loop that watches its tasks, such as the testing kit's, has its own way to start them.
        if self._is_watched:
            start: _StartEagerly = cast("Any", loop).start_eagerly  # Any: no other loop has it
            return self._keep(start(coroutine, label, context))
        return self._keep(start_eagerly(_TASK, loop, coroutine, label, context))

    def _keep(
        self, task: asyncio.Task[None], on_done: Callable[[asyncio.Task[None]], object] | None = None
    ) -> asyncio.Task[None]:
        if task.done():  # the task has no waiters, so nothing is scheduled
            if on_done is not None:
                on_done(task)
            return task
        self._tasks.add(task)
        # One callback, because the loop needs a step for each.
        task.add_done_callback(self._tasks.discard if on_done is None else partial(self._drop, on_done))
        return task

    def _drop(self, on_done: Callable[[asyncio.Task[None]], object], task: asyncio.Task[None]) -> None:
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

        `limit`: seconds after which the work is stopped in any case.
        """
        work: Work[T] = self.prepare(
            name=name, path=path, ladder=ladder, on_end=on_end, stop_policy=stop_policy, limit=limit
        )
        work.task = self.spawn(work.guard(make), path, context, work.task_done)
        return work

    def prepare(
        self,
        *,
        name: str,
        path: str,
        ladder: Ladder,
        on_end: Callable[[], object],
        stop_policy: StopPolicy = CUT_AT_ONCE,
        limit: float | None = None,
    ) -> Work[Any]:  # Any: the result type is known in `start`
        """Make a piece of work for `start`. In between, the caller sets what a stop of the work does."""
        work: Work[Any] = Work(name, path, clock=self.clock, ladder=ladder, stop_policy=stop_policy)
        work.on_end = on_end
        if limit is not None:
            work.stop_at(self.clock.now() + limit)
        return work

    def start(self, work: Work[T], make: Callable[[], Awaitable[T]], context: Context) -> None:
        """Run the first step of a prepared piece of work; it may have its outcome when this returns."""
        work.task = self.spawn_eagerly(work.guard(make), work.path, context)


async def wind_down(ladder: Ladder) -> None:
    """End everything that is left on a loop of our own before it is closed; never wait longer than the ladder allows.

    Runs close themselves. Tasks that a tool left running get the treatment of a cut task, then they are disowned. The
    threads of an executor are not waited for: closing the loop releases them.
    """
    supervisor = Supervisor.current()
    for task in _other_tasks():
        task.cancel()
    with suppress(TimeoutError):
        async with asyncio.timeout(ladder.cap):
            for root in tuple(supervisor.roots.values()):
                await root.ended.wait()
    await _part_with(_other_tasks(), ladder.task)
    generators = asyncio.get_running_loop().shutdown_asyncgens()
    await _part_with({supervisor.spawn(generators, "generators", None)}, ladder.task)
    await _part_with(_other_tasks(), 0)


async def _part_with(tasks: set[asyncio.Task[Any]], seconds: float) -> None:  # Any: any task
    if tasks:
        _, stubborn = await asyncio.wait(tasks, timeout=seconds)
        for task in stubborn:
            disown(task)


def _other_tasks() -> set[asyncio.Task[Any]]:
    return {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}


_supervisors: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Supervisor] = weakref.WeakKeyDictionary()

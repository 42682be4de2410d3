"""Work that did not stop: abandoned, listed by name, and no longer awaited.

An orphan does not hold the process: its thread is a daemon, its task is off asyncio's own list. What it still does is
recorded on the orphan and nowhere else.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from safepoint._core.clock import Clock
from safepoint._core.ladder import Rung
from safepoint._core.stacks import suspended, task_stack, thread_stack

# Strong references, so that an abandoned task is not collected while it still runs.
_running: set[Orphan] = set()


class Orphan:
    """One abandoned piece of work. `still_running`, `returned`, `result`, `age` and `stack` report the present."""

    def __init__(self, name: str, path: str, *, clock: Clock, task: asyncio.Task[None]) -> None:
        self.name = name
        self.path = path
        self.rung = Rung.ABANDON
        self.thread: threading.Thread | None = None
        self.error: BaseException | None = None
        self._clock = clock
        self._task = task
        self._since = clock.now()
        self._done = False
        self._returned = False
        self._result: object = None
        self._on_late: Callable[[Orphan], None] | None = None
        _running.add(self)

    @property
    def still_running(self) -> bool:
        return not self._done

    @property
    def age(self) -> float:
        """Seconds since it was abandoned."""
        return self._clock.now() - self._since

    @property
    def returned(self) -> bool:
        """Whether it returned in the end. Work that was cancelled or raised has no result."""
        return self._returned

    @property
    def result(self) -> object:
        """The value it returned in the end, if it did; the value never reaches the ended run."""
        return self._result

    @property
    def matters(self) -> bool:
        """Whether there is anything to report: it still runs, or it returned a result."""
        return not self._done or self._returned

    def stack(self) -> str:
        """Where its code is now; empty once it has ended."""
        if self._done:
            return ""
        if self.thread is not None:
            return thread_stack(self.thread.ident or 0)
        return task_stack(self._task)

    def returned_late(self, result: object) -> None:
        """Record the value that the work returned after it was abandoned."""
        self._returned, self._result = True, result
        self.ended_late(None)

    def ended_late(self, error: BaseException | None) -> None:
        """Record that the work has ended: if it did not return, by this error or by its cancellation."""
        self._done, self.error = True, error
        _running.discard(self)
        self._tell_late()

    def when_late(self, call: Callable[[Orphan], None]) -> None:
        """Call it once the abandoned work has ended; at once if it has ended already."""
        self._on_late = call
        if self._done:
            self._tell_late()

    def _tell_late(self) -> None:
        call, self._on_late = self._on_late, None
        if call is not None:
            call(self)

    def __repr__(self) -> str:
        return f"<Orphan {self.name!r} at {self.path}, {'running' if self.still_running else 'ended'}>"


def disown(task: asyncio.Task[Any]) -> None:  # Any: also tasks that a tool left running
    """Take a task off asyncio's lists, so that `asyncio.run` neither waits for it nor closes its generators."""
    asyncio.tasks._unregister_task(task)  # pyright: ignore[reportPrivateUsage]  # the only way; 3.11 to 3.14 have it
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # a known orphan is no surprise at exit
    generators: set[object] = getattr(task.get_loop(), "_asyncgens", set())  # only asyncio's own loops have it
    for awaited, _ in suspended(task):
        generators.discard(awaited)

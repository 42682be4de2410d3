"""A one-way switch that any number of tasks, loops and threads can wait for. It takes no lock.

A waiter adds itself, then looks again; `set` raises the flag, then empties the list. Whichever order two threads
take, one of them sees the other.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from safepoint._core.wake import call_soon, in_step_of


class Latch:
    __slots__ = ("_waiters", "is_set")

    def __init__(self) -> None:
        self.is_set = False
        self._waiters: deque[Callable[[], object]] = deque()

    def set(self) -> None:
        """Everybody is told, also if telling one of them raises; then that is raised."""
        self.is_set = True
        failed: BaseException | None = None
        while self._waiters:
            try:
                call = self._waiters.popleft()
            except IndexError:  # another thread has emptied the list with us
                break
            try:
                call()
            except BaseException as error:
                failed = failed or error
        if failed is not None:
            raise failed

    def when_set(self, call: Callable[[], object]) -> None:
        """Call it once the latch is set, in the thread that sets it; at once if that has happened."""
        self._waiters.append(call)
        if self.is_set:
            self.set()

    async def wait(self) -> None:
        """Wait without a limit. Cancellation: only this waiter leaves."""
        if self.is_set:
            return
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        finish = partial(_finish, future)

        def wake() -> None:
            if in_step_of(loop):
                finish()
            else:
                call_soon(loop, finish)  # if that loop is closed, nobody waits there any more

        self.when_set(wake)
        try:
            await future
        except asyncio.CancelledError:
            with suppress(ValueError):  # the latch was set in this very moment
                self._waiters.remove(wake)
            raise

    def wait_sync(self, timeout: float | None = None) -> bool:
        """Block this thread; False if the time ran out."""
        event = threading.Event()
        wake = event.set
        self.when_set(wake)
        if event.wait(timeout):
            return True
        with suppress(ValueError):  # the latch was set in this very moment
            self._waiters.remove(wake)
        return event.is_set()


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():  # the waiter has left, or was told already
        future.set_result(None)

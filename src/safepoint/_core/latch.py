"""A one-way switch that any number of tasks, loops and threads can wait for. It takes no lock.

A waiter adds itself, then checks the flag again; `set` raises the flag, then empties the list. In whichever order two
threads run, one of them sees the other.
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
        """Wake every waiter, even if one of the calls raises; the error is raised at the end."""
        self.is_set = True
        failed: BaseException | None = None
        while self._waiters:
            try:
                call = self._waiters.popleft()
            except IndexError:  # another thread is emptying the list too
                break
            try:
                call()
            except BaseException as error:
                failed = failed or error
        if failed is not None:
            raise failed

    def when_set(self, call: Callable[[], object]) -> None:
        """Call it once the latch is set, in the thread that sets it; at once if the latch is set already."""
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
                call_soon(loop, finish)  # a closed loop has no waiters left

        self.when_set(wake)
        try:
            await future
        except asyncio.CancelledError:
            with suppress(ValueError):  # `set` removed it first
                self._waiters.remove(wake)
            raise

    def wait_sync(self, timeout: float | None = None) -> bool:
        """Block this thread; False if the time ran out."""
        event = threading.Event()
        wake = event.set
        self.when_set(wake)
        if event.wait(timeout):
            return True
        with suppress(ValueError):  # `set` removed it first
            self._waiters.remove(wake)
        return event.is_set()


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():  # the waiter may have left or been woken already
        future.set_result(None)

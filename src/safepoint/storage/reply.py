"""How a thread of ours answers an event loop: a storage's work goes on whatever becomes of the caller, or of its loop.

Daemon threads of our own, so that a disk or a network that hangs holds neither the loop nor the exit of the process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

from safepoint._core.clock import current_clock

T = TypeVar("T")


class Reply(Generic[T]):
    """The future that a caller waits for. Make it on the caller's loop; `succeed` and `fail` belong to the thread.

    `is_told`: the reply has come to the loop, also if the caller's future was cancelled before.
    """

    def __init__(self, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[T] = self._loop.create_future()
        self.is_told = False
        self._outside = current_clock().outside(name)

    def ask_again(self) -> asyncio.Future[T]:
        """Another future for the same reply, for a caller whose first one was cancelled. Call it on that loop."""
        self.future = self._loop.create_future()
        return self.future

    def succeed(self, value: T) -> None:
        self._tell(self._set, value)

    def fail(self, error: BaseException) -> None:
        self._tell(self._set_error, error)

    def _tell(self, settle: Callable[..., None], *args: object) -> None:
        with suppress(RuntimeError):  # that loop was closed: its callers are gone
            self._loop.call_soon_threadsafe(settle, *args)
        self._outside.done()

    def _set(self, value: T) -> None:
        self.is_told = True
        if not self.future.done():
            self.future.set_result(value)

    def _set_error(self, error: BaseException) -> None:
        self.is_told = True
        if not self.future.done():
            self.future.set_exception(error)

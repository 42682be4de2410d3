"""How a thread that owns a SQLite connection answers an event loop.

Daemon threads of our own, so that a disk that hangs holds neither the loop nor the exit of the process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar

from safepoint._core.clock import current_clock

T = TypeVar("T")


class Job(Generic[T]):
    """One function of a connection, and the future that its caller waits for.

    `in_transaction`: if not, the function is called without a connection, in the thread that owns one.
    """

    def __init__(self, function: Callable[[Any], T], name: str, *, in_transaction: bool = True) -> None:
        self.in_transaction = in_transaction
        self._loop = asyncio.get_running_loop()
        self.function = function
        self.future: asyncio.Future[T] = self._loop.create_future()
        self._outside = current_clock().outside(name)

    def succeed(self, value: T) -> None:
        """Call it in the thread, as `fail`."""
        self._tell(self._set, value)

    def fail(self, error: BaseException) -> None:
        self._tell(self._set_error, error)

    def _tell(self, settle: Callable[..., None], *args: object) -> None:
        with suppress(RuntimeError):  # that loop was closed: its callers are gone
            self._loop.call_soon_threadsafe(settle, *args)
        self._outside.done()

    def _set(self, value: T) -> None:
        if not self.future.done():
            self.future.set_result(value)

    def _set_error(self, error: BaseException) -> None:
        if not self.future.done():
            self.future.set_exception(error)

"""One thread that owns a SQLite connection and does everything in order: the one writer.

A daemon thread of our own, so that a disk that hangs holds neither the loop nor the exit of the process. A caller that
is cancelled stops waiting; what it asked for still happens whole, in its turn. Between the jobs it keeps a beat, for
claims that have to be renewed although nobody writes: by real time, which goes on whatever a loop's own clock does.
"""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeAlias, TypeVar

from safepoint._core.clock import Outside, current_clock
from safepoint.errors import StoreError

T = TypeVar("T")
_Job: TypeAlias = Callable[["_OpenFile"], None]
# What is to be renewed, if anything.
Beat: TypeAlias = Callable[[], "Callable[[sqlite3.Connection], object] | None"]


class Worker:
    """Runs functions of a connection, one after the other; and every so many seconds what `beat` gives."""

    def __init__(
        self, connect: Callable[[], sqlite3.Connection], name: str, beat: Beat | None = None, every: float = 0.0
    ) -> None:
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._connect = connect
        self._closed = False
        self._beat = beat
        self._every = every
        self._due = time.monotonic() + every
        self._thread = threading.Thread(target=self._work, name=f"safepoint:{name}", daemon=True)
        self._thread.start()

    async def call(self, function: Callable[[sqlite3.Connection], T]) -> T:
        """The function's result, in one transaction. Cancellation: only the waiting ends; it still happens whole."""
        if self._closed:
            raise StoreError("the store is closed")
        return await self._ask(function)

    def _ask(self, function: Callable[[sqlite3.Connection], T]) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        outside = current_clock().outside("sqlite")

        def job(file: _OpenFile) -> None:
            try:
                value = _in_transaction(file, function)
            except BaseException as error:  # it belongs to whoever asked, not to this thread
                _tell(loop, outside, _fail, future, error)
            else:
                _tell(loop, outside, _succeed, future, value)

        self._jobs.put(job)
        return future

    async def aclose(self) -> None:
        """Finish what was asked for and end the thread. Cancellation: only the waiting ends."""
        if not self._closed:
            last = self._ask(lambda connection: connection.execute("SELECT 1").fetchall())
            self._closed = True
            self._jobs.put(None)
            with suppress(StoreError):  # it could not even be opened, so there is nothing to finish
                await last

    def _work(self) -> None:
        open_file = _OpenFile(self._connect)
        try:
            while (job := self._next(open_file)) is not None:
                job(open_file)
        finally:
            open_file.close()

    def _next(self, file: _OpenFile) -> _Job | None:
        if self._beat is None:
            return self._jobs.get()
        while True:
            left = self._due - time.monotonic()
            if left <= 0:
                left, self._due = self._every, time.monotonic() + self._every
                if (renew := self._beat()) is not None:
                    with suppress(StoreError):  # the next beat tries again, long before a lease is over
                        _in_transaction(file, renew)
            with suppress(queue.Empty):
                return self._jobs.get(timeout=left)


class _OpenFile:
    """The connection, opened by the first job that needs it; one that failed to open is tried again by the next."""

    def __init__(self, connect: Callable[[], sqlite3.Connection]) -> None:
        self._connect = connect
        self._connection: sqlite3.Connection | None = None

    def get(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = self._connect()
        return self._connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


def _in_transaction(file: _OpenFile, function: Callable[[sqlite3.Connection], T]) -> T:
    try:
        connection = file.get()
    except sqlite3.Error as error:
        raise StoreError(f"the session store could not be opened: {error}") from error
    try:
        connection.execute("BEGIN IMMEDIATE")
        value = function(connection)
        connection.execute("COMMIT")
    except BaseException as error:
        with suppress(sqlite3.Error):  # the transaction may never have begun
            connection.execute("ROLLBACK")
        if isinstance(error, sqlite3.Error):
            raise StoreError(f"the session store failed: {error}") from error
        raise
    return value


def _tell(loop: asyncio.AbstractEventLoop, outside: Outside, settle: Callable[..., None], *args: object) -> None:
    with suppress(RuntimeError):  # that loop was closed; nobody waits there any more
        loop.call_soon_threadsafe(settle, *args)
    outside.done()


def _succeed(future: asyncio.Future[T], value: T) -> None:
    if not future.done():
        future.set_result(value)


def _fail(future: asyncio.Future[object], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)

"""The reader of a SQLite storage: a connection of its own in a thread of its own.

In WAL mode a reader sees the last commit and waits for no writer, whichever process has the write lock.
"""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from safepoint.errors import StoreError
from safepoint.storage.sqlite.database_file import DatabaseFile
from safepoint.storage.sqlite.jobs import Job

T = TypeVar("T")


class Reader:
    """Runs functions of its connection, each on one snapshot of the file."""

    def __init__(self, file: DatabaseFile, name: str) -> None:
        self._file = file
        self._jobs: queue.SimpleQueue[Job[Any] | None] = queue.SimpleQueue()  # Any: of every result
        self.closed = threading.Event()
        threading.Thread(target=self._work, name=f"safepoint:{name}", daemon=True).start()

    def submit(self, function: Callable[[sqlite3.Connection], T]) -> asyncio.Future[T]:
        """Call it on a loop."""
        job = Job(function, "sqlite")
        self._jobs.put(job)
        return job.future

    def close(self) -> None:
        """Finish what was submitted, close the file and end the thread, which sets `closed`."""
        self._jobs.put(None)

    def verify(self) -> asyncio.Future[None]:
        """Look whether the file is there now. Raises `StoreError`."""

        def work(db: sqlite3.Connection) -> None:
            self._file.verify()

        return self.submit(work)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                value = self._run(job)
            except sqlite3.Error as error:
                failure = StoreError(f"the session store failed: {error}")
                failure.__cause__ = error
                job.fail(failure)
            except BaseException as error:  # it is the caller's, and not this thread's
                job.fail(error)
            else:
                job.succeed(value)
        self._file.close()
        self.closed.set()

    def _run(self, job: Job[T]) -> T:
        db = self._file.get()
        db.execute("BEGIN")
        try:
            return job.function(db)
        finally:
            with suppress(sqlite3.Error):  # an error may have ended it
                db.execute("ROLLBACK")

"""The one writer of a SQLite storage: a thread that owns a connection and commits units of work in order.

Group commit: units that the loop submits in one pass, and those that have come while the thread was busy, share one
transaction. Each has a savepoint of its own, so one that fails takes only itself back. A caller that is cancelled
stops waiting; its unit still happens whole, in its turn. Between the units the thread renews the worker's lease, by
real time, which goes on whatever a loop's own clock does.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias, TypeVar

from safepoint.errors import StoreError
from safepoint.storage.reply import Answer, tell
from safepoint.storage.sqlite.database_file import DatabaseFile
from safepoint.storage.sqlite.jobs import Job

T = TypeVar("T")
Work: TypeAlias = Callable[[sqlite3.Connection], T]
AnyJob: TypeAlias = Job[Any]  # Any: of every result

# What shares one transaction at most: so many units are taken back if the commit fails.
_TOGETHER = 64


class Writer:
    """`renew` is called every so many seconds, in a transaction that `transactions` does not count."""

    def __init__(self, file: DatabaseFile, name: str, renew: Work[object], every: float) -> None:
        self._file = file
        self._renew = renew
        self._every = every
        self._due = time.monotonic() + every
        # The hand-over is in C: a `threading.Condition` took longer than some of the statements.
        self._queue: SimpleQueue[list[AnyJob]] = SimpleQueue()
        # Of the thread alone: what it has taken from the queue and not done yet, and whether nothing more comes.
        self._waiting: deque[AnyJob] = deque()
        self._ends = False
        # What the loops have submitted in their present pass.
        self._gathered: dict[asyncio.AbstractEventLoop, list[AnyJob]] = {}
        self.transactions = 0
        threading.Thread(target=self._work, name=f"safepoint:{name}", daemon=True).start()

    def submit(self, function: Work[T]) -> Job[T]:
        """Its future has the function's result, once that is committed. Call it on a loop."""
        job, loop = Job(function, "sqlite"), asyncio.get_running_loop()
        if loop in self._gathered:
            self._gathered[loop].append(job)
        else:
            self._gathered[loop] = [job]
            loop.call_soon(self._flush, loop)
        return job

    def open(self) -> asyncio.Future[object]:
        """Open the file, and bring it up to date, without a transaction."""
        return self._alone(self._file.open)

    def close(self, last: Work[object]) -> asyncio.Future[object]:
        """Finish what was submitted, call `last` without a transaction, close the file and end the thread."""
        for loop in tuple(self._gathered):
            self._flush(loop)

        def work() -> None:
            with suppress(StoreError, sqlite3.Error):  # then the next process that opens the file does it
                if self._file.is_open:
                    last(self._file.get())
            self._file.close()
            self._ends = True

        return self._alone(work)

    def _alone(self, function: Callable[[], object]) -> asyncio.Future[object]:
        job = Job(lambda _: function(), "sqlite", in_transaction=False)
        self._put([job])
        return job.future

    def _flush(self, loop: asyncio.AbstractEventLoop) -> None:
        self._put(self._gathered.pop(loop, []))

    def _put(self, jobs: list[AnyJob]) -> None:
        self._queue.put(jobs)

    # -- in the thread -------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while batch := self._next():
            if batch[0].in_transaction:
                self._commit(batch)
                continue
            try:
                value = batch[0].function(None)
            except BaseException as error:  # it is the caller's, and not this thread's
                batch[0].fail(error)
            else:
                batch[0].succeed(value)
        self._file.close()

    def _next(self) -> list[AnyJob]:
        """What is to be done together; nothing once the writer has ended."""
        while True:
            left = self._due - time.monotonic()
            self._collect(left if not self._waiting and not self._ends else 0.0)
            if self._waiting:
                return self._take()
            if self._ends:
                return []
            if self._due <= time.monotonic():
                self._due = time.monotonic() + self._every
                self._renew_lease()

    def _collect(self, seconds: float) -> None:
        """Take all there is; if that is nothing, wait so long for some."""
        with suppress(Empty):
            if seconds > 0:
                self._waiting.extend(self._queue.get(timeout=seconds))
            while True:
                self._waiting.extend(self._queue.get_nowait())

    def _take(self) -> list[AnyJob]:
        waiting = self._waiting
        batch = [waiting.popleft()]
        while batch[0].in_transaction and len(batch) < _TOGETHER and waiting and waiting[0].in_transaction:
            batch.append(waiting.popleft())
        return batch

    def _renew_lease(self) -> None:
        if not self._file.is_open:
            return
        with suppress(StoreError, sqlite3.Error):  # the next time is long before the lease is over
            db = self._file.get()
            db.execute("BEGIN IMMEDIATE")
            try:
                self._renew(db)
                db.execute("COMMIT")
            except BaseException:
                db.execute("ROLLBACK")
                raise

    def _commit(self, batch: list[AnyJob]) -> None:
        try:
            done = self._try(batch, self._file.get())
        except BaseException as error:  # it is theirs who wait, and not this thread's
            failure = StoreError(f"the session store failed: {error}") if isinstance(error, sqlite3.Error) else error
            failure.__cause__ = error if failure is not error else error.__cause__
            tell([(job, None, failure) for job in batch])
            return
        tell(done)

    def _try(self, batch: list[AnyJob], db: sqlite3.Connection) -> list[Answer]:
        """What each unit has come to, once all that succeeded is committed. Raises if nothing of it is."""
        done: list[Answer] = []
        try:
            # IMMEDIATE waits for other writers here. A transaction that began by reading would fail at its first write
            # if another process had written in between, without waiting.
            db.execute("BEGIN IMMEDIATE")
            for job in batch:
                done.append(_run(job, db, alone=len(batch) == 1))
            if all(error is not None for _, _, error in done):
                db.execute("ROLLBACK")
            else:
                db.execute("COMMIT")
                self.transactions += 1
        except BaseException:
            with suppress(sqlite3.Error):  # the transaction may never have begun
                db.execute("ROLLBACK")
            raise
        return done


def _run(job: AnyJob, db: sqlite3.Connection, *, alone: bool) -> Answer:
    """Raises if the error has ended the whole transaction: a full disk does that."""
    # A unit that is alone can be taken back with its transaction: that saves two statements.
    if not alone:
        db.execute("SAVEPOINT unit")
    try:
        value = job.function(db)
    except BaseException as error:
        if not db.in_transaction:
            raise
        if not alone:
            db.execute("ROLLBACK TO unit")
            db.execute("RELEASE unit")
        if isinstance(error, sqlite3.Error):
            failure = StoreError(f"the session store failed: {error}")
            failure.__cause__ = error
            return job, None, failure
        return job, None, error
    if not alone:
        db.execute("RELEASE unit")
    return job, value, None

"""A storage in one SQLite file: WAL, one writer per process and a reader beside it.

Readers wait for no writer. Everything that belongs together is one transaction. The file is readable by its owner
only; when the last process has closed it in order, it is one file without side files.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from safepoint._core.asks import is_seconds
from safepoint.errors import StoreError
from safepoint.storage import operations as op
from safepoint.storage.changes import Changes, Subscription
from safepoint.storage.lease import LEASE, Lease
from safepoint.storage.operations import Query, Statement
from safepoint.storage.parts import Audit, Freezes, Loops, Runs, Sessions, Shared
from safepoint.storage.peers import PEER_ADDRESS, PeerAddress
from safepoint.storage.sqlite import loop_rows, operator_rows, run_rows, session_rows, shared_rows
from safepoint.storage.sqlite.database_file import DatabaseFile
from safepoint.storage.sqlite.jobs import Job
from safepoint.storage.sqlite.reader import Reader
from safepoint.storage.sqlite.schema import VERSION, prepare, read_version
from safepoint.storage.sqlite.unit import Statements, Unit, forget_workers, renew
from safepoint.storage.sqlite.writer import Writer

T = TypeVar("T")

_READS = 5.0  # for those that are under way when the storage is closed

_STATEMENTS: Statements = {
    **session_rows.STATEMENTS,
    **run_rows.STATEMENTS,
    **shared_rows.STATEMENTS,
    **loop_rows.STATEMENTS,
    **operator_rows.STATEMENTS,
}


class _NotReady(Exception):
    """The file has to be made, or brought up to date, by the writer first."""


class SqliteStorage:
    """`SqliteStorage("safepoint.db")`. Many processes may use one file.

    `timeout`: seconds to wait for another process that holds the file's write lock before that is a `StoreError`.
    `synchronous`: `"NORMAL"` survives the end of the process, however it comes; `"FULL"` survives a power cut too, and
    waits for the disk at every commit. `lease`: how many seconds a process of another machine, or of another pid
    namespace, may be silent before its runs are taken over, by this `clock`.
    """

    durable = True

    def __init__(
        self,
        path: str | Path,
        *,
        timeout: float = 10.0,
        synchronous: Literal["NORMAL", "FULL"] = "NORMAL",
        lease: float = LEASE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        for name, seconds in (("timeout", timeout), ("lease", lease)):
            if not is_seconds(seconds):
                raise ValueError(f"{type(self).__name__}({name}={seconds!r}): write a number of seconds above 0")
        if synchronous not in ("NORMAL", "FULL"):
            raise ValueError(f'{type(self).__name__}(synchronous={synchronous!r}): write "NORMAL" or "FULL"')
        self._path = Path(path)
        self._timeout = timeout
        self._synchronous = synchronous
        self._lease = Lease(lease, clock=clock)
        self.worker = self._lease.worker
        self.sessions = Sessions(self)
        self.runs = Runs(self)
        self.shared = Shared(self)
        self.freezes = Freezes(self)
        self.audit = Audit(self)
        self.loops = Loops(self)
        self._changes = Changes(self._stamp)
        self._closed = False
        # Writes under way whose callers were cancelled, and the sessions that they change.
        self._left: dict[asyncio.Future[Any], set[str]] = {}  # Any: of every result
        _make_private(self._path)
        renewal = partial(renew, lease=self._lease)
        writing, reading = (DatabaseFile(self._path, connect) for connect in (self._connect, self._connect_reader))
        self._writer = Writer(writing, f"sqlite {self._path.name}", renewal, self._lease.renew_every)
        self._reader = Reader(reading, f"sqlite reader {self._path.name}")

    @property
    def transactions(self) -> int:
        """How many write transactions were committed; renewals of the lease are not counted."""
        return self._writer.transactions

    async def commit(self, *statements: Statement[Any]) -> tuple[Any, ...]:  # Any: a result for each
        """Cancellation: only the waiting ends; the unit of work still happens, whole."""
        self._refuse_closed()
        job = self._writer.submit(partial(_run, statements, self._lease))
        try:
            results = await job.future
        except asyncio.CancelledError:
            self._leave(job, statements)
            raise
        self._changes.publish(statements, results)
        return results

    def _leave(self, job: Job[Any], statements: Iterable[Statement[Any]]) -> None:  # Any: results
        """The caller waits no more: the next reader of those sessions does."""
        if job.is_told:
            return
        # The caller's future ended with the caller. A shield would spare it, for a pass of the loop in every commit.
        future = job.ask_again()
        self._left[future] = {each.session_id for each in statements if isinstance(each, _OF_SESSION)}

        def done(future: asyncio.Future[Any]) -> None:  # Any: of every result
            del self._left[future]
            if not future.cancelled():
                future.exception()  # no caller is there to hear of it

        future.add_done_callback(done)

    async def read(self, query: Query[T]) -> T:
        """Cancellation: nothing has changed."""
        self._refuse_closed()
        if self._left and isinstance(query, op.LoadSession | op.ListSessions | op.SessionStates):
            await self._wait_for_left(query.session_id if isinstance(query, op.LoadSession) else None)
        return cast("T", await self._look(partial(_read, query, self._lease)))

    async def _look(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Cancellation: nothing has changed."""
        try:
            return await self._reader.submit(work)
        except _NotReady:
            await self._writer.open()
            return await self._reader.submit(work)

    def publish_peer(self, address: PeerAddress | None) -> None:
        self._lease.peer = None if address is None else PEER_ADDRESS.encode(address).decode()

    async def peer_of(self, worker: str) -> PeerAddress | None:
        """Cancellation: nothing has changed."""
        self._refuse_closed()
        found = await self._look(partial(_peer_of, worker))
        return None if found is None else PEER_ADDRESS.decode(found)

    async def _wait_for_left(self, session_id: str | None) -> None:
        """Calls for one session take effect in call order, also if the caller of an earlier one was cancelled."""
        loop = asyncio.get_running_loop()
        before = {each for each, ids in self._left.items() if session_id in ids or (session_id is None and ids)}
        before = {each for each in before if each.get_loop() is loop}
        if before:
            await asyncio.wait(before)

    def changes(
        self,
        *,
        run: str | None = None,
        session: str | None = None,
        worker: str | None = None,
        topic: str | None = None,
        every: float = 0.05,
    ) -> Subscription:
        return self._changes.subscribe(run=run, session=session, worker=worker, topic=topic, every=every)

    async def _stamp(self) -> object:
        """What differs after any connection but the reader's has committed."""
        self._refuse_closed()
        return await self._look(_data_version)

    async def check(self) -> None:
        """Raise `StoreError` if the file cannot be opened, or is gone. Cancellation: nothing has changed."""
        await self.read(op.GetRun(""))
        await self._reader.verify()

    async def aclose(self) -> None:
        """Finish what was submitted and close the file. Cancellation: only the waiting ends."""
        if not self._closed:
            self._closed = True
            # Both are told at once, as the caller may be cancelled. The writer is the last to close: only the last
            # connection can put everything into the one file.
            self._reader.close()
            await asyncio.shield(self._writer.close(self._tidy))

    def _refuse_closed(self) -> None:
        if self._closed:
            raise StoreError("the store is closed")

    def _tidy(self, db: sqlite3.Connection) -> None:
        """In the writer's thread."""
        self._reader.closed.wait(_READS)
        forget_workers(db)
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    # -- connections, each used in one thread --------------------------------------------------------------------------

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, timeout=self._timeout, isolation_level=None)
        try:
            read_version(connection)  # a file of a later version is left alone
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute(f"PRAGMA synchronous={self._synchronous}")
            prepare(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _connect_reader(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, timeout=self._timeout, isolation_level=None)
        try:
            if read_version(connection) != VERSION:
                raise _NotReady
            connection.execute("PRAGMA query_only=ON")
        except BaseException:
            connection.close()
            raise
        return connection


_OF_SESSION = (
    op.CreateSession,
    op.ClaimSession,
    op.AppendChanges,
    op.ReleaseSession,
    op.AddLateResult,
    op.DeleteSession,
)


def _run(statements: tuple[Statement[Any], ...], lease: Lease, db: sqlite3.Connection) -> tuple[Any, ...]:
    unit = Unit(db, lease)
    for each in statements:
        if isinstance(each, op.AppendChanges) and session_rows.was_written(unit, each):
            return (None,) * len(statements)
    results = tuple([_STATEMENTS[type(each)](unit, each) for each in statements])
    unit.flush()
    return results


def _data_version(db: sqlite3.Connection) -> object:
    return db.execute("PRAGMA data_version").fetchone()


def _read(query: Query[Any], lease: Lease, db: sqlite3.Connection) -> object:  # Any: of every result
    return _STATEMENTS[type(query)](Unit(db, lease), query)


def _peer_of(worker: str, db: sqlite3.Connection) -> str | None:
    found: tuple[str | None] | None = db.execute("SELECT peer FROM workers WHERE id = ?", (worker,)).fetchone()
    return None if found is None else found[0]


def _make_private(path: Path) -> None:
    """The file is ours alone from its first byte on; SQLite gives its side files the same mode."""
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))

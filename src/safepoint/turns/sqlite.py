"""Records of loops in a SQLite file; it may be the one that has the sessions. One loop at a time may use a record.

WAL with `synchronous=NORMAL`: a record that was saved outlives the process, however it dies. A machine that loses its
power may lose the last ones.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

from safepoint._core.asks import is_seconds
from safepoint.errors import StoreCorrupt, StoreError
from safepoint.sessions.owners import LEASE, Owner
from safepoint.sessions.worker import Worker
from safepoint.turns.store import in_use

_TABLES = (
    "CREATE TABLE IF NOT EXISTS turn_loops (id TEXT PRIMARY KEY, record BLOB NOT NULL)",
    """CREATE TABLE IF NOT EXISTS turn_claims (
        id TEXT PRIMARY KEY, owner TEXT NOT NULL, claimant TEXT NOT NULL, renewed REAL NOT NULL)""",
)


class SqliteTurnStore:
    """`SqliteTurnStore("loop.db")`. `timeout`: seconds to wait for another process that holds the file's lock."""

    def __init__(self, path: str | Path, *, timeout: float = 10.0) -> None:
        if not is_seconds(timeout):
            raise ValueError(f"SqliteTurnStore(timeout={timeout!r}): write a number of seconds above 0")
        self._path = Path(path)
        self._timeout = timeout
        os.close(os.open(self._path, os.O_CREAT | os.O_RDWR, 0o600))  # private from its first byte on
        self._owner = str(Owner.this_process())
        # Which records are ours, and for whom; known to the worker's thread alone.
        self._held: dict[str, str] = {}
        self._worker = Worker(self._connect, f"sqlite {self._path.name}", self._beat, LEASE / 3)

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, timeout=self._timeout, isolation_level=None)
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=NORMAL")
            for table in _TABLES:
                connection.execute(table)
        except BaseException:
            connection.close()
            raise
        return connection

    async def load(self, id: str) -> bytes | None:
        """Cancellation: of this and of every other method: what was asked for still happens, whole."""

        def work(db: sqlite3.Connection) -> bytes | None:
            row = db.execute("SELECT record FROM turn_loops WHERE id = ?", (id,)).fetchone()
            return None if row is None else bytes(row[0])

        return await self._worker.call(work)

    async def save(self, id: str, record: bytes) -> None:
        def work(db: sqlite3.Connection) -> None:
            self._check(db, id)
            db.execute("INSERT OR REPLACE INTO turn_loops (id, record) VALUES (?, ?)", (id, record))

        await self._worker.call(work)

    async def delete(self, id: str) -> None:
        def work(db: sqlite3.Connection) -> None:
            self._check(db, id)
            db.execute("DELETE FROM turn_loops WHERE id = ?", (id,))

        await self._worker.call(work)

    async def claim(self, id: str, claimant: str) -> None:
        def work(db: sqlite3.Connection) -> None:
            row = db.execute("SELECT owner, claimant, renewed FROM turn_claims WHERE id = ?", (id,)).fetchone()
            if row is not None and row[1] != claimant:
                holder = _holder(id, row[0])
                if not holder.is_gone(row[2]):
                    raise in_use(id) if row[0] == self._owner else in_use(id, f"in process {holder.pid}")
            values = (id, self._owner, claimant, time.time())
            db.execute("INSERT OR REPLACE INTO turn_claims (id, owner, claimant, renewed) VALUES (?, ?, ?, ?)", values)
            self._held[id] = claimant

        await self._worker.call(work)

    async def release(self, id: str, claimant: str) -> None:
        def work(db: sqlite3.Connection) -> None:
            db.execute("DELETE FROM turn_claims WHERE id = ? AND claimant = ?", (id, claimant))
            if self._held.get(id) == claimant:
                del self._held[id]

        await self._worker.call(work)

    def _check(self, db: sqlite3.Connection, id: str) -> None:
        """A loop that was taken for dead, and comes back, can't spoil what its successor has saved."""
        mine = self._held.get(id)
        if mine is None:
            return
        row = db.execute("SELECT claimant FROM turn_claims WHERE id = ?", (id,)).fetchone()
        if row != (mine,):
            raise StoreError(f"another loop has taken the record {id!r} over; what this one knows was not saved")

    def _beat(self) -> Callable[[sqlite3.Connection], object] | None:
        """What renews our claims; nothing if there are none."""
        rows = [(time.time(), id, claimant) for id, claimant in self._held.items()]
        renew = "UPDATE turn_claims SET renewed = ? WHERE id = ? AND claimant = ?"
        return (lambda db: db.executemany(renew, rows)) if rows else None

    async def aclose(self) -> None:
        """Finish what was asked for and close the file. Cancellation: only the waiting ends."""
        await self._worker.aclose()


def _holder(id: str, text: str) -> Owner:
    try:
        return Owner.parse(text)
    except ValueError as error:
        raise StoreCorrupt(f"who uses the record {id!r} can't be read: {text!r}") from error

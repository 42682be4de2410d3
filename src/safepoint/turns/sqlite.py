"""Turn loops in a SQLite file; it may be the one that has the sessions. One loop at a time may use a record.

WAL with `synchronous=NORMAL`: what was saved outlives the process, however it dies. A machine that loses its power may
lose the last writes.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from safepoint._core.asks import is_seconds
from safepoint.sessions.owners import LEASE, Owner
from safepoint.sessions.worker import Worker
from safepoint.turns.record import decode, encode
from safepoint.turns.sqlite_loops import (
    apply_changes,
    claim_loop,
    create_tables,
    delete_loop,
    open_loop,
    read_loop,
    release_loop,
    renew_claims,
    replace_loop,
)
from safepoint.turns.storage import LoopChange, OpenedLoop


class SqliteTurnStore:
    """`SqliteTurnStore("loop.db")`. `timeout`: seconds to wait for another process that holds the file's lock.

    `load` and `save` have a loop's whole record as bytes, to carry it elsewhere. Cancellation of any method: what was
    asked for still happens, whole.
    """

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
            create_tables(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    # -- what a loop needs (`LoopStorage`) -----------------------------------------------------------------------------

    async def open(self, id: str, claimant: str) -> OpenedLoop:
        def work(db: sqlite3.Connection) -> OpenedLoop:
            opened = open_loop(db, id, self._owner, claimant, time.time())
            self._held[id] = claimant
            return opened

        return await self._worker.call(work)

    async def apply(self, id: str, epoch: int, changes: Sequence[LoopChange]) -> None:
        await self._worker.call(lambda db: apply_changes(db, id, epoch, changes))

    async def release(self, id: str, claimant: str) -> None:
        def work(db: sqlite3.Connection) -> None:
            release_loop(db, id, claimant)
            if self._held.get(id) == claimant:
                del self._held[id]

        await self._worker.call(work)

    def _beat(self) -> Callable[[sqlite3.Connection], object] | None:
        """What renews our claims; nothing if there are none."""
        return partial(renew_claims, held=tuple(self._held.items()), now=time.time()) if self._held else None

    # -- a record as bytes ---------------------------------------------------------------------------------------------

    async def load(self, id: str) -> bytes | None:
        def work(db: sqlite3.Connection) -> bytes | None:
            stored = read_loop(db, id)
            if not stored.empty:
                return encode(stored)
            row = db.execute("SELECT record FROM turn_loops WHERE id = ?", (id,)).fetchone()
            return None if row is None else bytes(row[0])

        return await self._worker.call(work)

    async def save(self, id: str, record: bytes) -> None:
        await self._worker.call(lambda db: replace_loop(db, id, decode(record)))

    async def delete(self, id: str) -> None:
        await self._worker.call(lambda db: delete_loop(db, id))

    async def claim(self, id: str, claimant: str) -> None:
        def work(db: sqlite3.Connection) -> None:
            claim_loop(db, id, self._owner, claimant, time.time())
            self._held[id] = claimant

        await self._worker.call(work)

    async def aclose(self) -> None:
        """Finish what was asked for and close the file. Cancellation: only the waiting ends."""
        await self._worker.aclose()

"""Records of loops in a SQLite file; it may be the one that has the sessions.

WAL with `synchronous=NORMAL`: a record that was saved outlives the process, however it dies. A machine that loses its
power may lose the last ones.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from safepoint._core.asks import is_seconds
from safepoint.sessions.worker import Worker


class SqliteTurnStore:
    """`SqliteTurnStore("loop.db")`. `timeout`: seconds to wait for another process that holds the file's lock."""

    def __init__(self, path: str | Path, *, timeout: float = 10.0) -> None:
        if not is_seconds(timeout):
            raise ValueError(f"SqliteTurnStore(timeout={timeout!r}): write a number of seconds above 0")
        self._path = Path(path)
        self._timeout = timeout
        os.close(os.open(self._path, os.O_CREAT | os.O_RDWR, 0o600))  # private from its first byte on
        self._worker = Worker(self._connect, f"sqlite {self._path.name}")

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, timeout=self._timeout, isolation_level=None)
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=NORMAL")
            connection.execute("CREATE TABLE IF NOT EXISTS turn_loops (id TEXT PRIMARY KEY, record BLOB NOT NULL)")
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
            db.execute("INSERT OR REPLACE INTO turn_loops (id, record) VALUES (?, ?)", (id, record))

        await self._worker.call(work)

    async def delete(self, id: str) -> None:
        def work(db: sqlite3.Connection) -> None:
            db.execute("DELETE FROM turn_loops WHERE id = ?", (id,))

        await self._worker.call(work)

    async def aclose(self) -> None:
        """Finish what was asked for and close the file. Cancellation: only the waiting ends."""
        await self._worker.aclose()

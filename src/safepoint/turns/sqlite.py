"""Records of loops in a SQLite file; it may be the one that has the sessions. One loop at a time may use a record.

WAL with `synchronous=NORMAL`: a record that was saved outlives the process, however it dies. A machine that loses its
power may lose the last ones.
"""

from __future__ import annotations

from pathlib import Path

from safepoint._core.asks import is_seconds
from safepoint.storage.sqlite.storage import SqliteStorage


class SqliteTurnStore:
    """`SqliteTurnStore("loop.db")`. `timeout`: seconds to wait for another process that holds the file's lock."""

    def __init__(self, path: str | Path, *, timeout: float = 10.0) -> None:
        if not is_seconds(timeout):
            raise ValueError(f"SqliteTurnStore(timeout={timeout!r}): write a number of seconds above 0")
        self.storage = SqliteStorage(path, timeout=timeout)

    async def load(self, id: str) -> bytes | None:
        """Cancellation: nothing has changed; of every other method: what was asked for still happens, whole."""
        return await self.storage.loops.load(id)

    async def save(self, id: str, record: bytes) -> None:
        await self.storage.loops.save(id, record)

    async def delete(self, id: str) -> None:
        await self.storage.loops.delete(id)

    async def claim(self, id: str, claimant: str) -> None:
        await self.storage.loops.claim(id, claimant)

    async def release(self, id: str, claimant: str) -> None:
        await self.storage.loops.release(id, claimant)

    async def aclose(self) -> None:
        """Finish what was asked for and close the file. Cancellation: only the waiting ends."""
        await self.storage.aclose()

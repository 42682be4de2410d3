"""Turn loops in a SQLite file, which may also hold the sessions. One loop at a time may use a record.

WAL with `synchronous=NORMAL`: saved data survives the end of the process in every case. A power cut may lose the last
writes.
"""

from __future__ import annotations

from pathlib import Path

from safepoint._core.asks import is_seconds
from safepoint.storage.sqlite.storage import SqliteStorage
from safepoint.turns.store import StorageTurnStore


class SqliteTurnStore(StorageTurnStore):
    """`SqliteTurnStore("loop.db")`. `timeout`: seconds to wait for another process that holds the file's lock."""

    def __init__(self, path: str | Path, *, timeout: float = 10.0) -> None:
        if not is_seconds(timeout):
            raise ValueError(f"SqliteTurnStore(timeout={timeout!r}): write a number of seconds above 0")
        super().__init__(SqliteStorage(path, timeout=timeout))

    async def aclose(self) -> None:
        """Finish the requested writes and close the file. Cancellation: only the waiting ends."""
        await self.storage.aclose()

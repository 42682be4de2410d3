"""Tables that something keeps in the file of a session store: made when they are first needed, by the one writer."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import TypeVar

from safepoint.sessions.sqlite import SqliteStore

T = TypeVar("T")


class Tables:
    """`statements` make them, and do nothing where they are there."""

    def __init__(self, store: SqliteStore, statements: Sequence[str]) -> None:
        self._worker = store.worker
        self._statements = statements
        self._ready = False

    async def call(self, function: Callable[[sqlite3.Connection], T]) -> T:
        """The function's result, in one transaction. Cancellation: it still happens, whole."""
        if not self._ready:
            await self._worker.call(self._make)
            self._ready = True
        return await self._worker.call(function)

    def _make(self, db: sqlite3.Connection) -> None:
        for statement in self._statements:
            db.execute(statement)

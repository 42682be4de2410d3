"""A shelf in the same SQLite file as the sessions, in tables of its own, by the same one writer."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping
from typing import Any

from safepoint.sessions.shelf import Note
from safepoint.sessions.sqlite import SqliteStore
from safepoint.sessions.sqlite_tables import Tables

_TABLES = (
    """CREATE TABLE IF NOT EXISTS shared_values (
        place TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (place, name)) WITHOUT ROWID""",
    """CREATE TABLE IF NOT EXISTS session_notes (
        number INTEGER PRIMARY KEY AUTOINCREMENT, session TEXT NOT NULL, at REAL NOT NULL, body TEXT NOT NULL)""",
    "CREATE INDEX IF NOT EXISTS session_notes_by_session ON session_notes (session)",
)


class SqliteShelf:
    """`SqliteShelf(store)`: in the store's file, by its one writer. Close the store, not this."""

    def __init__(self, store: SqliteStore) -> None:
        self._tables = Tables(store, _TABLES)

    async def shared(self, places: Iterable[str]) -> dict[str, Any]:  # Any: as above
        """Cancellation: of this and of every other method: it still happens, whole."""
        given = tuple(places)
        query = f"SELECT name, value FROM shared_values WHERE place IN ({', '.join('?' * len(given))})"
        rows = await self._tables.call(lambda db: db.execute(query, given).fetchall())
        return {str(name): json.loads(value) for name, value in rows}

    async def share(self, place: str, delta: Mapping[str, Any]) -> None:  # Any: as above
        kept = [(place, name, json.dumps(value)) for name, value in delta.items() if value is not None]
        gone = [(place, name) for name, value in delta.items() if value is None]

        def work(db: sqlite3.Connection) -> None:
            db.executemany("INSERT OR REPLACE INTO shared_values (place, name, value) VALUES (?, ?, ?)", kept)
            db.executemany("DELETE FROM shared_values WHERE place = ? AND name = ?", gone)

        await self._tables.call(work)

    async def note(self, session: str, note: Note) -> None:
        row = (session, note.at, json.dumps(dict(note.body)))
        query = "INSERT INTO session_notes (session, at, body) VALUES (?, ?, ?)"
        await self._tables.call(lambda db: db.execute(query, row))

    async def notes(self, session: str) -> list[Note]:
        query = "SELECT at, body FROM session_notes WHERE session = ? ORDER BY number"
        rows = await self._tables.call(lambda db: db.execute(query, (session,)).fetchall())
        return [Note(float(at), json.loads(body)) for at, body in rows]

    async def forget(self, session: str) -> None:
        await self._tables.call(lambda db: db.execute("DELETE FROM session_notes WHERE session = ?", (session,)))

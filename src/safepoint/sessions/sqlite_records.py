"""Records of runs in the same SQLite file as the sessions, in tables of their own."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safepoint.sessions.records import RecordMoved, RunRecord, RunState, moved, repeated
from safepoint.sessions.sqlite import make_private
from safepoint.sessions.worker import Worker

_SCHEMA = """
CREATE TABLE IF NOT EXISTS run_records (
    run_id TEXT PRIMARY KEY, session TEXT NOT NULL, state TEXT NOT NULL, created_at REAL NOT NULL,
    owner TEXT NOT NULL, request TEXT NOT NULL, key TEXT, digest TEXT, started_at REAL, ended_at REAL,
    outcome TEXT, reason TEXT);
CREATE INDEX IF NOT EXISTS run_records_by_session ON run_records (session, created_at);
CREATE INDEX IF NOT EXISTS run_records_open ON run_records (created_at) WHERE state != 'ended';
CREATE TABLE IF NOT EXISTS session_marks (session TEXT PRIMARY KEY, at REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS run_intents (
    number INTEGER PRIMARY KEY AUTOINCREMENT, run_id TEXT NOT NULL, ask TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS run_intents_by_run ON run_intents (run_id);
"""
_COLUMNS = "run_id, session, state, created_at, owner, request, key, digest, started_at, ended_at, outcome, reason"


class SqliteRunBook:
    """`SqliteRunBook("data.db")`, next to a `SqliteStore` on the same file."""

    durable = True

    def __init__(self, path: str | Path, *, timeout: float = 10.0) -> None:
        self._path = Path(path)
        self._timeout = timeout
        make_private(self._path)
        self._worker = Worker(self._connect, f"sqlite records {self._path.name}")

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, timeout=self._timeout, isolation_level=None)
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=NORMAL")
            connection.executescript(_SCHEMA)
        except BaseException:
            connection.close()
            raise
        return connection

    async def accept(self, record: RunRecord, *, since: float) -> RunRecord:
        """Cancellation: of this and of every other method: it still happens, whole."""

        def work(db: sqlite3.Connection) -> RunRecord:
            if record.key is not None:
                query = f"SELECT {_COLUMNS} FROM run_records WHERE session = ? AND key = ? AND created_at >= ?"
                row = db.execute(query, (record.session, record.key, since)).fetchone()
                if row is not None:
                    return repeated(_read(row), record)
            _write(db, record)
            return record

        return await self._worker.call(work)

    async def move(self, run_id: str, state: RunState, **changes: Any) -> RunRecord:  # Any: fields of the record
        def work(db: sqlite3.Connection) -> RunRecord:
            known = _get(db, run_id)
            if known is None:
                raise RecordMoved(f"there is no run {run_id}")
            record = moved(known, state, changes)
            _write(db, record)
            return record

        return await self._worker.call(work)

    async def get(self, run_id: str) -> RunRecord | None:
        return await self._worker.call(lambda db: _get(db, run_id))

    async def find(self, *, session: str | None = None, prefix: str = "", limit: int = 1000) -> list[RunRecord]:
        where, values = ("session = ?", [session]) if session is not None else ("substr(session, 1, ?) = ?", None)
        query = f"SELECT {_COLUMNS} FROM run_records WHERE {where} ORDER BY created_at DESC LIMIT ?"
        given: list[object] = [*(values if values is not None else (len(prefix), prefix)), limit]
        rows = await self._worker.call(lambda db: db.execute(query, given).fetchall())
        return [_read(row) for row in rows]

    async def left_open(self, owner: str) -> list[RunRecord]:
        query = f"SELECT {_COLUMNS} FROM run_records WHERE state != 'ended' AND owner != ? ORDER BY created_at"
        rows = await self._worker.call(lambda db: db.execute(query, (owner,)).fetchall())
        return [_read(row) for row in rows]

    async def intend(self, run_id: str, ask: Mapping[str, Any]) -> None:  # Any: JSON values
        row = (run_id, json.dumps(dict(ask)))
        await self._worker.call(lambda db: db.execute("INSERT INTO run_intents (run_id, ask) VALUES (?, ?)", row))

    async def intents(self, run_id: str) -> list[Mapping[str, Any]]:  # Any: JSON values
        query = "SELECT ask FROM run_intents WHERE run_id = ? ORDER BY number"
        rows = await self._worker.call(lambda db: db.execute(query, (run_id,)).fetchall())
        return [json.loads(ask) for (ask,) in rows]

    async def touch(self, session: str, at: float) -> None:
        query = "INSERT OR REPLACE INTO session_marks (session, at) VALUES (?, ?)"
        await self._worker.call(lambda db: db.execute(query, (session, at)))

    async def touched(self, prefix: str) -> dict[str, float]:
        query = "SELECT session, at FROM session_marks WHERE session >= ? AND substr(session, 1, ?) = ?"
        given = (prefix, len(prefix), prefix)
        rows = await self._worker.call(lambda db: db.execute(query, given).fetchall())
        return {str(session): float(at) for session, at in rows}

    async def forget(self, session: str) -> None:
        def work(db: sqlite3.Connection) -> None:
            db.execute(
                "DELETE FROM run_intents WHERE run_id IN (SELECT run_id FROM run_records WHERE session = ?)", (session,)
            )
            db.execute("DELETE FROM run_records WHERE session = ?", (session,))
            db.execute("DELETE FROM session_marks WHERE session = ?", (session,))

        await self._worker.call(work)

    async def aclose(self) -> None:
        await self._worker.aclose()


def _get(db: sqlite3.Connection, run_id: str) -> RunRecord | None:
    row = db.execute(f"SELECT {_COLUMNS} FROM run_records WHERE run_id = ?", (run_id,)).fetchone()
    return _read(row) if row is not None else None


def _write(db: sqlite3.Connection, record: RunRecord) -> None:
    fields = asdict(record)
    fields["request"] = json.dumps(dict(record.request))
    fields["reason"] = None if record.reason is None else json.dumps(dict(record.reason))
    values = [fields[name] for name in _COLUMNS.split(", ")]
    db.execute(f"INSERT OR REPLACE INTO run_records ({_COLUMNS}) VALUES ({', '.join('?' * len(values))})", values)


def _read(row: tuple[Any, ...]) -> RunRecord:  # Any: a row
    fields = dict(zip(_COLUMNS.split(", "), row, strict=True))
    fields["state"] = RunState(fields["state"])
    fields["request"] = json.loads(fields["request"])
    fields["reason"] = None if fields["reason"] is None else json.loads(fields["reason"])
    return RunRecord(**fields)

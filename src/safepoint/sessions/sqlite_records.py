"""Records of runs in the same SQLite file as the sessions, in tables of their own, by the same one writer."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import astuple
from typing import Any

from safepoint.sessions.records import (
    Intent,
    Place,
    RecordMoved,
    RunRecord,
    RunState,
    is_left_behind,
    left_behind,
    moved,
    same_request,
    taken,
)
from safepoint.sessions.sqlite import SqliteStore
from safepoint.sessions.sqlite_tables import Tables

_TABLES = (
    """CREATE TABLE IF NOT EXISTS run_records (
        run_id TEXT PRIMARY KEY, session TEXT NOT NULL, state TEXT NOT NULL, created_at REAL NOT NULL,
        owner TEXT NOT NULL, request TEXT NOT NULL, key TEXT, digest TEXT, started_at REAL, ended_at REAL,
        outcome TEXT, reason TEXT, renewed REAL NOT NULL, epoch INTEGER NOT NULL, by TEXT NOT NULL DEFAULT '',
        usage TEXT)""",
    "CREATE INDEX IF NOT EXISTS run_records_by_session ON run_records (session, created_at)",
    "CREATE INDEX IF NOT EXISTS run_records_by_age ON run_records (created_at)",
    "CREATE INDEX IF NOT EXISTS run_records_open ON run_records (owner) WHERE state != 'ended'",
    "CREATE INDEX IF NOT EXISTS run_records_unended ON run_records (session) WHERE state != 'ended'",
    "CREATE TABLE IF NOT EXISTS session_marks (session TEXT PRIMARY KEY, at REAL NOT NULL) WITHOUT ROWID",
    """CREATE TABLE IF NOT EXISTS run_intents (
        number INTEGER PRIMARY KEY AUTOINCREMENT, run_id TEXT NOT NULL, ask TEXT NOT NULL)""",
    "CREATE INDEX IF NOT EXISTS run_intents_by_run ON run_intents (run_id)",
    "CREATE TABLE IF NOT EXISTS run_answers (number INTEGER PRIMARY KEY, said TEXT NOT NULL)",
)
_NAMES = (
    *("run_id", "session", "state", "created_at", "owner", "request", "key", "digest"),
    *("started_at", "ended_at", "outcome", "reason", "renewed", "epoch", "by", "usage"),
)
_COLUMNS = ", ".join(_NAMES)
# An update keeps the row where it is: rows are in the order in which runs were accepted.
_WRITE = (
    f"INSERT INTO run_records ({_COLUMNS}) VALUES ({', '.join('?' * len(_NAMES))}) "
    f"ON CONFLICT (run_id) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in _NAMES)}"
)
_BY_KEY = "session = ? AND key = ? AND created_at >= ?"
_OPEN = "state != 'ended'"


class SqliteRunBook:
    """`SqliteRunBook(store)`: in the store's file. Close the store, not this."""

    durable = True

    def __init__(self, store: SqliteStore) -> None:
        self._tables = Tables(store, _TABLES)

    async def accept(self, record: RunRecord, *, since: float) -> RunRecord:
        """Cancellation: of this and of every other method: it still happens, whole."""

        def work(db: sqlite3.Connection) -> RunRecord:
            if record.key is not None:
                known = _select(db, _BY_KEY, (record.session, record.key, since))
                if known:
                    return same_request(known[0], record.digest)
            return _put(db, record)

        return await self._tables.call(work)

    async def move(self, run_id: str, state: RunState, *, epoch: int, **changes: Any) -> RunRecord:  # Any: its fields
        return await self._tables.call(lambda db: _put(db, moved(_known(db, run_id), state, epoch, changes)))

    async def take(self, run_id: str, owner: str, *, epoch: int, at: float) -> RunRecord:
        return await self._tables.call(lambda db: _write(db, taken(_known(db, run_id), owner, epoch, at)))

    async def beat(self, owner: str, *, at: float, after: int) -> list[Intent]:
        def work(db: sqlite3.Connection) -> list[Intent]:
            db.execute(f"UPDATE run_records SET renewed = ? WHERE owner = ? AND {_OPEN}", (at, owner))
            mine = f"run_id IN (SELECT run_id FROM run_records WHERE owner = ? AND {_OPEN})"
            return _intents(db, f"number > ? AND {mine}", (after, owner))

        return await self._tables.call(work)

    async def get(self, run_id: str) -> RunRecord | None:
        found = await self._tables.call(lambda db: _select(db, "run_id = ?", (run_id,)))
        return found[0] if found else None

    async def by_key(self, session: str, key: str, *, since: float) -> RunRecord | None:
        found = await self._tables.call(lambda db: _select(db, _BY_KEY, (session, key, since)))
        return found[0] if found else None

    async def find(self, *, session: str | None = None, prefix: str = "", limit: int = 1000) -> list[RunRecord]:
        where, given = ("session = ?", (session,)) if session is not None else _begins_with(prefix)
        return await self._tables.call(
            lambda db: _select(db, f"{where} ORDER BY created_at DESC, rowid DESC LIMIT ?", (*given, limit))
        )

    async def over(self, *, prefix: str = "", after: Place | None = None, limit: int) -> list[RunRecord]:
        where, given = _begins_with(prefix)
        below, place = ("", ()) if after is None else (" AND (created_at, run_id) < (?, ?)", astuple(after))
        query = f"{where} AND state = 'ended'{below} ORDER BY created_at DESC, run_id DESC LIMIT ?"
        return await self._tables.call(lambda db: _select(db, query, (*given, *place, limit)))

    async def still_open(self, session: str | None = None, *, waiting: bool = True) -> list[RunRecord]:
        wanted = _OPEN if waiting else f"{_OPEN} AND state != 'paused'"
        where, given = (f"session = ? AND {wanted}", (session,)) if session is not None else (wanted, ())
        return await self._tables.call(lambda db: _select(db, f"{where} ORDER BY rowid", given))

    async def intend(self, run_id: str, ask: Mapping[str, Any]) -> int:  # Any: JSON values
        query, row = "INSERT INTO run_intents (run_id, ask) VALUES (?, ?)", (run_id, json.dumps(dict(ask)))
        number = await self._tables.call(lambda db: db.execute(query, row).lastrowid)
        assert number is not None
        return number

    async def answer(self, number: int, said: Mapping[str, Any]) -> None:  # Any: JSON values
        query = "INSERT OR REPLACE INTO run_answers SELECT number, ? FROM run_intents WHERE number = ?"
        await self._tables.call(lambda db: db.execute(query, (json.dumps(dict(said)), number)))

    async def answer_to(self, number: int) -> Mapping[str, Any] | None:  # Any: JSON values
        query = "SELECT said FROM run_answers WHERE number = ?"
        found = await self._tables.call(lambda db: db.execute(query, (number,)).fetchall())
        return dict(json.loads(found[0][0])) if found else None

    async def retract(self, run_id: str, ask_id: str) -> None:
        which = "run_id = ? AND json_extract(ask, '$.id') = ?"
        await self._tables.call(lambda db: _drop_intents(db, which, (run_id, ask_id)))

    async def intents(self, run_id: str) -> list[Intent]:
        return await self._tables.call(lambda db: _intents(db, "run_id = ?", (run_id,)))

    async def touch(self, session: str, at: float) -> None:
        query = "INSERT OR REPLACE INTO session_marks (session, at) VALUES (?, ?)"
        await self._tables.call(lambda db: db.execute(query, (session, at)))

    async def touched(self, prefix: str) -> dict[str, float]:
        where, given = _begins_with(prefix)
        runs = f"SELECT session, max(coalesce(ended_at, created_at)) FROM run_records WHERE {where} GROUP BY session"
        marks = f"SELECT session, at FROM session_marks WHERE {where}"
        query = f"SELECT session, max(at) FROM ({marks} UNION ALL {runs}) GROUP BY session"
        rows = await self._tables.call(lambda db: db.execute(query, (*given, *given)).fetchall())
        return {str(session): float(at) for session, at in rows}

    async def forget(self, session: str) -> None:
        def work(db: sqlite3.Connection) -> None:
            mine = "run_id IN (SELECT run_id FROM run_records WHERE session = ?)"
            _drop_intents(db, mine, (session,))
            db.execute("DELETE FROM run_records WHERE session = ?", (session,))
            db.execute("DELETE FROM session_marks WHERE session = ?", (session,))

        await self._tables.call(work)


def _begins_with(prefix: str) -> tuple[str, tuple[str, ...]]:
    """Ids have no character above this one, so the range is all that begin so, and an index can find it.

    Of all sessions there is no range: the index by age is the one that helps then.
    """
    if not prefix:
        return "TRUE", ()
    return "session >= ? AND session < ?", (prefix, prefix + "\U0010ffff")


def _known(db: sqlite3.Connection, run_id: str) -> RunRecord:
    found = _select(db, "run_id = ?", (run_id,))
    if not found:
        raise RecordMoved(f"there is no run {run_id}")
    return found[0]


def _select(db: sqlite3.Connection, where: str, given: tuple[object, ...]) -> list[RunRecord]:
    return [_read(row) for row in db.execute(f"SELECT {_COLUMNS} FROM run_records WHERE {where}", given)]


def _intents(db: sqlite3.Connection, where: str, given: tuple[object, ...]) -> list[Intent]:
    rows = db.execute(f"SELECT number, run_id, ask FROM run_intents WHERE {where} ORDER BY number", given)
    return [Intent(number, run_id, json.loads(ask)) for number, run_id, ask in rows]


def _drop_intents(db: sqlite3.Connection, where: str, given: tuple[object, ...]) -> None:
    db.execute(f"DELETE FROM run_answers WHERE number IN (SELECT number FROM run_intents WHERE {where})", given)
    db.execute(f"DELETE FROM run_intents WHERE {where}", given)


def _put(db: sqlite3.Connection, record: RunRecord) -> RunRecord:
    _write(db, record)
    if record.state is RunState.LIVE:
        for other in _select(db, f"session = ? AND {_OPEN}", (record.session,)):
            if is_left_behind(other, record):
                _write(db, left_behind(other))
    return record


def _write(db: sqlite3.Connection, record: RunRecord) -> RunRecord:
    fields: dict[str, Any] = {name: getattr(record, name) for name in _NAMES}  # Any: as the record has them
    fields["request"] = json.dumps(dict(record.request))
    for name in ("reason", "usage"):
        fields[name] = None if fields[name] is None else json.dumps(dict(fields[name]))
    db.execute(_WRITE, list(fields.values()))
    return record


def _read(row: tuple[Any, ...]) -> RunRecord:  # Any: a row
    fields = dict(zip(_NAMES, row, strict=True))
    fields["state"] = RunState(fields["state"])
    fields["request"] = json.loads(fields["request"])
    for name in ("reason", "usage"):
        fields[name] = None if fields[name] is None else json.loads(fields[name])
    return RunRecord(**fields)

"""Sessions in one SQLite file: WAL, one writer per process, every step of a run one transaction.

A run's cost does not grow with the length of the stored conversation: messages and calls are rows, and only new ones
are written. The file is readable by its owner only.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safepoint._core.asks import is_seconds
from safepoint.errors import (
    SessionExists,
    StoreCorrupt,
    StoreError,
)
from safepoint.sessions.owners import LEASE
from safepoint.sessions.sqlite_claims import Claims, check_epoch, session_row
from safepoint.sessions.sqlite_rows import UNREADABLE, apply_to_rows, dump_value, insert_late, load_rows, read_state
from safepoint.sessions.store import (
    Change,
    LateResult,
    Released,
    Stored,
)
from safepoint.sessions.worker import Worker

# Messages have row ids: without them SQLite keeps a row inside its index, and one of 1 kB takes four.
_SCHEMA = """
CREATE TABLE IF NOT EXISTS sessions (
    id TEXT PRIMARY KEY, state TEXT NOT NULL, epoch INTEGER NOT NULL DEFAULT 0, owner TEXT, claimant TEXT,
    renewed REAL);
CREATE TABLE IF NOT EXISTS messages (
    session TEXT NOT NULL, place INTEGER NOT NULL, body TEXT NOT NULL, at REAL NOT NULL DEFAULT 0,
    PRIMARY KEY (session, place));
CREATE TABLE IF NOT EXISTS runs (
    session TEXT NOT NULL, number INTEGER NOT NULL, run_id TEXT NOT NULL, agent TEXT NOT NULL, place INTEGER NOT NULL,
    ended INTEGER NOT NULL, stop_reason TEXT, checkpoint_id TEXT, checkpoint BLOB, state_before TEXT NOT NULL,
    origin TEXT NOT NULL DEFAULT '', counted TEXT, PRIMARY KEY (session, number));
CREATE TABLE IF NOT EXISTS inside (
    session TEXT NOT NULL, run_id TEXT NOT NULL, number INTEGER PRIMARY KEY AUTOINCREMENT, fact TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS inside_by_run ON inside (session, run_id);
CREATE TABLE IF NOT EXISTS calls (
    session TEXT NOT NULL, run_id TEXT NOT NULL, number INTEGER PRIMARY KEY AUTOINCREMENT, call_id TEXT NOT NULL,
    entry TEXT NOT NULL, memory TEXT, UNIQUE (session, run_id, call_id));
CREATE TABLE IF NOT EXISTS late (
    session TEXT NOT NULL, number INTEGER PRIMARY KEY AUTOINCREMENT, call_id TEXT, name TEXT, content TEXT);
"""
# What a file of version 1 lacks.
_SINCE_1 = """
ALTER TABLE messages ADD COLUMN at REAL NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN origin TEXT NOT NULL DEFAULT '';
UPDATE runs SET origin = run_id;
"""
# What a file of version 2 lacks: the facts of the runs inside a run that has not ended, and what that one has used.
_SINCE_2 = """
ALTER TABLE runs ADD COLUMN counted TEXT;
CREATE TABLE IF NOT EXISTS inside (
    session TEXT NOT NULL, run_id TEXT NOT NULL, number INTEGER PRIMARY KEY AUTOINCREMENT, fact TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS inside_by_run ON inside (session, run_id);
"""
_VERSION = 3


class SqliteStore:
    """`SqliteStore("chat.db")`. Many processes may use one file; a session has one live run among all of them.

    `timeout`: seconds to wait for another process that holds the file's lock before that is a `StoreError`.
    """

    beat_every = LEASE / 3

    def __init__(self, path: str | Path, *, timeout: float = 10.0) -> None:
        if not is_seconds(timeout):
            raise ValueError(f"SqliteStore(timeout={timeout!r}): write a number of seconds above 0")
        self._path = Path(path)
        self._timeout = timeout
        _make_private(self._path)
        self._claims = Claims()
        # Also the writer of whatever else is kept in this file: there is one.
        self.worker = Worker(self._connect, f"sqlite {self._path.name}", self._claims.beat, self.beat_every)

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, timeout=self._timeout, isolation_level=None)
        try:
            _prepare(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    async def create(self, session_id: str, state: Mapping[str, Any]) -> None:  # Any: JSON values
        """A new, empty session. Cancellation: of this and of every other method: it still happens, whole."""

        def work(db: sqlite3.Connection) -> None:
            try:
                # A first epoch that no session of this name has had: a run of a deleted one can't write here.
                row = (session_id, dump_value(state), secrets.randbits(48))
                db.execute("INSERT INTO sessions (id, state, epoch) VALUES (?, ?, ?)", row)
            except sqlite3.IntegrityError:
                raise SessionExists(f"the session {session_id!r} is there already: load it") from None

        await self.worker.call(work)

    async def load(self, session_id: str) -> Stored:
        return await self.worker.call(lambda db: load_rows(db, session_id))

    async def claim(self, session_id: str, claimant: str) -> int:
        return await self.worker.call(lambda db: self._claims.claim(db, session_id, claimant))

    async def release(self, session_id: str, claimant: str) -> None:
        await self.worker.call(lambda db: self._claims.release(db, session_id, claimant))

    async def append(self, session_id: str, epoch: int, changes: Sequence[Change]) -> None:
        def work(db: sqlite3.Connection) -> None:
            check_epoch(db, session_id, epoch)
            for change in changes:
                if isinstance(change, Released):
                    self._claims.release(db, session_id, change.claimant)
                else:
                    apply_to_rows(db, session_id, change)
            db.execute("UPDATE sessions SET renewed = ? WHERE id = ?", (time.time(), session_id))

        await self.worker.call(work)

    async def add_late(self, session_id: str, late: LateResult) -> None:
        def work(db: sqlite3.Connection) -> None:
            session_row(db, session_id)
            insert_late(db, session_id, late)

        await self.worker.call(work)

    async def delete(self, session_id: str) -> None:
        def work(db: sqlite3.Connection) -> None:
            db.execute("DELETE FROM sessions WHERE id = ?", (session_id,))
            for table in ("messages", "runs", "calls", "inside", "late"):
                db.execute(f"DELETE FROM {table} WHERE session = ?", (session_id,))

        await self.worker.call(work)

    async def list_ids(self, prefix: str = "") -> list[str]:
        return [str(id) for id, _ in await self._listed(prefix)]

    async def states(self, prefix: str = "") -> dict[str, Mapping[str, Any]]:  # Any: JSON values
        found: dict[str, Mapping[str, Any]] = {}
        for id, state in await self._listed(prefix):
            try:
                found[id] = read_state(state)
            except UNREADABLE as error:
                raise StoreCorrupt(f"the state of the session {id!r} can't be read: {error!r}") from error
        return found

    async def _listed(self, prefix: str) -> list[tuple[str, str]]:
        """Cancellation: nothing has changed."""
        query = "SELECT id, state FROM sessions WHERE id >= ? AND substr(id, 1, ?) = ? ORDER BY id"
        given = (prefix, len(prefix), prefix)
        return await self.worker.call(lambda db: db.execute(query, given).fetchall())

    async def aclose(self) -> None:
        await self.worker.aclose()


def _prepare(connection: sqlite3.Connection) -> None:
    """The file as this version needs it, an older one brought up to it. One of a later version is left alone."""
    version = _version(connection)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")
    if version == _VERSION:
        return
    connection.execute("BEGIN IMMEDIATE")  # of several processes that find an old file, one changes it
    script = {0: _SCHEMA, 1: _SINCE_1 + _SINCE_2, 2: _SINCE_2, _VERSION: ""}[_version(connection)]
    for statement in script.split(";"):
        connection.execute(statement)
    connection.execute(f"PRAGMA user_version={_VERSION}")
    connection.execute("COMMIT")  # after an error the connection is closed, which takes it all back


def _version(connection: sqlite3.Connection) -> int:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version not in range(_VERSION + 1):
        raise StoreError(f"the session store has version {version}, this Safepoint reads {_VERSION}")
    return int(version)


def _make_private(path: Path) -> None:
    """The file is ours alone from its first byte on; SQLite gives its side files the same mode."""
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))

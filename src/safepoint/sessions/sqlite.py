"""Sessions in one SQLite file: WAL, one writer per process, every step of a run one transaction.

A run's cost does not grow with the length of the stored conversation: messages and calls are rows, and only new ones
are written. The file is readable by its owner only.
"""

from __future__ import annotations

import json
import os
import secrets
import sqlite3
import time
from collections.abc import Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any, cast

from safepoint._core.asks import is_seconds
from safepoint.agent.codec import (
    decode,
    decode_dropped,
    decode_entry,
    decode_memory,
    encode,
    encode_entry,
    encode_memory,
)
from safepoint.agent.fact_codec import decode_counted, decode_fact, encode_counted, encode_fact
from safepoint.agent.journal import Called, Counted, Ended, Inside, Opened, Said
from safepoint.agent.ledger import LedgerEntry
from safepoint.errors import (
    CheckpointError,
    SessionExists,
    StoreCorrupt,
    StoreError,
)
from safepoint.history.encoding import decode_message, decode_value, encode_message, encode_values
from safepoint.history.parts import Message
from safepoint.sessions.applying import apply
from safepoint.sessions.owners import LEASE
from safepoint.sessions.sqlite_claims import Claims, check_epoch, session_row
from safepoint.sessions.store import (
    Change,
    Lasting,
    LateResult,
    LateSet,
    Released,
    StateSet,
    Stored,
    StoredRun,
    Truncated,
)
from safepoint.sessions.worker import Worker
from safepoint.tools.memory import CallMemory

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
# What reading a spoilt row may raise.
_UNREADABLE = (KeyError, TypeError, ValueError, AttributeError, RecursionError)


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
                row = (session_id, _dump_value(state), secrets.randbits(48))
                db.execute("INSERT INTO sessions (id, state, epoch) VALUES (?, ?, ?)", row)
            except sqlite3.IntegrityError:
                raise SessionExists(f"the session {session_id!r} is there already: load it") from None

        await self.worker.call(work)

    async def load(self, session_id: str) -> Stored:
        return await self.worker.call(lambda db: _load(db, session_id))

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
                    _apply(db, session_id, change)
            db.execute("UPDATE sessions SET renewed = ? WHERE id = ?", (time.time(), session_id))

        await self.worker.call(work)

    async def add_late(self, session_id: str, late: LateResult) -> None:
        def work(db: sqlite3.Connection) -> None:
            session_row(db, session_id)
            _insert_late(db, session_id, late)

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
                found[id] = _read_state(state)
            except _UNREADABLE as error:
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


# -- writing ---------------------------------------------------------------------------------------------------------


def _apply(db: sqlite3.Connection, session_id: str, change: Lasting) -> None:
    """What `applying.apply` says, in rows."""
    match change:
        case Opened():
            _open(db, session_id, change)
        case Said(index, message, at):
            _insert_messages(db, session_id, index, [message], at)
        case Called(entry, memory):
            _insert_call(db, session_id, _last_run(db, session_id)[1], entry, memory)
        case Counted():
            counted = _dump(encode_counted(change))
            run_id = _last_run(db, session_id)[1]
            db.execute("UPDATE runs SET counted = ? WHERE session = ? AND run_id = ?", (counted, session_id, run_id))
        case Inside():
            row = (session_id, _last_run(db, session_id)[1], _dump(encode_fact(change)))
            db.execute("INSERT INTO inside (session, run_id, fact) VALUES (?, ?, ?)", row)
        case Ended():
            _end(db, session_id, change)
        case Truncated(index):
            _truncate(db, session_id, index)
            for (run_id,) in _runs_from(db, session_id, index):
                _forget_run(db, session_id, run_id)
        case StateSet(state):
            db.execute("UPDATE sessions SET state = ? WHERE id = ?", (_dump_value(state), session_id))
        case LateSet(late):
            db.execute("DELETE FROM late WHERE session = ?", (session_id,))
            for result in late:
                _insert_late(db, session_id, result)


def _open(db: sqlite3.Connection, session_id: str, opened: Opened) -> None:
    state, origin = session_row(db, session_id).state, opened.run_id
    last = _last_run(db, session_id)
    number = (last[0] if last is not None else 0) + 1
    if opened.continues is not None:
        if last is None or last[2] != opened.continues:
            raise CheckpointError(
                f"the session has moved on from the checkpoint {opened.continues}: it was continued already, "
                "or a new message came after it"
            )
        state, origin = last[3], last[4]
        _forget_run(db, session_id, last[1])
    elif last is not None and last[2] is not None:
        _drop_checkpoint(db, session_id, last[1])
    _insert_messages(db, session_id, opened.index, opened.messages, opened.at)
    _truncate(db, session_id, opened.index + len(opened.messages))
    # Without an id: until the run ends, this is what it goes on from and nothing that anybody else could continue.
    columns = "session, number, run_id, agent, place, ended, state_before, origin, checkpoint"
    base = encode(opened.base, known=opened.known) if opened.base is not None else None
    row = (session_id, number, opened.run_id, opened.agent, opened.index, 0, state, origin, base)
    db.execute(f"INSERT INTO runs ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
    for entry in opened.ledger:
        _insert_call(db, session_id, opened.run_id, entry, None)


def _drop_checkpoint(db: sqlite3.Connection, session_id: str, run_id: str) -> None:
    """Each may have a long turn in it: kept as they are, many stops would fill the file."""
    where = (session_id, run_id)
    (kept,) = db.execute("SELECT checkpoint FROM runs WHERE session = ? AND run_id = ?", where).fetchone()
    left = decode_dropped(kept).to_bytes()
    change = "UPDATE runs SET checkpoint_id = NULL, checkpoint = ? WHERE session = ? AND run_id = ?"
    db.execute(change, (left, *where))


def _end(db: sqlite3.Connection, session_id: str, ended: Ended) -> None:
    _insert_messages(db, session_id, ended.index, ended.messages, ended.at)
    _truncate(db, session_id, ended.index + len(ended.messages))
    checkpoint = ended.checkpoint
    db.execute("DELETE FROM inside WHERE session = ? AND run_id = ?", (session_id, ended.run_id))
    columns = "ended = 1, stop_reason = ?, checkpoint_id = ?, checkpoint = ?, counted = NULL"
    id, data = (checkpoint.id, encode(checkpoint, known=ended.known)) if checkpoint is not None else (None, None)
    row = (str(ended.stop_reason), id, data, session_id, ended.run_id)
    db.execute(f"UPDATE runs SET {columns} WHERE session = ? AND run_id = ?", row)
    for entry in ended.ledger:
        _insert_call(db, session_id, ended.run_id, entry, None)


def _last_run(db: sqlite3.Connection, session_id: str) -> Any:  # Any: a row, or None
    columns = "number, run_id, checkpoint_id, state_before, origin"
    return db.execute(
        f"SELECT {columns} FROM runs WHERE session = ? ORDER BY number DESC LIMIT 1", (session_id,)
    ).fetchone()


def _runs_from(db: sqlite3.Connection, session_id: str, index: int) -> list[Any]:  # Any: rows
    return db.execute("SELECT run_id FROM runs WHERE session = ? AND place >= ?", (session_id, index)).fetchall()


def _forget_run(db: sqlite3.Connection, session_id: str, run_id: str) -> None:
    for table in ("runs", "calls", "inside"):
        db.execute(f"DELETE FROM {table} WHERE session = ? AND run_id = ?", (session_id, run_id))


def _truncate(db: sqlite3.Connection, session_id: str, index: int) -> None:
    db.execute("DELETE FROM messages WHERE session = ? AND place >= ?", (session_id, index))


def _insert_messages(
    db: sqlite3.Connection, session_id: str, index: int, messages: Sequence[Message], at: float
) -> None:
    """A message that stands there already keeps its time."""
    rows = [(session_id, place, _dump(encode_message(message)), at) for place, message in enumerate(messages, index)]
    db.executemany(
        "INSERT INTO messages (session, place, body, at) VALUES (?, ?, ?, ?) ON CONFLICT (session, place) "
        "DO UPDATE SET body = excluded.body, at = excluded.at WHERE body != excluded.body",
        rows,
    )


def _insert_call(
    db: sqlite3.Connection, session_id: str, run_id: str, entry: LedgerEntry, memory: CallMemory | None
) -> None:
    remembered = None if memory is None else _dump(encode_memory(memory))
    db.execute(
        "INSERT INTO calls (session, run_id, call_id, entry, memory) VALUES (?, ?, ?, ?, ?) "
        "ON CONFLICT (session, run_id, call_id) DO UPDATE SET entry = excluded.entry, "
        "memory = coalesce(excluded.memory, memory)",
        (session_id, run_id, entry.call_id, _dump(encode_entry(entry)), remembered),
    )


def _insert_late(db: sqlite3.Connection, session_id: str, late: LateResult) -> None:
    row = (session_id, late.call_id, late.name, late.content)
    db.execute("INSERT INTO late (session, call_id, name, content) VALUES (?, ?, ?, ?)", row)


# -- reading ---------------------------------------------------------------------------------------------------------


def _load(db: sqlite3.Connection, session_id: str) -> Stored:
    found = session_row(db, session_id)
    rows = db.execute("SELECT place, body, at FROM messages WHERE session = ? ORDER BY place", (session_id,)).fetchall()
    columns = "run_id, agent, place, ended, stop_reason, checkpoint, state_before, origin, counted"
    runs = db.execute(f"SELECT {columns} FROM runs WHERE session = ? ORDER BY number", (session_id,)).fetchall()
    late = db.execute("SELECT call_id, name, content FROM late WHERE session = ? ORDER BY number", (session_id,))
    try:
        if [place for place, _, _ in rows] != list(range(len(rows))):
            raise ValueError("a message is missing")
        messages = tuple(decode_message(json.loads(body)) for _, body, _ in rows)
        stored = Stored(
            messages,
            _read_state(found.state),
            tuple(_read_run(db, session_id, row, messages) for row in runs),
            tuple(LateResult(*row) for row in late.fetchall()),
            found.epoch,
            tuple(float(at) for _, _, at in rows),
        )
        return reduce(apply, _facts_inside(db, session_id, stored), stored)
    except _UNREADABLE as error:
        raise StoreCorrupt(f"the session {session_id!r} can't be read: {error!r}; it was left as it is") from error


def _facts_inside(db: sqlite3.Connection, session_id: str, stored: Stored) -> list[Inside]:
    """What the runs inside a run that has not ended have written: told once more, they are what they were."""
    if not stored.runs or stored.runs[-1].ended:
        return []
    query = "SELECT fact FROM inside WHERE session = ? AND run_id = ? ORDER BY number"
    facts = [decode_fact(json.loads(fact)) for (fact,) in db.execute(query, (session_id, stored.runs[-1].run_id))]
    return [fact for fact in facts if isinstance(fact, Inside)]


def _read_run(
    db: sqlite3.Connection,
    session_id: str,
    row: tuple[Any, ...],  # Any: a row
    messages: tuple[Message, ...],
) -> StoredRun:
    run_id, agent, place, ended, stop_reason, checkpoint, state_before, origin, counted = row
    calls = db.execute(
        "SELECT entry, memory FROM calls WHERE session = ? AND run_id = ? ORDER BY number", (session_id, run_id)
    ).fetchall()
    entries = [(decode_entry(json.loads(entry)), memory) for entry, memory in calls]
    kept = None if checkpoint is None else decode(checkpoint, messages)
    return StoredRun(
        run_id,
        agent,
        place,
        bool(ended),
        stop_reason,
        kept if ended else None,
        tuple(entry for entry, _ in entries),
        {entry.call_id: decode_memory(json.loads(memory)) for entry, memory in entries if memory is not None},
        _read_state(state_before),
        origin,
        None if ended else kept,
        None if counted is None else decode_counted(json.loads(counted)),
    )


def _read_state(text: str) -> dict[str, Any]:  # Any: JSON values
    state: object = json.loads(text)
    if not isinstance(state, dict):
        raise ValueError("the state is no mapping")
    return cast("dict[str, Any]", decode_value(state))


def _dump_value(state: Mapping[str, Any]) -> str:  # Any: values of the user's own
    return _dump(encode_values(state))


# `json.dumps` would make an encoder for every value.
_dump = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode

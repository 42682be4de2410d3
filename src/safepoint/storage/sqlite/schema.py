"""The tables of a SQLite storage, and how the file of an older version is brought up to date."""

from __future__ import annotations

import sqlite3

from safepoint.errors import StoreError

VERSION = 7

# Messages have row ids: without them SQLite keeps a row inside its index, and one of 1 kB takes four.
_SESSIONS = """
CREATE TABLE IF NOT EXISTS sessions (
    id TEXT PRIMARY KEY, state TEXT NOT NULL, epoch INTEGER NOT NULL DEFAULT 0, owner TEXT, claimant TEXT,
    number INTEGER NOT NULL DEFAULT 0);
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
# In `loop_messages` the conversation between turns has the turn '', a checkpoint's conversation that of its turn.
_BESIDE = """
CREATE INDEX IF NOT EXISTS late_by_session ON late (session);
CREATE INDEX IF NOT EXISTS sessions_held ON sessions (owner) WHERE owner IS NOT NULL;
CREATE TABLE IF NOT EXISTS workers (
    id TEXT PRIMARY KEY, process TEXT NOT NULL, counter INTEGER NOT NULL, peer TEXT);
CREATE TABLE IF NOT EXISTS run_records (
    run_id TEXT PRIMARY KEY, session TEXT NOT NULL, state TEXT NOT NULL, created_at REAL NOT NULL,
    owner TEXT NOT NULL, request TEXT NOT NULL, key TEXT, digest TEXT, started_at REAL, ended_at REAL,
    outcome TEXT, reason TEXT, epoch INTEGER NOT NULL, by TEXT NOT NULL DEFAULT '', usage TEXT,
    deaths INTEGER NOT NULL DEFAULT 0);
CREATE INDEX IF NOT EXISTS run_records_by_session ON run_records (session, created_at);
CREATE INDEX IF NOT EXISTS run_records_by_age ON run_records (created_at);
CREATE INDEX IF NOT EXISTS run_records_open ON run_records (owner) WHERE state != 'ended';
CREATE INDEX IF NOT EXISTS run_records_unended ON run_records (session) WHERE state != 'ended';
CREATE TABLE IF NOT EXISTS session_marks (session TEXT PRIMARY KEY, at REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS cancel_requests (
    number INTEGER PRIMARY KEY AUTOINCREMENT, run_id TEXT NOT NULL, ask TEXT NOT NULL,
    acknowledged INTEGER NOT NULL DEFAULT 0, answer TEXT);
CREATE INDEX IF NOT EXISTS cancel_requests_by_run ON cancel_requests (run_id);
CREATE INDEX IF NOT EXISTS cancel_requests_unheard ON cancel_requests (run_id) WHERE acknowledged = 0;
CREATE TABLE IF NOT EXISTS shared_values (
    place TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (place, name)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS session_notes (
    number INTEGER PRIMARY KEY AUTOINCREMENT, session TEXT NOT NULL, at REAL NOT NULL, body TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS session_notes_by_session ON session_notes (session);
CREATE TABLE IF NOT EXISTS freezes (id TEXT PRIMARY KEY, at REAL NOT NULL, body TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS audit (number INTEGER PRIMARY KEY AUTOINCREMENT, run_id TEXT, body TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS audit_by_run ON audit (run_id, number) WHERE run_id IS NOT NULL;
CREATE TABLE IF NOT EXISTS turn_loops (id TEXT PRIMARY KEY, record BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS turn_claims (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, claimant TEXT NOT NULL, epoch INTEGER NOT NULL DEFAULT 0);
CREATE TABLE IF NOT EXISTS loop_epochs (one INTEGER PRIMARY KEY CHECK (one = 1), epoch INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS loop_items (
    loop TEXT NOT NULL, number INTEGER NOT NULL, value TEXT NOT NULL, turn TEXT, joining INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (loop, number)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS loop_turns (
    loop TEXT NOT NULL, key TEXT NOT NULL, state TEXT NOT NULL, runs TEXT NOT NULL, error TEXT, checkpoint BLOB,
    PRIMARY KEY (loop, key)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS loop_messages (
    loop TEXT NOT NULL, turn TEXT NOT NULL, place INTEGER NOT NULL, message TEXT NOT NULL,
    PRIMARY KEY (loop, turn, place)) WITHOUT ROWID;
"""
# The file itself refuses to change what the audit trail has told.
_APPEND_ONLY = (
    "CREATE TRIGGER IF NOT EXISTS audit_keeps_{0} BEFORE {0} ON audit "
    "BEGIN SELECT RAISE(ABORT, 'the audit trail is append-only'); END"
)
_SINCE_1 = """
ALTER TABLE messages ADD COLUMN at REAL NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN origin TEXT NOT NULL DEFAULT '';
UPDATE runs SET origin = run_id;
"""
# The facts of the runs inside a run that has not ended, and what that one has used.
_SINCE_2 = """
ALTER TABLE runs ADD COLUMN counted TEXT;
CREATE TABLE IF NOT EXISTS inside (
    session TEXT NOT NULL, run_id TEXT NOT NULL, number INTEGER PRIMARY KEY AUTOINCREMENT, fact TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS inside_by_run ON inside (session, run_id);
"""


def prepare(connection: sqlite3.Connection) -> None:
    """The file as this version needs it, an older one brought up to it. One of a later version is left alone."""
    if read_version(connection) == VERSION:
        return
    connection.execute("BEGIN IMMEDIATE")  # of several processes that find an old file, one changes it
    version = read_version(connection)
    script = {
        0: _SESSIONS,
        1: _SINCE_1 + _SINCE_2,
        2: _SINCE_2,
        3: "",
        4: "",
        5: "",
        6: "",
        VERSION: "",
    }[version]
    _run(connection, script)
    if version != VERSION:
        _run(connection, _BESIDE)
        for change in ("UPDATE", "DELETE"):
            connection.execute(_APPEND_ONLY.format(change))
        _since_3(connection)
        if "deaths" not in _columns(connection, "run_records"):
            connection.execute("ALTER TABLE run_records ADD COLUMN deaths INTEGER NOT NULL DEFAULT 0")
        if "peer" not in _columns(connection, "workers"):
            connection.execute("ALTER TABLE workers ADD COLUMN peer TEXT")
    connection.execute(f"PRAGMA user_version={VERSION}")
    connection.execute("COMMIT")  # after an error the connection is closed, which takes it all back


def _since_3(connection: sqlite3.Connection) -> None:
    """Writes are numbered, and workers renew one row of their own, no longer a time in everything they own.

    The tables beside the sessions had no version before: a file may have them or not.
    """
    if "number" not in _columns(connection, "sessions"):
        connection.execute("ALTER TABLE sessions ADD COLUMN number INTEGER NOT NULL DEFAULT 0")
    for table in ("sessions", "run_records", "turn_claims"):
        if "renewed" in _columns(connection, table):
            connection.execute(f"ALTER TABLE {table} DROP COLUMN renewed")
    if "epoch" not in _columns(connection, "turn_claims"):
        connection.execute("ALTER TABLE turn_claims ADD COLUMN epoch INTEGER NOT NULL DEFAULT 0")
    if _columns(connection, "run_intents"):
        connection.execute(
            "INSERT INTO cancel_requests (number, run_id, ask, answer) "
            "SELECT number, run_id, ask, (SELECT said FROM run_answers a WHERE a.number = i.number) FROM run_intents i"
        )
        connection.execute("DROP TABLE run_intents")
        connection.execute("DROP TABLE run_answers")


def _columns(connection: sqlite3.Connection, table: str) -> list[str]:
    return [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]


def _run(connection: sqlite3.Connection, script: str) -> None:
    for statement in script.split(";"):
        connection.execute(statement)


def read_version(connection: sqlite3.Connection) -> int:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version not in range(VERSION + 1):
        raise StoreError(f"the session store has version {version}, this Safepoint reads {VERSION}")
    return int(version)

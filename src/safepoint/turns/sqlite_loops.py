"""Turn loops in SQLite: functions of one connection, each a part of a transaction that the caller has begun.

They know nothing of threads or files, so a database that has other tables as well can use them in its own unit of
work. `turn_loops` is the table of earlier versions, with a whole record in one value: `open_loop` turns such a record
into rows.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence

from safepoint.agent.checkpoint import Checkpoint
from safepoint.agent.codec import decode as decode_checkpoint
from safepoint.agent.codec import encode as encode_checkpoint
from safepoint.errors import CheckpointError, StoreCorrupt
from safepoint.history.encoding import decode_message, encode_message
from safepoint.history.parts import Message
from safepoint.sessions.owners import Owner
from safepoint.turns.record import decode as decode_record
from safepoint.turns.storage import (
    HistorySet,
    ItemsAdded,
    ItemsMoved,
    ItemsRemoved,
    LoopChange,
    OpenedLoop,
    StoredItem,
    StoredLoop,
    StoredState,
    StoredTurn,
    TurnBegun,
    TurnFailed,
    TurnOver,
    TurnStopped,
    in_use,
    superseded,
)

_TABLES = (
    "CREATE TABLE IF NOT EXISTS turn_loops (id TEXT PRIMARY KEY, record BLOB NOT NULL)",
    """CREATE TABLE IF NOT EXISTS turn_claims (
        id TEXT PRIMARY KEY, owner TEXT NOT NULL, claimant TEXT NOT NULL, renewed REAL NOT NULL)""",
    "CREATE TABLE IF NOT EXISTS loop_epochs (one INTEGER PRIMARY KEY CHECK (one = 1), epoch INTEGER NOT NULL)",
    """CREATE TABLE IF NOT EXISTS loop_items (
        loop TEXT NOT NULL, number INTEGER NOT NULL, value TEXT NOT NULL, turn TEXT, joining INTEGER NOT NULL DEFAULT 0,
        PRIMARY KEY (loop, number)) WITHOUT ROWID""",
    """CREATE TABLE IF NOT EXISTS loop_turns (
        loop TEXT NOT NULL, key TEXT NOT NULL, state TEXT NOT NULL, runs TEXT NOT NULL, error TEXT, checkpoint BLOB,
        PRIMARY KEY (loop, key)) WITHOUT ROWID""",
    # The conversation between turns has the turn ''; a checkpoint's conversation has that of its turn.
    """CREATE TABLE IF NOT EXISTS loop_messages (
        loop TEXT NOT NULL, turn TEXT NOT NULL, place INTEGER NOT NULL, message TEXT NOT NULL,
        PRIMARY KEY (loop, turn, place)) WITHOUT ROWID""",
)


def create_tables(db: sqlite3.Connection) -> None:
    for table in _TABLES:
        db.execute(table)
    if "epoch" not in {row[1] for row in db.execute("PRAGMA table_info(turn_claims)")}:
        db.execute("ALTER TABLE turn_claims ADD COLUMN epoch INTEGER NOT NULL DEFAULT 0")


# -- who uses a record ------------------------------------------------------------------------------------------------


def claim_loop(db: sqlite3.Connection, id: str, owner: str, claimant: str, now: float) -> int:
    """The epoch of this claimant's writes. Raises `StoreError` while another one has the record whose process lives."""
    row = db.execute("SELECT owner, claimant, renewed FROM turn_claims WHERE id = ?", (id,)).fetchone()
    if row is not None and row[1] != claimant:
        holder = _holder(id, row[0])
        if not holder.is_gone(row[2]):
            raise in_use(id) if row[0] == owner else in_use(id, f"in process {holder.pid}")
    db.execute("INSERT INTO loop_epochs VALUES (1, 1) ON CONFLICT (one) DO UPDATE SET epoch = epoch + 1")
    epoch = int(db.execute("SELECT epoch FROM loop_epochs").fetchone()[0])
    db.execute(
        "INSERT OR REPLACE INTO turn_claims (id, owner, claimant, renewed, epoch) VALUES (?, ?, ?, ?, ?)",
        (id, owner, claimant, now, epoch),
    )
    return epoch


def renew_claims(db: sqlite3.Connection, held: Iterable[tuple[str, str]], now: float) -> None:
    """`held`: ids and claimants."""
    rows = [(now, id, claimant) for id, claimant in held]
    db.executemany("UPDATE turn_claims SET renewed = ? WHERE id = ? AND claimant = ?", rows)


def release_loop(db: sqlite3.Connection, id: str, claimant: str) -> None:
    db.execute("DELETE FROM turn_claims WHERE id = ? AND claimant = ?", (id, claimant))


def _holder(id: str, text: str) -> Owner:
    try:
        return Owner.parse(text)
    except ValueError as error:
        raise StoreCorrupt(f"who uses the record {id!r} can't be read: {text!r}") from error


# -- reading ----------------------------------------------------------------------------------------------------------


def open_loop(db: sqlite3.Connection, id: str, owner: str, claimant: str, now: float) -> OpenedLoop:
    """Claim the record and read it; one that an earlier version has written is brought up to date."""
    epoch = claim_loop(db, id, owner, claimant, now)
    row = db.execute("SELECT record FROM turn_loops WHERE id = ?", (id,)).fetchone()
    if row is not None:
        replace_loop(db, id, decode_record(bytes(row[0])))
    return OpenedLoop(epoch, read_loop(db, id))


def read_loop(db: sqlite3.Connection, id: str) -> StoredLoop:
    """Raises `StoreCorrupt`."""
    try:
        rows = db.execute("SELECT number, value, turn, joining FROM loop_items WHERE loop = ? ORDER BY number", (id,))
        items = tuple(StoredItem(number, value, turn, bool(joining)) for number, value, turn, joining in rows)
        turns = tuple(_read_turns(db, id))
        return StoredLoop(items, turns, _read_messages(db, id, ""), items[-1].number if items else 0)
    except (ValueError, TypeError, KeyError, CheckpointError) as error:
        raise StoreCorrupt(f"the loop's record can't be read: {error!r}; it was left as it is") from error


def _read_turns(db: sqlite3.Connection, id: str) -> Iterable[StoredTurn]:
    rows = db.execute("SELECT key, state, runs, error, checkpoint FROM loop_turns WHERE loop = ?", (id,)).fetchall()
    for key, state, runs, error, data in rows:
        checkpoint = None if data is None else decode_checkpoint(bytes(data), _read_messages(db, id, key))
        yield StoredTurn(key, StoredState(state), tuple(json.loads(runs)), checkpoint, error)


def _read_messages(db: sqlite3.Connection, id: str, turn: str) -> tuple[Message, ...]:
    query = "SELECT message FROM loop_messages WHERE loop = ? AND turn = ? ORDER BY place"
    return tuple(decode_message(json.loads(row[0])) for row in db.execute(query, (id, turn)))


# -- writing ----------------------------------------------------------------------------------------------------------


def apply_changes(db: sqlite3.Connection, id: str, epoch: int, changes: Sequence[LoopChange]) -> None:
    """Raises `Superseded` if another loop has the record by now."""
    if db.execute("SELECT epoch FROM turn_claims WHERE id = ?", (id,)).fetchone() != (epoch,):
        raise superseded(id)
    for change in changes:
        _apply(db, id, change)


def replace_loop(db: sqlite3.Connection, id: str, stored: StoredLoop) -> None:
    """The record is this, and nothing else."""
    delete_loop(db, id)
    _apply(db, id, ItemsAdded(stored.items))
    for turn in stored.turns:
        _set_turn(db, id, turn)
    _apply(db, id, HistorySet(0, stored.history))


def delete_loop(db: sqlite3.Connection, id: str) -> None:
    for table in ("loop_items", "loop_turns", "loop_messages"):
        db.execute(f"DELETE FROM {table} WHERE loop = ?", (id,))
    db.execute("DELETE FROM turn_loops WHERE id = ?", (id,))


def _apply(db: sqlite3.Connection, id: str, change: LoopChange) -> None:
    match change:
        case ItemsAdded(items):
            rows = [(id, item.number, item.text, item.turn, item.joining) for item in items]
            db.executemany("INSERT OR REPLACE INTO loop_items VALUES (?, ?, ?, ?, ?)", rows)
        case ItemsRemoved(numbers):
            removed = [(id, number) for number in numbers]
            db.executemany("DELETE FROM loop_items WHERE loop = ? AND number = ?", removed)
        case ItemsMoved(numbers, turn, joining):
            moved = [(turn, joining, id, number) for number in numbers]
            db.executemany("UPDATE loop_items SET turn = ?, joining = ? WHERE loop = ? AND number = ?", moved)
        case TurnBegun(key, run_id):
            _begin_turn(db, id, key, run_id)
        case TurnStopped(key, runs, checkpoint):
            _set_turn(db, id, StoredTurn(key, StoredState.STOPPED, runs, checkpoint))
        case TurnFailed(key, runs, error, checkpoint):
            _set_turn(db, id, StoredTurn(key, StoredState.FAILED, runs, checkpoint, error))
        case TurnOver(key):
            db.execute("DELETE FROM loop_turns WHERE loop = ? AND key = ?", (id, key))
            db.execute("DELETE FROM loop_messages WHERE loop = ? AND turn = ?", (id, key))
        case HistorySet(index, messages):
            _set_messages(db, id, "", index, messages)


def _begin_turn(db: sqlite3.Connection, id: str, key: str, run_id: str) -> None:
    row = db.execute("SELECT runs FROM loop_turns WHERE loop = ? AND key = ?", (id, key)).fetchone()
    if row is None:
        values = (id, key, str(StoredState.BEGUN), json.dumps([run_id]))
        db.execute("INSERT INTO loop_turns (loop, key, state, runs) VALUES (?, ?, ?, ?)", values)
    elif run_id not in (runs := json.loads(row[0])):
        db.execute("UPDATE loop_turns SET runs = ? WHERE loop = ? AND key = ?", (json.dumps([*runs, run_id]), id, key))


def _set_turn(db: sqlite3.Connection, id: str, turn: StoredTurn) -> None:
    """The conversation of its checkpoint is written message by message.

    The C encoder of JSON holds the interpreter's lock until it is done: one call for a long conversation would stop the
    event loop from this thread.
    """
    checkpoint: Checkpoint | None = turn.checkpoint
    messages = () if checkpoint is None else checkpoint.messages
    data = None if checkpoint is None else encode_checkpoint(checkpoint, known=len(messages))
    values = (id, turn.key, str(turn.state), json.dumps(turn.runs), turn.error, data)
    db.execute("INSERT OR REPLACE INTO loop_turns VALUES (?, ?, ?, ?, ?, ?)", values)
    _set_messages(db, id, turn.key, 0, messages)


def _set_messages(db: sqlite3.Connection, id: str, turn: str, index: int, messages: Sequence[Message]) -> None:
    db.execute("DELETE FROM loop_messages WHERE loop = ? AND turn = ? AND place >= ?", (id, turn, index))
    rows = ((id, turn, place, json.dumps(encode_message(message))) for place, message in enumerate(messages, index))
    db.executemany("INSERT INTO loop_messages VALUES (?, ?, ?, ?)", rows)

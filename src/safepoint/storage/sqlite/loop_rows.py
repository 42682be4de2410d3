"""Turn loops as rows of a SQLite file.

`turn_loops` is the table of earlier versions, with a whole record in one value: opening a loop turns it into rows.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence

from safepoint.agent.checkpoint import Checkpoint
from safepoint.agent.codec import decode as decode_checkpoint
from safepoint.agent.codec import encode as encode_checkpoint
from safepoint.errors import CheckpointError, StoreCorrupt
from safepoint.history.json_codec import MESSAGE
from safepoint.history.parts import Message
from safepoint.storage import operations as op
from safepoint.storage.loop_codec import decode as decode_record
from safepoint.storage.loop_data import (
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
from safepoint.storage.sqlite.unit import Statements, Unit

# -- who uses a record ------------------------------------------------------------------------------------------------


def _claim(unit: Unit, id: str, claimant: str) -> int:
    """The epoch of this claimant's writes."""
    row = unit.db.execute("SELECT owner, claimant FROM turn_claims WHERE id = ?", (id,)).fetchone()
    if row is not None and row[1] != claimant and not unit.is_dead(row[0], f"the loop {id!r}"):
        raise in_use(id, unit.where(row[0]))
    unit.register()
    unit.db.execute("INSERT INTO loop_epochs VALUES (1, 1) ON CONFLICT (one) DO UPDATE SET epoch = epoch + 1")
    epoch = int(unit.db.execute("SELECT epoch FROM loop_epochs").fetchone()[0])
    values = (id, unit.lease.worker, claimant, epoch)
    unit.db.execute("INSERT OR REPLACE INTO turn_claims (id, owner, claimant, epoch) VALUES (?, ?, ?, ?)", values)
    return epoch


def _release(unit: Unit, release: op.ReleaseLoop) -> None:
    unit.db.execute("DELETE FROM turn_claims WHERE id = ? AND claimant = ?", (release.id, release.claimant))


# -- reading ----------------------------------------------------------------------------------------------------------


def _open(unit: Unit, opening: op.OpenLoop) -> OpenedLoop:
    """A record that an earlier version has written as one value is brought up to date."""
    epoch, id = _claim(unit, opening.id, opening.claimant), opening.id
    record = _old_record(unit.db, id)
    if record is not None:
        _replace_all(unit.db, id, record)
    return OpenedLoop(epoch, _read_rows(unit.db, id))


def _read(unit: Unit, read: op.ReadLoop) -> StoredLoop:
    record = _old_record(unit.db, read.id)
    return _read_rows(unit.db, read.id) if record is None else record


def _old_record(db: sqlite3.Connection, id: str) -> StoredLoop | None:
    row = db.execute("SELECT record FROM turn_loops WHERE id = ?", (id,)).fetchone()
    return None if row is None else decode_record(bytes(row[0]))


def _read_rows(db: sqlite3.Connection, id: str) -> StoredLoop:
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
    return tuple(MESSAGE.decode(row[0]) for row in db.execute(query, (id, turn)))


# -- writing ----------------------------------------------------------------------------------------------------------


def _change(unit: Unit, change: op.ChangeLoop) -> None:
    if unit.db.execute("SELECT epoch FROM turn_claims WHERE id = ?", (change.id,)).fetchone() != (change.epoch,):
        raise superseded(change.id)
    for each in change.changes:
        _apply(unit.db, change.id, each)


def _replace(unit: Unit, replace: op.ReplaceLoop) -> None:
    _replace_all(unit.db, replace.id, replace.stored)


def _replace_all(db: sqlite3.Connection, id: str, stored: StoredLoop) -> None:
    for table in ("loop_items", "loop_turns", "loop_messages"):
        db.execute(f"DELETE FROM {table} WHERE loop = ?", (id,))
    db.execute("DELETE FROM turn_loops WHERE id = ?", (id,))
    _apply(db, id, ItemsAdded(stored.items))
    for turn in stored.turns:
        _set_turn(db, id, turn)
    _apply(db, id, HistorySet(0, stored.history))


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
    rows = ((id, turn, place, MESSAGE.encode(message).decode()) for place, message in enumerate(messages, index))
    db.executemany("INSERT INTO loop_messages VALUES (?, ?, ?, ?)", rows)


STATEMENTS: Statements = {
    op.OpenLoop: _open,
    op.ChangeLoop: _change,
    op.ReleaseLoop: _release,
    op.ReplaceLoop: _replace,
    op.ReadLoop: _read,
}

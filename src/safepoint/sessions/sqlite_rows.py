"""A session as rows of a SQLite file: what each change writes there, and how the rows are read again.

Every function works on a connection, inside a transaction that its caller has begun. What a change means is said once,
by `applying.apply`; here it is said in rows, and only new ones are written.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, cast

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
    StoreCorrupt,
)
from safepoint.history.encoding import decode_message, decode_value, encode_message, encode_values
from safepoint.history.parts import Message
from safepoint.sessions.applying import apply
from safepoint.sessions.sqlite_claims import session_row
from safepoint.sessions.store import (
    Lasting,
    LateResult,
    LateSet,
    StateSet,
    Stored,
    StoredRun,
    Truncated,
)
from safepoint.tools.memory import CallMemory

# What reading a spoilt row may raise.
UNREADABLE = (KeyError, TypeError, ValueError, AttributeError, RecursionError)


# -- writing ---------------------------------------------------------------------------------------------------------


def apply_to_rows(db: sqlite3.Connection, session_id: str, change: Lasting) -> None:
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
            db.execute("UPDATE sessions SET state = ? WHERE id = ?", (dump_value(state), session_id))
        case LateSet(late):
            db.execute("DELETE FROM late WHERE session = ?", (session_id,))
            for result in late:
                insert_late(db, session_id, result)


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


def insert_late(db: sqlite3.Connection, session_id: str, late: LateResult) -> None:
    row = (session_id, late.call_id, late.name, late.content)
    db.execute("INSERT INTO late (session, call_id, name, content) VALUES (?, ?, ?, ?)", row)


# -- reading ---------------------------------------------------------------------------------------------------------


def load_rows(db: sqlite3.Connection, session_id: str) -> Stored:
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
            read_state(found.state),
            tuple(_read_run(db, session_id, row, messages) for row in runs),
            tuple(LateResult(*row) for row in late.fetchall()),
            found.epoch,
            tuple(float(at) for _, _, at in rows),
        )
        return reduce(apply, _facts_inside(db, session_id, stored), stored)
    except UNREADABLE as error:
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
        read_state(state_before),
        origin,
        None if ended else kept,
        None if counted is None else decode_counted(json.loads(counted)),
    )


def read_state(text: str) -> dict[str, Any]:  # Any: JSON values
    state: object = json.loads(text)
    if not isinstance(state, dict):
        raise ValueError("the state is no mapping")
    return cast("dict[str, Any]", decode_value(state))


def dump_value(state: Mapping[str, Any]) -> str:  # Any: values of the user's own
    return _dump(encode_values(state))


# `json.dumps` would make an encoder for every value.
_dump = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode

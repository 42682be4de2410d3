"""A session as rows of a SQLite file: what each statement writes there, and how the rows are read again.

Every function works inside a transaction that the writer or the reader has begun. What a change means is said once, by
`reducer.apply`; here it is said in rows, and only new ones are written, so a run's cost does not grow with the
conversation.
"""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

from safepoint.agent.codec import ENTRY, decode, decode_dropped, decode_memory, encode, encode_memory
from safepoint.agent.fact_codec import COUNTED, decode_fact, encode_fact
from safepoint.agent.journal import Called, Counted, Ended, Inside, Opened, Said
from safepoint.agent.ledger import LedgerEntry
from safepoint.errors import (
    CheckpointError,
    SessionExists,
    StoreCorrupt,
    Superseded,
)
from safepoint.history.json_codec import MESSAGE
from safepoint.history.parts import Message
from safepoint.storage import operations as op
from safepoint.storage.codec import UNREADABLE, dump_state, load_state
from safepoint.storage.reducer import apply
from safepoint.storage.session_data import (
    LateResult,
    LateSet,
    Released,
    SessionOutdated,
    StateSet,
    Stored,
    StoredRun,
    Truncated,
    Version,
    taken_by,
)
from safepoint.storage.sqlite.unit import SessionRow, Statements, Unit
from safepoint.tools.call_state import CallState


def was_written(unit: Unit, append: op.AppendChanges) -> bool:
    """Was this very write made before? A write that comes with its claim has no epoch yet: the claim finds out."""
    row = unit.find_session(append.session_id) if append.number and append.epoch is not None else None
    return row is not None and row.epoch == append.epoch and row.number >= append.number


# -- statements ------------------------------------------------------------------------------------------------------


def _create(unit: Unit, create: op.CreateSession) -> Version:
    # A first epoch that no session of this name has had: a run of a deleted one can't write here.
    epoch = secrets.randbits(48)
    try:
        row = (create.session_id, dump_state(create.state), epoch)
        unit.db.execute("INSERT INTO sessions (id, state, epoch) VALUES (?, ?, ?)", row)
    except sqlite3.IntegrityError:
        raise SessionExists(f"the session {create.session_id!r} is there already: load it") from None
    return Version(epoch, 0)


def _claim(unit: Unit, claim: op.ClaimSession) -> int:
    id = claim.session_id
    row = unit.session(id)
    owner = row.owner if row.claimant != claim.claimant else None
    if owner is not None and not unit.is_dead(owner, f"the session {id!r}"):
        raise taken_by(row.claimant, f"a run of the session {id!r} is live {unit.where(owner)}")
    if claim.expected is not None and claim.expected != Version(row.epoch, row.number):
        raise SessionOutdated(f"the session {id!r} was changed since it was loaded")
    unit.register()
    row.owner, row.claimant, row.epoch, row.number = unit.lease.worker, claim.claimant, row.epoch + 1, 0
    row.changed = True
    unit.epochs[id] = row.epoch
    return row.epoch


def _append(unit: Unit, append: op.AppendChanges) -> None:
    id = append.session_id
    row = unit.session(id)
    if row.epoch != (unit.epochs[id] if append.epoch is None else append.epoch):
        raise Superseded(f"the session {id!r} was taken over by another run")
    for change in append.changes:
        match change:
            case Released(claimant):
                _release_row(row, claimant)
            case StateSet(state):
                row.state = dump_state(state)
            case Opened():
                _open(unit.db, id, row.state, change)
            case _:
                apply_to_rows(unit.db, id, change)
    row.number = append.number or row.number + 1
    row.changed = True


def _release(unit: Unit, release: op.ReleaseSession) -> None:
    row = unit.find_session(release.session_id)
    if row is not None:
        _release_row(row, release.claimant)


def _release_row(row: SessionRow, claimant: str) -> None:
    if row.claimant == claimant and row.owner is not None:
        row.owner, row.changed = None, True


def _add_late(unit: Unit, add: op.AddLateResult) -> None:
    unit.session(add.session_id)
    insert_late(unit.db, add.session_id, add.late)


def _delete(unit: Unit, delete: op.DeleteSession) -> None:
    unit.forget_session(delete.session_id)
    unit.db.execute("DELETE FROM sessions WHERE id = ?", (delete.session_id,))
    for table in ("messages", "runs", "calls", "inside", "late"):
        unit.db.execute(f"DELETE FROM {table} WHERE session = ?", (delete.session_id,))


def _load(unit: Unit, load: op.LoadSession) -> Stored:
    return load_rows(unit, load.session_id)


def _list(unit: Unit, listed: op.ListSessions) -> list[str]:
    return [str(id) for id, _ in _listed(unit, listed.prefix)]


def _states(unit: Unit, states: op.SessionStates) -> dict[str, Mapping[str, Any]]:  # Any: JSON values
    found: dict[str, Mapping[str, Any]] = {}
    for id, state in _listed(unit, states.prefix):
        try:
            found[id] = load_state(state)
        except UNREADABLE as error:
            raise StoreCorrupt(f"the state of the session {id!r} can't be read: {error!r}") from error
    return found


def _listed(unit: Unit, prefix: str) -> list[tuple[str, str]]:
    unit.flush()
    query = "SELECT id, state FROM sessions WHERE id >= ? AND substr(id, 1, ?) = ? ORDER BY id"
    return unit.db.execute(query, (prefix, len(prefix), prefix)).fetchall()


STATEMENTS: Statements = {
    op.CreateSession: _create,
    op.ClaimSession: _claim,
    op.AppendChanges: _append,
    op.ReleaseSession: _release,
    op.AddLateResult: _add_late,
    op.DeleteSession: _delete,
    op.LoadSession: _load,
    op.ListSessions: _list,
    op.SessionStates: _states,
}

# -- writing ---------------------------------------------------------------------------------------------------------


def apply_to_rows(
    db: sqlite3.Connection, session_id: str, change: Said | Called | Counted | Inside | Ended | Truncated | LateSet
) -> None:
    """What `reducer.apply` says, in the rows beside that of the session."""
    match change:
        case Said(index, message, at):
            _insert_messages(db, session_id, index, [message], at)
        case Called(entry, memory):
            _insert_call(db, session_id, _last_run(db, session_id)[1], entry, memory)
        case Counted():
            counted = COUNTED.encode(change).decode()
            run_id = _last_run(db, session_id)[1]
            db.execute("UPDATE runs SET counted = ? WHERE session = ? AND run_id = ?", (counted, session_id, run_id))
        case Inside():
            row = (session_id, _last_run(db, session_id)[1], encode_fact(change).decode())
            db.execute("INSERT INTO inside (session, run_id, fact) VALUES (?, ?, ?)", row)
        case Ended():
            _end(db, session_id, change)
        case Truncated(index):
            _truncate(db, session_id, index)
            for (run_id,) in _runs_from(db, session_id, index):
                _forget_run(db, session_id, run_id)
        case LateSet(late):
            db.execute("DELETE FROM late WHERE session = ?", (session_id,))
            for result in late:
                insert_late(db, session_id, result)


def _open(db: sqlite3.Connection, session_id: str, state: str, opened: Opened) -> None:
    """`state`: of the session, as the run finds it."""
    origin = opened.run_id
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
    # Without an id: until the run ends, this is what it goes on from, and no other run may continue it.
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
    bodies = [MESSAGE.encode(message).decode() for message in messages]
    rows = [(session_id, place, body, at) for place, body in enumerate(bodies, index)]
    db.executemany(
        "INSERT INTO messages (session, place, body, at) VALUES (?, ?, ?, ?) ON CONFLICT (session, place) "
        "DO UPDATE SET body = excluded.body, at = excluded.at WHERE body != excluded.body",
        rows,
    )


def _insert_call(
    db: sqlite3.Connection, session_id: str, run_id: str, entry: LedgerEntry, memory: CallState | None
) -> None:
    remembered = None if memory is None else encode_memory(memory).decode()
    db.execute(
        "INSERT INTO calls (session, run_id, call_id, entry, memory) VALUES (?, ?, ?, ?, ?) "
        "ON CONFLICT (session, run_id, call_id) DO UPDATE SET entry = excluded.entry, "
        "memory = coalesce(excluded.memory, memory)",
        (session_id, run_id, entry.call_id, ENTRY.encode(entry).decode(), remembered),
    )


def _text(text: str) -> str | bytes:
    """A lone surrogate has no form in UTF-8: such a text is kept as bytes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")
    return text


def _read_text(kept: str | bytes) -> str:
    return kept if isinstance(kept, str) else kept.decode("utf-8", "surrogatepass")


def insert_late(db: sqlite3.Connection, session_id: str, late: LateResult) -> None:
    row = (session_id, late.call_id, late.name, _text(late.content))
    db.execute("INSERT INTO late (session, call_id, name, content) VALUES (?, ?, ?, ?)", row)


# -- reading ---------------------------------------------------------------------------------------------------------


def load_rows(unit: Unit, session_id: str) -> Stored:
    db, found = unit.db, unit.session(session_id)
    rows = db.execute("SELECT place, body, at FROM messages WHERE session = ? ORDER BY place", (session_id,)).fetchall()
    columns = "run_id, agent, place, ended, stop_reason, checkpoint, state_before, origin, counted"
    runs = db.execute(f"SELECT {columns} FROM runs WHERE session = ? ORDER BY number", (session_id,)).fetchall()
    late = db.execute("SELECT call_id, name, content FROM late WHERE session = ? ORDER BY number", (session_id,))
    try:
        if [place for place, _, _ in rows] != list(range(len(rows))):
            raise ValueError("a message is missing")
        messages = tuple(MESSAGE.decode(body) for _, body, _ in rows)
        stored = Stored(
            messages,
            load_state(found.state),
            tuple(_read_run(db, session_id, row, messages) for row in runs),
            tuple(LateResult(id, name, _read_text(text)) for id, name, text in late.fetchall()),
            found.epoch,
            tuple(float(at) for _, _, at in rows),
            found.number,
        )
        return reduce(apply, _facts_inside(db, session_id, stored), stored)
    except UNREADABLE as error:
        raise StoreCorrupt(f"the session {session_id!r} can't be read: {error!r}; it was left as it is") from error


def _facts_inside(db: sqlite3.Connection, session_id: str, stored: Stored) -> list[Inside]:
    """What the runs inside an unfinished run have written: applied once more, these facts restore them."""
    if not stored.runs or stored.runs[-1].ended:
        return []
    query = "SELECT fact FROM inside WHERE session = ? AND run_id = ? ORDER BY number"
    facts = [decode_fact(fact) for (fact,) in db.execute(query, (session_id, stored.runs[-1].run_id))]
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
    entries = [(ENTRY.decode(entry), memory) for entry, memory in calls]
    kept = None if checkpoint is None else decode(checkpoint, messages)
    return StoredRun(
        run_id,
        agent,
        place,
        bool(ended),
        stop_reason,
        kept if ended else None,
        tuple(entry for entry, _ in entries),
        {entry.call_id: decode_memory(memory) for entry, memory in entries if memory is not None},
        load_state(state_before),
        origin,
        None if ended else kept,
        None if counted is None else COUNTED.decode(counted),
    )

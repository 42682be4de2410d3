"""Records of runs, and requests to cancel them, as rows of a SQLite file."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Mapping
from typing import Any

from msgspec.structs import astuple

from safepoint.errors import StoreCorrupt
from safepoint.storage import operations as op
from safepoint.storage.codec import dump_optional, load_optional
from safepoint.storage.run_records import (
    AlreadyAccepted,
    RecordMoved,
    RunRecord,
    RunState,
    StoredCancelRequest,
    is_in_line,
    is_left_behind,
    left_behind,
    moved,
    must_wait,
    same_request,
    take_over,
)
from safepoint.storage.sqlite.unit import Statements, Unit

_log = logging.getLogger("safepoint")

_NAMES = (
    *("run_id", "session", "state", "created_at", "owner", "request", "key", "digest"),
    *("started_at", "ended_at", "outcome", "reason", "epoch", "by", "usage", "deaths"),
)
_COLUMNS = ", ".join(_NAMES)
# A record that is accepted again keeps its row: rows are in the order in which runs were accepted.
_WRITE = (
    f"INSERT INTO run_records ({_COLUMNS}) VALUES ({', '.join('?' * len(_NAMES))}) "
    f"ON CONFLICT (run_id) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in _NAMES)}"
)
_BY_KEY = "session = ? AND key = ? AND created_at >= ?"
_OPEN = "state != 'ended'"


def _accept(unit: Unit, accept: op.AcceptRun) -> RunRecord:
    db, record = unit.db, accept.record
    if record.key is not None:
        known = _select(db, _BY_KEY, (record.session, record.key, accept.since))
        if known:
            raise AlreadyAccepted(same_request(known[0], record.digest))
    beside = _open_beside(db, record) if accept.only_first or record.state is RunState.LIVE else []
    if accept.only_first:
        for other in beside:
            if is_in_line(other):
                raise must_wait(record, other)
    if record.owner == unit.lease.worker:
        unit.register()
    _insert(db, record)
    _leave_behind(db, beside, record)
    return record


def _move(unit: Unit, move: op.MoveRun) -> RunRecord:
    before = _known(unit.db, move.run_id)
    record = moved(before, move.state, move.epoch, move.changes)
    _update(unit.db, before, record)
    _leave_behind(unit.db, _open_beside(unit.db, record) if record.state is RunState.LIVE else [], record)
    return record


def _take(unit: Unit, take: op.TakeRun) -> RunRecord:
    if take.owner == unit.lease.worker:
        unit.register()
    before = _known(unit.db, take.run_id)
    record = take_over(before, take.owner, take.epoch)
    _update(unit.db, before, record)
    return record


def _get(unit: Unit, get: op.GetRun) -> RunRecord | None:
    found = _select(unit.db, "run_id = ?", (get.run_id,))
    return found[0] if found else None


def _by_key(unit: Unit, query: op.RunByKey) -> RunRecord | None:
    found = _select(unit.db, _BY_KEY, (query.session_id, query.key, query.since))
    return found[0] if found else None


def _find(unit: Unit, find: op.FindRuns) -> list[RunRecord]:
    where, given = ("session = ?", (find.session_id,)) if find.session_id is not None else _begins_with(find.prefix)
    return _select(unit.db, f"{where} ORDER BY created_at DESC, rowid DESC LIMIT ?", (*given, find.limit))


def _over(unit: Unit, query: op.EndedRuns) -> list[RunRecord]:
    where, given = _begins_with(query.prefix)
    below, place = ("", ()) if query.after is None else (" AND (created_at, run_id) < (?, ?)", astuple(query.after))
    text = f"{where} AND state = 'ended'{below} ORDER BY created_at DESC, run_id DESC LIMIT ?"
    return _select(unit.db, text, (*given, *place, query.limit))


def _still_open(unit: Unit, query: op.OpenRuns) -> list[RunRecord]:
    where, given = [_OPEN], list[str]()
    if not query.waiting:
        where.append("state != 'paused'")
    for column, value in (("session", query.session_id), ("owner", query.owner)):
        if value is not None:
            where.append(f"{column} = ?")
            given.append(value)
    return _select(unit.db, f"{' AND '.join(where)} ORDER BY rowid", tuple(given))


def _orphans(unit: Unit, query: op.OrphanedRuns) -> list[RunRecord]:
    """Owners are few, and their runs may be many: only those of the dead are read."""
    which, given = (_OPEN, ()) if query.run_id is None else (f"{_OPEN} AND run_id = ?", (query.run_id,))
    rows = unit.db.execute(f"SELECT DISTINCT owner FROM run_records WHERE {which}", given).fetchall()
    dead = [owner for (owner,) in rows if _is_dead(unit, owner)]
    if not dead:
        return []
    wanted = which if query.waiting else f"{which} AND state != 'paused'"
    return _select(unit.db, f"{wanted} AND owner IN ({', '.join('?' * len(dead))}) ORDER BY rowid", (*given, *dead))


def _is_dead(unit: Unit, owner: str) -> bool:
    try:
        return unit.is_dead(owner, "a run")
    except StoreCorrupt as error:  # its runs are left alone; those of other owners are not
        _log.error("%s", error)
        return False


def _request(unit: Unit, request: op.RequestCancel) -> int:
    row = (request.run_id, json.dumps(dict(request.ask)), request.acknowledged)
    query = "INSERT INTO cancel_requests (run_id, ask, acknowledged) VALUES (?, ?, ?)"
    number = unit.db.execute(query, row).lastrowid
    assert number is not None
    return number


def _acknowledge(unit: Unit, acknowledge: op.AcknowledgeCancel) -> None:
    unit.db.execute("UPDATE cancel_requests SET acknowledged = 1 WHERE number = ?", (acknowledge.number,))


def _answer(unit: Unit, answer: op.AnswerCancel) -> None:
    row = (json.dumps(dict(answer.answer)), answer.number)
    unit.db.execute("UPDATE cancel_requests SET answer = ? WHERE number = ?", row)


def _withdraw(unit: Unit, withdraw: op.WithdrawCancel) -> None:
    which = "run_id = ? AND json_extract(ask, '$.id') = ?"
    unit.db.execute(f"DELETE FROM cancel_requests WHERE {which}", (withdraw.run_id, withdraw.ask_id))


def _requests(unit: Unit, query: op.CancelRequests) -> list[StoredCancelRequest]:
    return _stored_requests(unit.db, "run_id = ?", (query.run_id,))


def _unheard(unit: Unit, query: op.UnheardCancels) -> list[StoredCancelRequest]:
    mine = f"run_id IN (SELECT run_id FROM run_records WHERE owner = ? AND {_OPEN})"
    return _stored_requests(unit.db, f"acknowledged = 0 AND {mine}", (query.owner,))


def _answer_to(unit: Unit, query: op.CancelAnswer) -> Mapping[str, Any] | None:  # Any: JSON values
    found = unit.db.execute("SELECT answer FROM cancel_requests WHERE number = ?", (query.number,)).fetchone()
    return None if found is None else load_optional(found[0])


def _touch(unit: Unit, touch: op.TouchSession) -> None:
    row = (touch.session_id, touch.at)
    unit.db.execute("INSERT OR REPLACE INTO session_marks (session, at) VALUES (?, ?)", row)


def _touched(unit: Unit, query: op.TouchedSessions) -> dict[str, float]:
    where, given = _begins_with(query.prefix)
    runs = f"SELECT session, max(coalesce(ended_at, created_at)) FROM run_records WHERE {where} GROUP BY session"
    marks = f"SELECT session, at FROM session_marks WHERE {where}"
    text = f"SELECT session, max(at) FROM ({marks} UNION ALL {runs}) GROUP BY session"
    return {str(session): float(at) for session, at in unit.db.execute(text, (*given, *given))}


def _forget(unit: Unit, forget: op.ForgetRuns) -> None:
    mine, given = "run_id IN (SELECT run_id FROM run_records WHERE session = ?)", (forget.session_id,)
    unit.db.execute(f"DELETE FROM cancel_requests WHERE {mine}", given)
    unit.db.execute("DELETE FROM run_records WHERE session = ?", given)
    unit.db.execute("DELETE FROM session_marks WHERE session = ?", given)


STATEMENTS: Statements = {
    op.AcceptRun: _accept,
    op.MoveRun: _move,
    op.TakeRun: _take,
    op.RequestCancel: _request,
    op.AcknowledgeCancel: _acknowledge,
    op.AnswerCancel: _answer,
    op.WithdrawCancel: _withdraw,
    op.TouchSession: _touch,
    op.ForgetRuns: _forget,
    op.GetRun: _get,
    op.RunByKey: _by_key,
    op.FindRuns: _find,
    op.EndedRuns: _over,
    op.OpenRuns: _still_open,
    op.OrphanedRuns: _orphans,
    op.CancelRequests: _requests,
    op.UnheardCancels: _unheard,
    op.CancelAnswer: _answer_to,
    op.TouchedSessions: _touched,
}


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


def _stored_requests(db: sqlite3.Connection, where: str, given: tuple[object, ...]) -> list[StoredCancelRequest]:
    columns = "number, run_id, ask, acknowledged, answer"
    rows = db.execute(f"SELECT {columns} FROM cancel_requests WHERE {where} ORDER BY number", given)
    return [
        StoredCancelRequest(number, run_id, json.loads(ask), bool(acknowledged), load_optional(answer))
        for number, run_id, ask, acknowledged, answer in rows
    ]


def _open_beside(db: sqlite3.Connection, record: RunRecord) -> list[RunRecord]:
    """The records of its session that have not ended; itself, if it is stored."""
    return _select(db, f"session = ? AND {_OPEN}", (record.session,))


def _leave_behind(db: sqlite3.Connection, beside: list[RunRecord], record: RunRecord) -> None:
    """End those that end because it is live."""
    for other in beside:
        if record.state is RunState.LIVE and is_left_behind(other, record):
            _update(db, other, left_behind(other))


def _insert(db: sqlite3.Connection, record: RunRecord) -> None:
    db.execute(_WRITE, [_column(name, getattr(record, name)) for name in _NAMES])


def _update(db: sqlite3.Connection, before: RunRecord, record: RunRecord) -> None:
    """Only what has changed: SQLite writes every index anew that has one of the columns, also if its value stays."""
    changed = [name for name in _NAMES if getattr(record, name) != getattr(before, name)]
    if changed:
        row = [_column(name, getattr(record, name)) for name in changed]
        columns = ", ".join(f"{name} = ?" for name in changed)
        db.execute(f"UPDATE run_records SET {columns} WHERE run_id = ?", (*row, record.run_id))


def _column(name: str, value: Any) -> Any:  # Any: as the record has it, and as the row has it
    if name == "request":
        return json.dumps(dict(value))
    return dump_optional(value) if name in ("reason", "usage") else value


def _read(row: tuple[Any, ...]) -> RunRecord:  # Any: a row
    fields = dict(zip(_NAMES, row, strict=True))
    fields["state"] = RunState(fields["state"])
    fields["request"] = json.loads(fields["request"])
    for name in ("reason", "usage"):
        fields[name] = load_optional(fields[name])
    return RunRecord(**fields)

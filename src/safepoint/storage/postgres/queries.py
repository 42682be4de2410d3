"""Queries as SQL: each is one statement, so it sees one moment of the database."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from functools import reduce
from typing import Any

from msgspec import convert
from msgspec.structs import astuple, replace

from safepoint.agent.codec import ENTRY, decode_memory
from safepoint.agent.codec import decode as decode_checkpoint
from safepoint.agent.fact_codec import COUNTED, decode_fact
from safepoint.agent.freeze import Freeze
from safepoint.agent.journal import Inside
from safepoint.errors import CheckpointError, SessionNotFound, StoreCorrupt
from safepoint.history.json_codec import MESSAGE
from safepoint.history.parts import Message
from safepoint.storage import operations as op
from safepoint.storage.audit import AuditEntry
from safepoint.storage.codec import UNREADABLE, load_optional, load_state
from safepoint.storage.loop_data import StoredItem, StoredLoop, StoredState, StoredTurn
from safepoint.storage.operations import Query
from safepoint.storage.postgres.rows import RECORD_COLUMNS, read_record
from safepoint.storage.postgres.statements import read_shared
from safepoint.storage.postgres.text_codec import escape, unescape
from safepoint.storage.reducer import apply
from safepoint.storage.run_records import RunRecord, StoredCancelRequest
from safepoint.storage.session_data import LateResult, Stored, StoredRun
from safepoint.storage.shared_state import Note

Rows = list[tuple[Any, ...]]  # Any: the columns
# Runs one SQL text with its values. Any: the values that SQL takes.
Fetch = Callable[[str, Mapping[str, Any]], Awaitable[Rows]]

_COLUMNS = ", ".join(RECORD_COLUMNS)
_RECORDS = f"SELECT {_COLUMNS} FROM safepoint.run_records WHERE"
_REQUESTS = "SELECT number, run_id, ask, acknowledged, answer FROM safepoint.cancel_requests WHERE"


async def run_query(query: Query[Any], fetch: Fetch) -> Any:  # Any: its result
    """Raises `TypeError` for what is no query."""
    try:
        run = _QUERIES[type(query)]
    except KeyError:
        raise TypeError(f"no query of a storage: {query!r}") from None
    return await run(query, fetch)


# -- sessions --------------------------------------------------------------------------------------------------------

# One statement for all tables of a session: kind, number, texts, a time.
_LOAD = """
SELECT 0, epoch, number, state, NULL, NULL, NULL, NULL, NULL, NULL, NULL::float8, NULL::boolean
    FROM safepoint.sessions WHERE id = %(id)s
UNION ALL SELECT 1, place, NULL, body, NULL, NULL, NULL, NULL, NULL, NULL, at, NULL
    FROM safepoint.messages WHERE session = %(id)s
UNION ALL SELECT 2, number, place, run_id, agent, stop_reason, checkpoint, state_before, origin, counted, NULL, ended
    FROM safepoint.runs WHERE session = %(id)s
UNION ALL SELECT 3, number, NULL, run_id, entry, memory, NULL, NULL, NULL, NULL, NULL, NULL
    FROM safepoint.calls WHERE session = %(id)s
UNION ALL SELECT 4, number, NULL, run_id, fact, NULL, NULL, NULL, NULL, NULL, NULL, NULL
    FROM safepoint.inside WHERE session = %(id)s
UNION ALL SELECT 5, number, NULL, call_id, name, content, NULL, NULL, NULL, NULL, NULL, NULL
    FROM safepoint.late WHERE session = %(id)s
ORDER BY 1, 2
"""


async def _load(load: op.LoadSession, fetch: Fetch) -> Stored:
    kinds: list[Rows] = [[] for _ in range(6)]
    for row in await fetch(_LOAD, {"id": escape(load.session_id)}):
        kind: int = row[0]
        kinds[kind].append(row[1:])
    if not kinds[0]:
        raise SessionNotFound(f"there is no session {load.session_id!r}: create it first")
    try:
        return _read_session(kinds)
    except UNREADABLE as error:
        raise StoreCorrupt(f"the session {load.session_id!r} can't be read: {error!r}; it was left as it is") from error


def _read_session(kinds: list[Rows]) -> Stored:
    [(epoch, number, state, *_)], said, runs, calls, facts, late = kinds
    if [place for place, *_ in said] != list(range(len(said))):
        raise ValueError("a message is missing")
    messages = tuple(MESSAGE.decode(row[2]) for row in said)
    by_run: dict[str, Rows] = {}
    for row in calls:
        by_run.setdefault(row[2], []).append(row)
    stored = Stored(
        messages,
        load_state(state),
        tuple(_read_run(row, by_run.get(row[2], []), messages) for row in runs),
        tuple(LateResult(unescape(row[2]), unescape(row[3]), unescape(row[4])) for row in late),
        epoch,
        tuple(float(row[9]) for row in said),
        number,
    )
    if not stored.runs or stored.runs[-1].ended:
        return stored
    # What the runs inside a run that has not ended have written: told once more, they are what they were.
    inside = [decode_fact(row[3]) for row in facts if row[2] == runs[-1][2]]
    return reduce(apply, [fact for fact in inside if isinstance(fact, Inside)], stored)


def _read_run(row: tuple[Any, ...], calls: Rows, messages: tuple[Message, ...]) -> StoredRun:  # Any: the columns
    _, place, run_id, agent, stop_reason, checkpoint, state_before, origin, counted, _, ended = row
    entries = [(ENTRY.decode(call[3]), call[4]) for call in calls]
    kept = None if checkpoint is None else decode_checkpoint(checkpoint.encode(), messages)
    return StoredRun(
        unescape(run_id),
        unescape(agent),
        place,
        ended,
        stop_reason,
        kept if ended else None,
        tuple(entry for entry, _ in entries),
        {entry.call_id: decode_memory(memory) for entry, memory in entries if memory is not None},
        load_state(state_before),
        unescape(origin),
        None if ended else kept,
        None if counted is None else COUNTED.decode(counted),
    )


def _prefix(prefix: str, column: str) -> tuple[str, dict[str, str]]:
    """No character sorts above the last one, so the range is all that begin so, and an index can find it."""
    if not prefix:
        return "TRUE", {}
    begin = escape(prefix)
    return f"{column} >= %(begin)s AND {column} < %(end)s", {"begin": begin, "end": begin + "\U0010ffff"}


async def _list(listed: op.ListSessions, fetch: Fetch) -> list[str]:
    where, given = _prefix(listed.prefix, "id")
    rows = await fetch(f"SELECT id FROM safepoint.sessions WHERE {where} ORDER BY id", given)
    return [unescape(id) for (id,) in rows]


async def _states(states: op.SessionStates, fetch: Fetch) -> dict[str, Mapping[str, Any]]:  # Any: JSON values
    where, given = _prefix(states.prefix, "id")
    found: dict[str, Mapping[str, Any]] = {}  # Any: JSON values
    for id, state in await fetch(f"SELECT id, state FROM safepoint.sessions WHERE {where} ORDER BY id", given):
        try:
            found[unescape(id)] = load_state(state)
        except UNREADABLE as error:
            raise StoreCorrupt(f"the state of the session {unescape(id)!r} can't be read: {error!r}") from error
    return found


# -- runs ------------------------------------------------------------------------------------------------------------


async def _records(fetch: Fetch, where: str, given: Mapping[str, Any]) -> list[RunRecord]:  # Any: as in `Fetch`
    rows = await fetch(f"{_RECORDS} {where}", given)
    return [read_record(dict(zip(RECORD_COLUMNS, row, strict=True))) for row in rows]


async def _get(get: op.GetRun, fetch: Fetch) -> RunRecord | None:
    found = await _records(fetch, "run_id = %(id)s", {"id": escape(get.run_id)})
    return found[0] if found else None


async def _by_key(query: op.RunByKey, fetch: Fetch) -> RunRecord | None:
    where = "session = %(session)s AND key = %(key)s AND created_at >= %(since)s ORDER BY accepted LIMIT 1"
    given = {"session": escape(query.session_id), "key": escape(query.key), "since": query.since}
    found = await _records(fetch, where, given)
    return found[0] if found else None


async def _find(find: op.FindRuns, fetch: Fetch) -> list[RunRecord]:
    where, given = _prefix(find.prefix, "session")
    if find.session_id is not None:
        where, given = "session = %(session)s", {"session": escape(find.session_id)}
    order = "ORDER BY created_at DESC, accepted DESC LIMIT %(limit)s"
    return await _records(fetch, f"{where} {order}", {**given, "limit": find.limit})


async def _over(query: op.EndedRuns, fetch: Fetch) -> list[RunRecord]:
    where, given = _prefix(query.prefix, "session")
    values: dict[str, Any] = {**given, "limit": query.limit}  # Any: as in `Fetch`
    if query.after is not None:
        where += " AND (created_at, run_id) < (%(at)s, %(id)s)"
        at, id = astuple(query.after)
        values |= {"at": at, "id": escape(id)}
    order = "ORDER BY created_at DESC, run_id DESC LIMIT %(limit)s"
    return await _records(fetch, f"{where} AND state = 'ended' {order}", values)


async def _still_open(query: op.OpenRuns, fetch: Fetch) -> list[RunRecord]:
    where = "state <> 'ended'" if query.waiting else "state <> 'ended' AND state <> 'paused'"
    given: dict[str, str] = {}
    for column, value in (("session", query.session_id), ("owner", query.owner)):
        if value is not None:
            where += f" AND {column} = %({column})s"
            given[column] = escape(value)
    return await _records(fetch, f"{where} ORDER BY accepted", given)


async def _orphans(query: op.OrphanedRuns, fetch: Fetch) -> list[RunRecord]:
    """Dead workers are few, and their runs are found by an index, so no query lists all runs."""
    where = "state <> 'ended'" if query.waiting else "state <> 'ended' AND state <> 'paused'"
    where += " AND (owner = '' OR owner IN (SELECT id FROM safepoint.workers WHERE lease_until <= clock_timestamp()))"
    given: dict[str, str] = {}
    if query.run_id is not None:
        where, given = f"run_id = %(id)s AND {where}", {"id": escape(query.run_id)}
    return await _records(fetch, f"{where} ORDER BY accepted", given)


async def _touched(query: op.TouchedSessions, fetch: Fetch) -> dict[str, float]:
    where, given = _prefix(query.prefix, "session")
    runs = f"SELECT session, coalesce(ended_at, created_at) AS at FROM safepoint.run_records WHERE {where}"
    marks = f"SELECT session, at FROM safepoint.session_marks WHERE {where}"
    rows = await fetch(f"SELECT session, max(at) FROM ({marks} UNION ALL {runs}) AS all_of_them GROUP BY 1", given)
    return {unescape(session): float(at) for session, at in rows}


# -- requests to cancel them -----------------------------------------------------------------------------------------


async def _requests(query: op.CancelRequests, fetch: Fetch) -> list[StoredCancelRequest]:
    rows = await fetch(f"{_REQUESTS} run_id = %(id)s ORDER BY number", {"id": escape(query.run_id)})
    return [_read_request(row) for row in rows]


async def _unheard(query: op.UnheardCancels, fetch: Fetch) -> list[StoredCancelRequest]:
    mine = "SELECT run_id FROM safepoint.run_records WHERE owner = %(owner)s AND state <> 'ended'"
    where = f"NOT acknowledged AND run_id IN ({mine}) ORDER BY number"
    return [_read_request(row) for row in await fetch(f"{_REQUESTS} {where}", {"owner": escape(query.owner)})]


def _read_request(row: tuple[Any, ...]) -> StoredCancelRequest:  # Any: the columns
    number, run_id, ask, acknowledged, answer = row
    return StoredCancelRequest(number, unescape(run_id), json.loads(ask), acknowledged, load_optional(answer))


async def _answer(query: op.CancelAnswer, fetch: Fetch) -> Mapping[str, Any] | None:  # Any: JSON values
    sql = "SELECT answer FROM safepoint.cancel_requests WHERE number = %(number)s"
    rows = await fetch(sql, {"number": query.number})
    return load_optional(rows[0][0]) if rows else None


# -- what operators have ordered -------------------------------------------------------------------------------------


async def _freezes(query: op.ListFreezes, fetch: Fetch) -> list[Freeze]:
    rows = await fetch("SELECT body FROM safepoint.freezes ORDER BY at, id", {})
    return [convert(json.loads(body), Freeze) for (body,) in rows]


async def _trail(read: op.ReadAudit, fetch: Fetch) -> list[AuditEntry]:
    where = "number > %(after)s"
    given: dict[str, int | str] = {"after": read.after, "limit": read.limit}
    if read.run_id is not None:
        where, given["run"] = f"{where} AND run_id = %(run)s", escape(read.run_id)
    rows = await fetch(f"SELECT number, body FROM safepoint.audit WHERE {where} ORDER BY number LIMIT %(limit)s", given)
    return [replace(convert(json.loads(body), AuditEntry), number=number) for number, body in rows]


# -- shared state, notes, loops --------------------------------------------------------------------------------------


async def _shared(read: op.ReadShared, fetch: Fetch) -> dict[str, Any]:  # Any: JSON values
    sql = "SELECT name, value FROM safepoint.shared_values WHERE place = ANY (%(places)s::text[])"
    return read_shared(dict(await fetch(sql, {"places": [escape(place) for place in read.places]})))


async def _notes(read: op.ReadNotes, fetch: Fetch) -> list[Note]:
    sql = "SELECT at, body FROM safepoint.session_notes WHERE session = %(id)s ORDER BY number"
    return [Note(float(at), json.loads(body)) for at, body in await fetch(sql, {"id": escape(read.session_id)})]


_LOOP = """
SELECT 0, number, value, turn, NULL, NULL, NULL::text[], joining FROM safepoint.loop_items WHERE loop = %(id)s
UNION ALL SELECT 1, number, key, state, error, checkpoint, runs, NULL FROM safepoint.loop_turns WHERE loop = %(id)s
UNION ALL SELECT 2, place, turn, message, NULL, NULL, NULL, NULL FROM safepoint.loop_messages WHERE loop = %(id)s
ORDER BY 1, 2
"""


async def _loop(read: op.ReadLoop, fetch: Fetch) -> StoredLoop:
    kinds: list[Rows] = [[], [], []]
    for row in await fetch(_LOOP, {"id": escape(read.id)}):
        kind: int = row[0]
        kinds[kind].append(row[1:])
    try:
        return _read_loop(*kinds)
    except (ValueError, TypeError, KeyError, CheckpointError) as error:
        raise StoreCorrupt(f"the loop's record can't be read: {error!r}; it was left as it is") from error


def _read_loop(item_rows: Rows, turn_rows: Rows, message_rows: Rows) -> StoredLoop:
    said: dict[str, list[Message]] = {}
    for row in message_rows:
        said.setdefault(row[1], []).append(MESSAGE.decode(row[2]))
    items = tuple(StoredItem(row[0], unescape(row[1]), unescape(row[2]), row[6]) for row in item_rows)
    turns: list[StoredTurn] = []
    for _, key, state, error, data, runs, _ in turn_rows:
        checkpoint = None if data is None else decode_checkpoint(data.encode(), tuple(said.get(key, ())))
        ids = tuple(unescape(run) for run in runs)
        turns.append(StoredTurn(unescape(key), StoredState(state), ids, checkpoint, unescape(error)))
    return StoredLoop(items, tuple(turns), tuple(said.get("", ())), items[-1].number if items else 0)


# Any: a query of that type, and its result.
_QUERIES: Mapping[type, Callable[[Any, Fetch], Awaitable[Any]]] = {
    op.LoadSession: _load,
    op.ListSessions: _list,
    op.SessionStates: _states,
    op.GetRun: _get,
    op.RunByKey: _by_key,
    op.FindRuns: _find,
    op.EndedRuns: _over,
    op.OpenRuns: _still_open,
    op.OrphanedRuns: _orphans,
    op.CancelRequests: _requests,
    op.UnheardCancels: _unheard,
    op.CancelAnswer: _answer,
    op.TouchedSessions: _touched,
    op.ListFreezes: _freezes,
    op.ReadAudit: _trail,
    op.ReadShared: _shared,
    op.ReadNotes: _notes,
    op.ReadLoop: _loop,
}

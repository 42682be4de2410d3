"""Units of work as the JSON that `commit_units` takes, and its answers as results.

Everything that Python knows is encoded before anything is sent: what is decided is decided in the database.
"""

from __future__ import annotations

import json
import secrets
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import md5
from typing import Any

from msgspec import to_builtins

from safepoint.agent.codec import ENTRY, encode_memory
from safepoint.agent.codec import encode as encode_checkpoint
from safepoint.agent.fact_codec import COUNTED, encode_fact
from safepoint.agent.freeze import TOPIC as FREEZES
from safepoint.agent.journal import Called, Counted, Ended, Inside, Opened, Said
from safepoint.agent.ledger import LedgerEntry
from safepoint.storage import operations as op
from safepoint.storage.codec import dump_json, dump_state
from safepoint.storage.operations import Statement
from safepoint.storage.postgres.rows import (
    RECORD,
    Json,
    loop_change,
    message_bodies,
    read_record,
    record_columns,
    whole_loop,
)
from safepoint.storage.postgres.text_codec import escape, unescape
from safepoint.storage.session_data import (
    Change,
    LateResult,
    LateSet,
    Released,
    StateSet,
    Truncated,
    Version,
)
from safepoint.tools.call_state import CallState

AnyStatement = Statement[Any]  # Any: of every result
# Any: what the database answered for the statement, and what its caller gets.
Decode = Callable[[Any], Any]


@dataclass(slots=True)
class UnitData:
    """A unit of work, encoded. `names`: what it touches, by which calls are kept in order: `s:` a session, `r:` a run,
    `l:` a loop. `runs`: those of whose session it does not know.
    """

    ops: list[Json] = field(default_factory=list[Json])
    decoders: list[Decode] = field(default_factory=list[Decode])
    names: set[str] = field(default_factory=set[str])
    runs: set[str] = field(default_factory=set[str])
    topics: set[str] = field(default_factory=set[str])
    written: tuple[str, int, int] | None = None
    receipt: str = field(default_factory=lambda: str(uuid.uuid4()))
    takes_ownership: bool = False

    @property
    def body(self) -> Json:
        """A write with a number proves itself; every other unit leaves a receipt."""
        proof = {"receipt": self.receipt} if self.written is None else {"written": self.written}
        return {"ops": self.ops, "topics": sorted(self.topics), **proof}

    @property
    def locks(self) -> set[str]:
        receipts = {"u:" + self.receipt} if self.written is None else set[str]()
        return {name for name in self.names if not name.startswith("r:")} | receipts

    def results(self, answers: list[Any] | None) -> tuple[Any, ...]:  # Any: of every statement
        """`answers`: None if the unit was written before."""
        if answers is None:
            return (None,) * len(self.ops)
        return tuple(decode(answer) for decode, answer in zip(self.decoders, answers, strict=True))


def topic(kind: str, id: str) -> str:
    """As `safepoint.topic`: short, and it reveals no id to other listeners."""
    return kind + md5(id.encode(), usedforsecurity=False).hexdigest()


def encode_unit(statements: Sequence[AnyStatement]) -> UnitData:
    """Raises `ValueError` for a statement that must be read on its own."""
    unit = UnitData()
    for statement in statements:
        data, decode = _encode(statement, unit)
        unit.ops.append(data)
        unit.decoders.append(decode)
    return unit


def is_inline(statement: AnyStatement) -> bool:
    """Can it be part of a unit that is one statement? Other queries are read in the same transaction."""
    return isinstance(statement, op.Operation | op.ReadShared) and not isinstance(statement, op.OpenLoop)


def _encode(statement: AnyStatement, unit: UnitData) -> tuple[Json, Decode]:
    for encode in (_of_sessions, _of_runs, _of_requests, _of_the_rest):
        found = encode(statement, unit)
        if found is not None:
            return found
    raise ValueError(f"no operation of a storage: {statement!r}")


def _session(unit: UnitData, session_id: str, *, publish: bool = True) -> str:
    id = escape(session_id)
    unit.names.add("s:" + id)
    if publish:
        unit.topics.add(topic("s", id))
    return id


def _run(unit: UnitData, run_id: str) -> str:
    id = escape(run_id)
    unit.names.add("r:" + id)
    unit.runs.add(id)
    unit.topics.add(topic("r", id))
    return id


def _loop(unit: UnitData, loop_id: str) -> str:
    id = escape(loop_id)
    unit.names.add("l:" + id)
    return id


def _frozen(unit: UnitData) -> None:
    unit.names.add("t:" + FREEZES)
    unit.topics.add(topic("t", FREEZES))


def _nothing(answer: Any) -> Any:  # Any: as `Decode`
    return None


def _same(answer: Any) -> Any:  # Any: as `Decode`
    return answer


def _of_sessions(statement: AnyStatement, unit: UnitData) -> tuple[Json, Decode] | None:
    match statement:
        case op.CreateSession(session_id, state):
            # A first epoch that no session of this name has had: a run of a deleted one can't write here.
            epoch = secrets.randbits(48)
            data = {"op": "create", "session": _session(unit, session_id), "state": dump_state(state), "epoch": epoch}
            return data, lambda _: Version(epoch, 0)
        case op.ClaimSession(session_id, claimant, expected):
            unit.takes_ownership = True
            data = {"op": "claim", "session": _session(unit, session_id), "claimant": escape(claimant)}
            return data if expected is None else {**data, "expected": list(expected)}, _same
        case op.AppendChanges(session_id, epoch, changes, number):
            id = _session(unit, session_id)
            if epoch is not None and number and unit.written is None:
                unit.written = (id, epoch, number)
            encoded = [encode_change(change) for change in changes]
            return {"op": "append", "session": id, "epoch": epoch, "number": number, "changes": encoded}, _nothing
        case op.ReleaseSession(session_id, claimant):
            return {"op": "release", "session": _session(unit, session_id), "claimant": escape(claimant)}, _nothing
        case op.AddLateResult(session_id, late):
            return {"op": "late", "session": _session(unit, session_id, publish=False), "late": _late(late)}, _nothing
        case op.DeleteSession(session_id):
            return {"op": "delete", "session": _session(unit, session_id)}, _nothing
        case _:
            return None


def _of_runs(statement: AnyStatement, unit: UnitData) -> tuple[Json, Decode] | None:
    match statement:
        case op.AcceptRun(record, since, only_first):
            unit.takes_ownership = True
            _session(unit, record.session)
            _run(unit, record.run_id)
            columns = record_columns({name: getattr(record, name) for name in RECORD})
            data = {"op": "accept", "record": columns, "since": since, "only_first": only_first}
            return data, lambda _: record
        case op.MoveRun(run_id, state, epoch, changes):
            data = {"op": "move", "run": _run(unit, run_id), "state": str(state), "epoch": epoch}
            return {**data, "changes": record_columns(changes)}, read_record
        case op.TakeRun(run_id, owner, epoch):
            unit.takes_ownership = True
            return {"op": "take", "run": _run(unit, run_id), "owner": escape(owner), "epoch": epoch}, read_record
        case op.TouchSession(session_id, at):
            return {"op": "touch", "session": _session(unit, session_id, publish=False), "at": at}, _nothing
        case op.ForgetRuns(session_id):
            return {"op": "forget_runs", "session": _session(unit, session_id)}, _nothing
        case _:
            return None


def _of_requests(statement: AnyStatement, unit: UnitData) -> tuple[Json, Decode] | None:
    match statement:
        case op.RequestCancel(run_id, ask, acknowledged):
            id = ask.get("id")
            ask_id = escape(id) if isinstance(id, str) else None
            data = {"op": "request", "run": _run(unit, run_id), "ask": json.dumps(dict(ask)), "ask_id": ask_id}
            return {**data, "acknowledged": acknowledged}, _same
        case op.AcknowledgeCancel(number):
            return {"op": "acknowledge", "number": number}, _nothing
        case op.AnswerCancel(number, answer):
            return {"op": "answer", "number": number, "answer": json.dumps(dict(answer))}, _nothing
        case op.WithdrawCancel(run_id, ask_id):
            return {"op": "withdraw", "run": _run(unit, run_id), "ask_id": escape(ask_id)}, _nothing
        case _:
            return None


def _of_the_rest(statement: AnyStatement, unit: UnitData) -> tuple[Json, Decode] | None:
    match statement:
        case op.Share(place, delta):
            kept = {escape(name): json.dumps(value) for name, value in delta.items() if value is not None}
            gone = [escape(name) for name, value in delta.items() if value is None]
            return {"op": "share", "place": escape(place), "kept": kept, "gone": gone}, _nothing
        case op.ReadShared(places):
            return {"op": "read_shared", "places": [escape(place) for place in places]}, read_shared
        case op.AddNote(session_id, note):
            data = {"op": "note", "session": _session(unit, session_id, publish=False), "at": note.at}
            return {**data, "body": json.dumps(dict(note.body))}, _nothing
        case op.ForgetNotes(session_id):
            return {"op": "forget_notes", "session": _session(unit, session_id, publish=False)}, _nothing
        case op.AddFreeze(freeze):
            _frozen(unit)
            return {"op": "freeze", "id": escape(freeze.id), "at": freeze.at, "body": dump_json(to_builtins(freeze))}, (
                _nothing
            )
        case op.RemoveFreeze(id):
            _frozen(unit)
            return {"op": "thaw", "id": escape(id)}, _same
        case op.AddAudit(entry):
            run = None if entry.run_id is None else escape(entry.run_id)
            return {"op": "audit", "run": run, "body": dump_json(to_builtins(entry))}, _same
        case op.OpenLoop(id, claimant):
            unit.takes_ownership = True
            return {"op": "open_loop", "loop": _loop(unit, id), "claimant": escape(claimant)}, _same
        case op.ChangeLoop(id, epoch, changes):
            encoded = [loop_change(change) for change in changes]
            return {"op": "change_loop", "loop": _loop(unit, id), "epoch": epoch, "changes": encoded}, _nothing
        case op.ReleaseLoop(id, claimant):
            return {"op": "release_loop", "loop": _loop(unit, id), "claimant": escape(claimant)}, _nothing
        case op.ReplaceLoop(id, stored):
            return {"op": "replace_loop", "loop": _loop(unit, id), "changes": whole_loop(stored)}, _nothing
        case _:
            return None


def read_shared(values: dict[str, str]) -> dict[str, Any]:  # Any: JSON values
    return {unescape(name): json.loads(value) for name, value in values.items()}


# -- changes of a session --------------------------------------------------------------------------------------------


def encode_change(change: Change) -> Json:
    match change:
        case Opened():
            return _opened(change)
        case Ended():
            return _ended(change)
        case Said(index, message, at):
            return {"c": "say", "index": index, "messages": message_bodies([message]), "at": at}
        case Called(entry, memory):
            return {"c": "call", "calls": [_call(entry, memory)]}
        case Counted():
            return {"c": "count", "counted": COUNTED.encode(change).decode()}
        case Inside():
            return {"c": "inside", "fact": encode_fact(change).decode()}
        case Truncated(index):
            return {"c": "truncate", "index": index}
        case StateSet(state):
            return {"c": "state", "state": dump_state(state)}
        case LateSet(late):
            return {"c": "late", "late": [_late(result) for result in late]}
        case Released(claimant):
            return {"c": "release", "claimant": escape(claimant)}


def _opened(opened: Opened) -> Json:
    base = opened.base
    return {
        "c": "open",
        "run": escape(opened.run_id),
        "agent": escape(opened.agent),
        "index": opened.index,
        "messages": message_bodies(opened.messages),
        "at": opened.at,
        "continues": escape(opened.continues),
        "base": None if base is None else encode_checkpoint(base, known=opened.known).decode(),
        "calls": [_call(entry, None) for entry in opened.ledger],
    }


def _ended(ended: Ended) -> Json:
    kept = ended.checkpoint
    # What a following turn leaves of the checkpoint is written now: the database could not make it then.
    data, dropped = (
        (None, None) if kept is None else (encode_checkpoint(kept, known=ended.known), encode_checkpoint(kept.drop()))
    )
    return {
        "c": "end",
        "run": escape(ended.run_id),
        "index": ended.index,
        "messages": message_bodies(ended.messages),
        "at": ended.at,
        "stop_reason": str(ended.stop_reason),
        "checkpoint_id": None if kept is None else escape(kept.id),
        "checkpoint": None if data is None else data.decode(),
        "dropped": None if dropped is None else dropped.decode(),
        "calls": [_call(entry, None) for entry in ended.ledger],
    }


def _call(entry: LedgerEntry, memory: CallState | None) -> list[str | None]:
    remembered = None if memory is None else encode_memory(memory).decode()
    return [escape(entry.call_id), ENTRY.encode(entry).decode(), remembered]


def _late(late: LateResult) -> list[str]:
    return [escape(late.call_id), escape(late.name), escape(late.content)]

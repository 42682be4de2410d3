"""A storage in this process only: for tests, and for programs that keep nothing."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from functools import singledispatchmethod
from itertools import count
from typing import Any, TypeVar, cast

from msgspec.structs import replace

from safepoint.agent.freeze import Freeze
from safepoint.errors import SessionExists, SessionNotFound, StoreError, Superseded
from safepoint.storage import operations as op
from safepoint.storage.audit import AuditEntry
from safepoint.storage.changes import Changes, Subscription
from safepoint.storage.loop_data import LoopTable, OpenedLoop, StoredLoop
from safepoint.storage.loop_data import in_use as loop_in_use
from safepoint.storage.loop_data import superseded as loop_superseded
from safepoint.storage.operations import Query, Statement
from safepoint.storage.parts import Audit, Freezes, Loops, Runs, Sessions, Shared
from safepoint.storage.reducer import apply
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
from safepoint.storage.session_data import Released, SessionOutdated, StateSet, Stored, Version, taken_by
from safepoint.storage.shared_state import Note

K = TypeVar("K")
T = TypeVar("T")
V = TypeVar("V")


@dataclass(slots=True)
class _Tables:
    """Everything, by key. Dicts keep the order in which rows were added."""

    sessions: dict[str, Stored] = field(default_factory=dict[str, Stored])
    claims: dict[str, str] = field(default_factory=dict[str, str])
    records: dict[str, RunRecord] = field(default_factory=dict[str, RunRecord])
    of_session: dict[str, dict[str, None]] = field(default_factory=dict[str, dict[str, None]])
    # The records of a session that have not ended: a run looks at these, however many came before.
    open: dict[str, dict[str, None]] = field(default_factory=dict[str, dict[str, None]])
    keys: dict[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])
    requests: dict[int, StoredCancelRequest] = field(default_factory=dict[int, StoredCancelRequest])
    of_run: dict[str, dict[int, None]] = field(default_factory=dict[str, dict[int, None]])
    touched: dict[str, float] = field(default_factory=dict[str, float])
    shared: dict[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])  # Any: JSON values
    notes: dict[str, tuple[Note, ...]] = field(default_factory=dict[str, tuple[Note, ...]])
    freezes: dict[str, Freeze] = field(default_factory=dict[str, Freeze])
    audit: dict[int, AuditEntry] = field(default_factory=dict[int, AuditEntry])
    loops: dict[str, LoopTable] = field(default_factory=dict[str, LoopTable])
    loop_claims: dict[str, tuple[str, int]] = field(default_factory=dict[str, tuple[str, int]])


class _Unit:
    """One unit of work: what it changes, and how to take that back if a later operation fails."""

    def __init__(self, *, is_alone: bool) -> None:
        # Whether it has one operation only: then nothing that comes later can fail.
        self.is_alone = is_alone
        self._undo: list[Callable[[], object]] = []
        # The epochs of the claims that it has made.
        self.epochs: dict[str, int] = {}

    def put(self, table: dict[K, V], key: K, value: V) -> None:
        if key in table:
            before = table[key]
            self._undo.append(lambda: table.__setitem__(key, before))
        else:
            self._undo.append(lambda: table.pop(key))
        table[key] = value

    def drop(self, table: dict[K, V], key: K) -> None:
        """Taking that back puts the row at the end; nothing that can fail comes after a drop of a record."""
        if key in table:
            before = table.pop(key)
            self._undo.append(lambda: table.__setitem__(key, before))

    def roll_back(self) -> None:
        for undo in reversed(self._undo):
            undo()


class MemoryStorage:
    """A storage that forgets everything with its process."""

    durable = False

    def __init__(self) -> None:
        self.worker = uuid.uuid4().hex
        # Who counts as alive; the runs of all other owners are orphans.
        self.alive = {self.worker}
        self.sessions = Sessions(self)
        self.runs = Runs(self)
        self.shared = Shared(self)
        self.freezes = Freezes(self)
        self.audit = Audit(self)
        self.loops = Loops(self)
        self._tables = _Tables()
        self._changes = Changes()
        self._closed = False
        self._numbers = count(1)
        self._audit_numbers = count(1)
        self._loop_epochs = count(1)
        # A session's first epoch is far from any other's: a run of a deleted one can't write into its successor.
        self._first_epochs = count(0, 2**32)

    async def commit(self, *statements: Statement[Any]) -> tuple[Any, ...]:  # Any: a result for each
        """Cancellation: there is nothing to wait for."""
        self._refuse_closed()
        if any(self._was_written(statement) for statement in statements):
            return (None,) * len(statements)
        unit = _Unit(is_alone=len(statements) == 1)
        try:
            results = tuple([_operation(type(each))(self, each, unit) for each in statements])
        except BaseException:
            unit.roll_back()
            raise
        self._changes.publish(statements, results)
        return results

    async def read(self, query: Query[T]) -> T:
        """Cancellation: there is nothing to wait for."""
        self._refuse_closed()
        return cast("T", _operation(type(query))(self, query, _Unit(is_alone=True)))

    def changes(
        self,
        *,
        run: str | None = None,
        session: str | None = None,
        worker: str | None = None,
        topic: str | None = None,
        every: float = 0.05,
    ) -> Subscription:
        return self._changes.subscribe(run=run, session=session, worker=worker, topic=topic, every=every)

    async def check(self) -> None:
        """Cancellation: there is nothing to wait for."""
        self._refuse_closed()

    async def aclose(self) -> None:
        """Cancellation: there is nothing to wait for."""
        self._tables = _Tables()
        self._closed = True

    def _refuse_closed(self) -> None:
        if self._closed:
            raise StoreError("the store is closed")

    def _was_written(self, statement: Statement[Any]) -> bool:  # Any: of every result
        if not isinstance(statement, op.AppendChanges) or not statement.number:
            return False
        known = self._tables.sessions.get(statement.session_id)
        return known is not None and known.epoch == statement.epoch and statement.number <= (known.number or 0)

    @singledispatchmethod
    def _do(self, statement: Statement[Any], unit: _Unit) -> Any:  # Any: its result
        raise TypeError(f"no operation of a storage: {statement!r}")

    # -- sessions ------------------------------------------------------------------------------------------------------

    def _session(self, session_id: str) -> Stored:
        try:
            return self._tables.sessions[session_id]
        except KeyError:
            raise SessionNotFound(f"there is no session {session_id!r}: create it first") from None

    @_do.register
    def _(self, create: op.CreateSession, unit: _Unit) -> Version:
        if create.session_id in self._tables.sessions:
            raise SessionExists(f"the session {create.session_id!r} is there already: load it")
        stored = Stored((), deepcopy(dict(create.state)), epoch=next(self._first_epochs), number=0)
        unit.put(self._tables.sessions, create.session_id, stored)
        return Version(stored.epoch, 0)

    @_do.register
    def _(self, claim: op.ClaimSession, unit: _Unit) -> int:
        stored, id = self._session(claim.session_id), claim.session_id
        holder = self._tables.claims.get(id, claim.claimant)
        if holder != claim.claimant:
            raise taken_by(holder, f"a run of the session {id!r} is live")
        if claim.expected is not None and claim.expected != stored.version:
            raise SessionOutdated(f"the session {id!r} was changed since it was loaded")
        unit.put(self._tables.claims, id, claim.claimant)
        unit.put(self._tables.sessions, id, stored.claimed(stored.epoch + 1, 0))
        unit.epochs[id] = stored.epoch + 1
        return stored.epoch + 1

    @_do.register
    def _(self, append: op.AppendChanges, unit: _Unit) -> None:
        stored, id = self._session(append.session_id), append.session_id
        epoch = unit.epochs[id] if append.epoch is None else append.epoch
        if stored.epoch != epoch:
            raise Superseded(f"the session {id!r} was taken over by another run")
        for change in append.changes:
            # The state is its owner's, who goes on changing it.
            stored = apply(stored, deepcopy(change) if isinstance(change, StateSet) else change)
        unit.put(self._tables.sessions, id, stored.claimed(epoch, append.number or (stored.number or 0) + 1))
        for change in append.changes:
            if isinstance(change, Released):
                self._release(id, change.claimant, unit)

    @_do.register
    def _(self, release: op.ReleaseSession, unit: _Unit) -> None:
        self._release(release.session_id, release.claimant, unit)

    def _release(self, session_id: str, claimant: str, unit: _Unit) -> None:
        if self._tables.claims.get(session_id) == claimant:
            unit.drop(self._tables.claims, session_id)

    @_do.register
    def _(self, add: op.AddLateResult, unit: _Unit) -> None:
        stored = self._session(add.session_id)
        unit.put(self._tables.sessions, add.session_id, replace(stored, late=(*stored.late, add.late)))

    @_do.register
    def _(self, delete: op.DeleteSession, unit: _Unit) -> None:
        unit.drop(self._tables.sessions, delete.session_id)
        unit.drop(self._tables.claims, delete.session_id)

    @_do.register
    def _(self, load: op.LoadSession, unit: _Unit) -> Stored:
        return self._session(load.session_id)

    @_do.register
    def _(self, listed: op.ListSessions, unit: _Unit) -> list[str]:
        return sorted(id for id in self._tables.sessions if id.startswith(listed.prefix))

    @_do.register
    def _(self, states: op.SessionStates, unit: _Unit) -> dict[str, Mapping[str, Any]]:  # Any: JSON values
        found = sorted(id for id in self._tables.sessions if id.startswith(states.prefix))
        return {id: deepcopy(dict(self._tables.sessions[id].state)) for id in found}

    # -- runs ----------------------------------------------------------------------------------------------------------

    def _record(self, run_id: str) -> RunRecord:
        if run_id not in self._tables.records:
            raise RecordMoved(f"there is no run {run_id}")
        return self._tables.records[run_id]

    def _records(self, session_id: str | None) -> Iterable[RunRecord]:
        if session_id is None:
            return self._tables.records.values()
        return [self._tables.records[id] for id in self._tables.of_session.get(session_id, ())]

    def _put(self, record: RunRecord, unit: _Unit) -> RunRecord:
        self._write(record, unit)
        if record.state is RunState.LIVE:
            for other in self._open_of(record.session):
                if is_left_behind(other, record):
                    self._write(left_behind(other), unit)
        return record

    def _write(self, record: RunRecord, unit: _Unit) -> None:
        unit.put(self._tables.records, record.run_id, record)
        if record.session not in self._tables.open:
            unit.put(self._tables.open, record.session, {})
        still_open = self._tables.open[record.session]
        if record.ended:
            unit.drop(still_open, record.run_id)
        else:
            unit.put(still_open, record.run_id, None)

    def _open_of(self, session_id: str) -> list[RunRecord]:
        return [self._tables.records[id] for id in self._tables.open.get(session_id, ())]

    @_do.register
    def _(self, accept: op.AcceptRun, unit: _Unit) -> RunRecord:
        record = accept.record
        if record.key is not None:
            known = self._by_key(record.session, record.key, accept.since)
            if known is not None:
                raise AlreadyAccepted(same_request(known, record.digest))
            unit.put(self._tables.keys, (record.session, record.key), record.run_id)
        if accept.only_first:
            for other in self._open_of(record.session):
                if is_in_line(other):
                    raise must_wait(record, other)
        if record.session not in self._tables.of_session:
            unit.put(self._tables.of_session, record.session, {})
        unit.put(self._tables.of_session[record.session], record.run_id, None)
        return self._put(record, unit)

    def _by_key(self, session: str, key: str, since: float) -> RunRecord | None:
        known = self._tables.records.get(self._tables.keys.get((session, key), ""))
        return known if known is not None and known.created_at >= since else None

    @_do.register
    def _(self, move: op.MoveRun, unit: _Unit) -> RunRecord:
        known = self._record(move.run_id)
        record = moved(known, move.state, move.epoch, move.changes)
        if known.key is not None and record.key is None:
            place = (known.session, known.key)
            if self._tables.keys.get(place) == known.run_id:
                unit.drop(self._tables.keys, place)
        return self._put(record, unit)

    @_do.register
    def _(self, take: op.TakeRun, unit: _Unit) -> RunRecord:
        record = take_over(self._record(take.run_id), take.owner, take.epoch)
        self._write(record, unit)
        return record

    @_do.register
    def _(self, request: op.RequestCancel, unit: _Unit) -> int:
        stored = StoredCancelRequest(next(self._numbers), request.run_id, dict(request.ask), request.acknowledged)
        unit.put(self._tables.requests, stored.number, stored)
        if request.run_id not in self._tables.of_run:
            unit.put(self._tables.of_run, request.run_id, {})
        unit.put(self._tables.of_run[request.run_id], stored.number, None)
        return stored.number

    @_do.register
    def _(self, acknowledge: op.AcknowledgeCancel, unit: _Unit) -> None:
        known = self._tables.requests.get(acknowledge.number)
        if known is not None:
            unit.put(self._tables.requests, known.number, replace(known, acknowledged=True))

    @_do.register
    def _(self, answer: op.AnswerCancel, unit: _Unit) -> None:
        known = self._tables.requests.get(answer.number)
        if known is not None:
            unit.put(self._tables.requests, known.number, replace(known, answer=dict(answer.answer)))

    @_do.register
    def _(self, withdraw: op.WithdrawCancel, unit: _Unit) -> None:
        for number in tuple(self._tables.of_run.get(withdraw.run_id, ())):
            if self._tables.requests[number].ask.get("id") == withdraw.ask_id:
                unit.drop(self._tables.requests, number)
                unit.drop(self._tables.of_run[withdraw.run_id], number)

    @_do.register
    def _(self, touch: op.TouchSession, unit: _Unit) -> None:
        unit.put(self._tables.touched, touch.session_id, touch.at)

    @_do.register
    def _(self, forget: op.ForgetRuns, unit: _Unit) -> None:
        tables, id = self._tables, forget.session_id
        unit.drop(tables.touched, id)
        for run_id in tuple(tables.of_session.get(id, ())):
            record = tables.records[run_id]
            unit.drop(tables.records, run_id)
            for number in tables.of_run.get(run_id, ()):
                unit.drop(tables.requests, number)
            unit.drop(tables.of_run, run_id)
            if record.key is not None:
                unit.drop(tables.keys, (id, record.key))
        unit.drop(tables.of_session, id)
        unit.drop(tables.open, id)

    @_do.register
    def _(self, get: op.GetRun, unit: _Unit) -> RunRecord | None:
        return self._tables.records.get(get.run_id)

    @_do.register
    def _(self, query: op.RunByKey, unit: _Unit) -> RunRecord | None:
        return self._by_key(query.session_id, query.key, query.since)

    @_do.register
    def _(self, find: op.FindRuns, unit: _Unit) -> list[RunRecord]:
        known = self._records(find.session_id)
        found = [each for each in known if find.session_id is not None or each.session.startswith(find.prefix)]
        return sorted(found, key=lambda record: record.created_at)[: -find.limit - 1 : -1]

    @_do.register
    def _(self, query: op.EndedRuns, unit: _Unit) -> list[RunRecord]:
        known = self._tables.records.values()
        ended = (each for each in known if each.ended and each.session.startswith(query.prefix))
        found = [record for record in ended if query.after is None or record.cursor < query.after]
        return sorted(found, key=lambda record: record.cursor, reverse=True)[: query.limit]

    @_do.register
    def _(self, query: op.OpenRuns, unit: _Unit) -> list[RunRecord]:
        closed = {RunState.ENDED} if query.waiting else {RunState.ENDED, RunState.PAUSED}
        found = [record for record in self._records(query.session_id) if record.state not in closed]
        return [record for record in found if query.owner in (None, record.owner)]

    @_do.register
    def _(self, query: op.OrphanedRuns, unit: _Unit) -> list[RunRecord]:
        found = self._do(op.OpenRuns(waiting=query.waiting), unit)
        return [each for each in found if each.owner not in self.alive and query.run_id in (None, each.run_id)]

    @_do.register
    def _(self, query: op.CancelRequests, unit: _Unit) -> list[StoredCancelRequest]:
        return [self._tables.requests[number] for number in self._tables.of_run.get(query.run_id, ())]

    @_do.register
    def _(self, query: op.UnheardCancels, unit: _Unit) -> list[StoredCancelRequest]:
        known, requests = self._tables.records, self._tables.requests.values()
        unheard = [each for each in requests if not each.acknowledged and each.run_id in known]
        return [each for each in unheard if known[each.run_id].owner == query.owner and not known[each.run_id].ended]

    @_do.register
    def _(self, query: op.CancelAnswer, unit: _Unit) -> Mapping[str, Any] | None:  # Any: JSON values
        known = self._tables.requests.get(query.number)
        return known.answer if known is not None else None

    @_do.register
    def _(self, query: op.TouchedSessions, unit: _Unit) -> dict[str, float]:
        tables, prefix = self._tables, query.prefix
        found = {session: at for session, at in tables.touched.items() if session.startswith(prefix)}
        for session, runs in tables.of_session.items():
            if session.startswith(prefix):
                last = [tables.records[run_id].ended_at or tables.records[run_id].created_at for run_id in runs]
                found[session] = max((found.get(session, 0.0), *last))
        return found

    # -- shared state, notes, loops ------------------------------------------------------------------------------------

    @_do.register
    def _(self, share: op.Share, unit: _Unit) -> None:
        values = {**self._tables.shared.get(share.place, {}), **deepcopy(dict(share.delta))}
        kept = {name: value for name, value in values.items() if value is not None}
        unit.put(self._tables.shared, share.place, kept)

    @_do.register
    def _(self, read: op.ReadShared, unit: _Unit) -> dict[str, Any]:  # Any: JSON values
        found: dict[str, Any] = {}  # Any: JSON values
        for place in read.places:
            found |= deepcopy(dict(self._tables.shared.get(place, {})))
        return found

    @_do.register
    def _(self, add: op.AddNote, unit: _Unit) -> None:
        unit.put(self._tables.notes, add.session_id, (*self._tables.notes.get(add.session_id, ()), add.note))

    @_do.register
    def _(self, read: op.ReadNotes, unit: _Unit) -> list[Note]:
        return list(self._tables.notes.get(read.session_id, ()))

    @_do.register
    def _(self, forget: op.ForgetNotes, unit: _Unit) -> None:
        unit.drop(self._tables.notes, forget.session_id)

    @_do.register
    def _(self, add: op.AddFreeze, unit: _Unit) -> None:
        unit.drop(self._tables.freezes, add.freeze.id)
        unit.put(self._tables.freezes, add.freeze.id, add.freeze)

    @_do.register
    def _(self, remove: op.RemoveFreeze, unit: _Unit) -> bool:
        was_there = remove.id in self._tables.freezes
        unit.drop(self._tables.freezes, remove.id)
        return was_there

    @_do.register
    def _(self, query: op.ListFreezes, unit: _Unit) -> list[Freeze]:
        return sorted(self._tables.freezes.values(), key=lambda freeze: (freeze.at, freeze.id))

    @_do.register
    def _(self, add: op.AddAudit, unit: _Unit) -> int:
        number = next(self._audit_numbers)
        unit.put(self._tables.audit, number, replace(deepcopy(add.entry), number=number))
        return number

    @_do.register
    def _(self, read: op.ReadAudit, unit: _Unit) -> list[AuditEntry]:
        known = self._tables.audit.values()
        found = [each for each in known if each.number > read.after and read.run_id in (None, each.run_id)]
        return deepcopy(found[: read.limit])

    @_do.register
    def _(self, claim: op.OpenLoop, unit: _Unit) -> OpenedLoop:
        tables = self._tables
        if tables.loop_claims.get(claim.id, (claim.claimant, 0))[0] != claim.claimant:
            raise loop_in_use(claim.id)
        epoch = next(self._loop_epochs)
        unit.put(tables.loop_claims, claim.id, (claim.claimant, epoch))
        table = tables.loops.get(claim.id)
        return OpenedLoop(epoch, StoredLoop() if table is None else table.read())

    @_do.register
    def _(self, release: op.ReleaseLoop, unit: _Unit) -> None:
        if self._tables.loop_claims.get(release.id, ("", 0))[0] == release.claimant:
            unit.drop(self._tables.loop_claims, release.id)

    @_do.register
    def _(self, change: op.ChangeLoop, unit: _Unit) -> None:
        tables = self._tables
        if tables.loop_claims.get(change.id, ("", 0))[1] != change.epoch:
            raise loop_superseded(change.id)
        table = tables.loops.get(change.id)
        if table is None:
            table = LoopTable()
            unit.put(tables.loops, change.id, table)
        elif not unit.is_alone:  # a later operation may fail: keep what there was, and change a copy
            table = LoopTable(table.read())
            unit.put(tables.loops, change.id, table)
        for each in change.changes:
            table.apply(each)
        if table.empty:
            unit.drop(tables.loops, change.id)

    @_do.register
    def _(self, replace: op.ReplaceLoop, unit: _Unit) -> None:
        if replace.stored.empty:
            unit.drop(self._tables.loops, replace.id)
        else:
            unit.put(self._tables.loops, replace.id, LoopTable(replace.stored))

    @_do.register
    def _(self, read: op.ReadLoop, unit: _Unit) -> StoredLoop:
        table = self._tables.loops.get(read.id)
        return StoredLoop() if table is None else table.read()


# By the type of the operation. `_do` itself would make a wrapper, with a copy of its attributes, for each call.
_operation = MemoryStorage.__dict__["_do"].dispatcher.dispatch

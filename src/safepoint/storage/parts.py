"""The parts of a storage, written once for all of them: each method is one statement."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar, cast

from safepoint.agent.freeze import Freeze
from safepoint.storage import operations as op
from safepoint.storage.audit import AuditEntry
from safepoint.storage.loop_data import LoopChange, OpenedLoop, StoredLoop
from safepoint.storage.operations import Operation, Query, Statement
from safepoint.storage.run_records import AlreadyAccepted, Cursor, RunRecord, RunState, StoredCancelRequest
from safepoint.storage.session_data import Change, LateResult, Stored
from safepoint.storage.shared_state import Note

T = TypeVar("T")


class Engine(Protocol):
    """What each storage has to write for itself: units of work, and queries."""

    async def commit(self, *statements: Statement[Any]) -> tuple[Any, ...]:  # Any: a result for each
        ...

    async def read(self, query: Query[T]) -> T: ...

    async def aclose(self) -> None: ...


class _Part:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def _do(self, operation: Operation[T]) -> T:
        (result,) = await self._engine.commit(operation)
        return cast("T", result)


class Sessions(_Part):
    """A `Store`. Cancellation of each write: only the waiting ends."""

    async def create(self, session_id: str, state: Mapping[str, Any]) -> None:  # Any: JSON values
        await self._do(op.CreateSession(session_id, state))

    async def load(self, session_id: str) -> Stored:
        return await self._engine.read(op.LoadSession(session_id))

    async def claim(self, session_id: str, claimant: str) -> int:
        return await self._do(op.ClaimSession(session_id, claimant))

    async def release(self, session_id: str, claimant: str) -> None:
        await self._do(op.ReleaseSession(session_id, claimant))

    async def append(self, session_id: str, epoch: int, changes: Sequence[Change]) -> None:
        await self._do(op.AppendChanges(session_id, epoch, changes))

    async def add_late(self, session_id: str, late: LateResult) -> None:
        await self._do(op.AddLateResult(session_id, late))

    async def delete(self, session_id: str) -> None:
        await self._do(op.DeleteSession(session_id))

    async def list_ids(self, prefix: str = "") -> list[str]:
        return await self._engine.read(op.ListSessions(prefix))

    async def states(self, prefix: str = "") -> dict[str, Mapping[str, Any]]:  # Any: JSON values
        return await self._engine.read(op.SessionStates(prefix))

    async def aclose(self) -> None:
        await self._engine.aclose()


class Runs(_Part):
    """A `RunRegistry`."""

    async def accept(self, record: RunRecord, *, since: float) -> RunRecord:
        try:
            return await self._do(op.AcceptRun(record, since))
        except AlreadyAccepted as repeated:
            return repeated.record

    async def move(self, run_id: str, state: RunState, *, epoch: int, **changes: Any) -> RunRecord:  # Any: its fields
        return await self._do(op.MoveRun(run_id, state, epoch, changes))

    async def take(self, run_id: str, owner: str, *, epoch: int) -> RunRecord:
        return await self._do(op.TakeRun(run_id, owner, epoch))

    async def get(self, run_id: str) -> RunRecord | None:
        return await self._engine.read(op.GetRun(run_id))

    async def by_key(self, session: str, key: str, *, since: float) -> RunRecord | None:
        return await self._engine.read(op.RunByKey(session, key, since))

    async def find(self, *, session: str | None = None, prefix: str = "", limit: int = 1000) -> list[RunRecord]:
        return await self._engine.read(op.FindRuns(session, prefix, limit))

    async def over(self, *, prefix: str = "", after: Cursor | None = None, limit: int) -> list[RunRecord]:
        return await self._engine.read(op.EndedRuns(limit, prefix, after))

    async def still_open(
        self, session: str | None = None, *, waiting: bool = True, owner: str | None = None
    ) -> list[RunRecord]:
        return await self._engine.read(op.OpenRuns(session, waiting, owner))

    async def orphans(self, *, waiting: bool = True, run_id: str | None = None) -> list[RunRecord]:
        return await self._engine.read(op.OrphanedRuns(waiting, run_id))

    async def request_cancel(
        self,
        run_id: str,
        ask: Mapping[str, Any],  # Any: JSON values
        *,
        acknowledged: bool = False,
    ) -> int:
        return await self._do(op.RequestCancel(run_id, ask, acknowledged))

    async def cancel_requests(self, run_id: str) -> list[StoredCancelRequest]:
        return await self._engine.read(op.CancelRequests(run_id))

    async def unheard_cancels(self, owner: str) -> list[StoredCancelRequest]:
        return await self._engine.read(op.UnheardCancels(owner))

    async def acknowledge_cancel(self, number: int) -> None:
        await self._do(op.AcknowledgeCancel(number))

    async def answer_cancel(self, number: int, answer: Mapping[str, Any]) -> None:  # Any: JSON values
        await self._do(op.AnswerCancel(number, answer))

    async def cancel_answer(self, number: int) -> Mapping[str, Any] | None:  # Any: JSON values
        return await self._engine.read(op.CancelAnswer(number))

    async def withdraw_cancel(self, run_id: str, ask_id: str) -> None:
        await self._do(op.WithdrawCancel(run_id, ask_id))

    async def touch(self, session: str, at: float) -> None:
        await self._do(op.TouchSession(session, at))

    async def touched(self, prefix: str) -> dict[str, float]:
        return await self._engine.read(op.TouchedSessions(prefix))

    async def forget(self, session: str) -> None:
        await self._do(op.ForgetRuns(session))


class Shared(_Part):
    """A `SharedState`."""

    async def shared(self, places: Iterable[str]) -> dict[str, Any]:  # Any: JSON values
        return await self._engine.read(op.ReadShared(tuple(places)))

    async def share(self, place: str, delta: Mapping[str, Any]) -> None:  # Any: JSON values
        await self._do(op.Share(place, delta))

    async def note(self, session: str, note: Note) -> None:
        await self._do(op.AddNote(session, note))

    async def notes(self, session: str) -> list[Note]:
        return await self._engine.read(op.ReadNotes(session))

    async def forget(self, session: str) -> None:
        await self._do(op.ForgetNotes(session))


class Freezes(_Part):
    """A `FreezeList`."""

    async def add(self, freeze: Freeze) -> None:
        await self._do(op.AddFreeze(freeze))

    async def remove(self, id: str) -> bool:
        return await self._do(op.RemoveFreeze(id))

    async def all(self) -> list[Freeze]:
        return await self._engine.read(op.ListFreezes())


class Audit(_Part):
    """An `AuditTrail`."""

    async def add(self, entry: AuditEntry) -> int:
        return await self._do(op.AddAudit(entry))

    async def read(self, *, after: int = 0, run: str | None = None, limit: int = 1000) -> list[AuditEntry]:
        return await self._engine.read(op.ReadAudit(after, run, limit))


class Loops(_Part):
    """A `LoopRecords`. A loop that was taken for dead, and comes back, cannot spoil what its successor has saved."""

    async def open(self, id: str, claimant: str) -> OpenedLoop:
        return await self._do(op.OpenLoop(id, claimant))

    async def apply(self, id: str, epoch: int, changes: Sequence[LoopChange]) -> None:
        await self._do(op.ChangeLoop(id, epoch, changes))

    async def release(self, id: str, claimant: str) -> None:
        await self._do(op.ReleaseLoop(id, claimant))

    async def read(self, id: str) -> StoredLoop:
        return await self._engine.read(op.ReadLoop(id))

    async def replace(self, id: str, stored: StoredLoop) -> None:
        await self._do(op.ReplaceLoop(id, stored))

"""Everything that can be asked of a storage, as frozen values: operations, which change something, and queries.

`await storage.commit(operation, …)` is one unit of work: all of its operations happen, in their order, in one
transaction, or none does. Decisions are made inside it: that a session is free, that an epoch is
current, that an idempotency key is new. Because a unit of work is data, a storage may run it in a writer thread or as
one statement of a database server, and may run it again after an answer was lost.

A unit of work that has an `AppendChanges` with a number happens once: if that number was written before, under the same
epoch, nothing is done. So a writer that does not know whether its commit happened sends the unit again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

from msgspec import field

from safepoint._values import Value
from safepoint.agent.freeze import Freeze
from safepoint.storage.audit import AuditEntry
from safepoint.storage.loop_data import LoopChange, OpenedLoop, StoredLoop
from safepoint.storage.run_records import Cursor, RunRecord, RunState, StoredCancelRequest
from safepoint.storage.session_data import Change, LateResult, Stored, Version
from safepoint.storage.shared_state import Note

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Json = Mapping[str, Any]  # Any: JSON values


class Statement(Value, Generic[T_co], frozen=True):
    """An operation or a query. `T_co` is the type of its result."""


class Operation(Statement[T_co], Generic[T_co], frozen=True):
    """Changes something."""


class Query(Statement[T_co], Generic[T_co], frozen=True):
    """Changes nothing. A unit of work may contain queries: they see what its earlier operations have written."""


# -- sessions --------------------------------------------------------------------------------------------------------


class CreateSession(Operation[Version], frozen=True):
    """How far the new, empty session was written. Raises `SessionExists`."""

    session_id: str
    state: Json


class ClaimSession(Operation[int], frozen=True):
    """Take the session; the result is the epoch of its writes. Raises `SessionBusy` while another claimant has it.

    `expected`: what the claimant knows of the session. Raises `SessionOutdated` if more was written since.
    """

    session_id: str
    claimant: str
    expected: Version | None = None


class AppendChanges(Operation[None], frozen=True):
    """Raises `Superseded` for an old epoch, `SessionNotFound` after a delete.

    `epoch`: None stands for the epoch of the claim in the same unit of work. `number`: of this write under its epoch,
    counted from 1; 0 for a write that is never sent again.
    """

    session_id: str
    epoch: int | None
    changes: Sequence[Change]
    number: int = 0


class ReleaseSession(Operation[None], frozen=True):
    """Does nothing if another claimant has it."""

    session_id: str
    claimant: str


class AddLateResult(Operation[None], frozen=True):
    """From outside any run, so it needs no claim."""

    session_id: str
    late: LateResult


class DeleteSession(Operation[None], frozen=True):
    """Deleting a session that does not exist is no error."""

    session_id: str


class LoadSession(Query[Stored], frozen=True):
    """Raises `SessionNotFound`, or `StoreCorrupt`."""

    session_id: str


class ListSessions(Query[list[str]], frozen=True):
    """The ids that begin so, sorted."""

    prefix: str = ""


class SessionStates(Query[dict[str, Json]], frozen=True):
    """The states of the sessions of `ListSessions`, in the same order."""

    prefix: str = ""


# -- runs ------------------------------------------------------------------------------------------------------------


class AcceptRun(Operation[RunRecord], frozen=True):
    """Write the record of a new run.

    Raises `AlreadyAccepted` if its idempotency key belongs to a record that is newer than `since`, and `KeyTaken` if
    that record is of another request. `only_first`: raises `SessionBusy` if another run of the session is open that is
    live or waits for its turn.
    """

    record: RunRecord
    since: float
    only_first: bool = False


class MoveRun(Operation[RunRecord], frozen=True):
    """The record after the move. Raises `RecordMoved`. `changes`: other fields of the record."""

    run_id: str
    state: RunState
    epoch: int
    changes: Json = field(default_factory=dict[str, Any])


class TakeRun(Operation[RunRecord], frozen=True):
    """The record under its new owner, with a new epoch. Raises `RecordMoved` if another process was faster."""

    run_id: str
    owner: str
    epoch: int


class RequestCancel(Operation[int], frozen=True):
    """The number of the stored request. `acknowledged`: the process that has the run knows of it already."""

    run_id: str
    ask: Json
    acknowledged: bool = False


class AcknowledgeCancel(Operation[None], frozen=True):
    """The owner of the run has taken the request up."""

    number: int


class AnswerCancel(Operation[None], frozen=True):
    """What came of the request; does nothing if it was withdrawn."""

    number: int
    answer: Json


class WithdrawCancel(Operation[None], frozen=True):
    """The request whose ask has that id is deleted; does nothing if there is none."""

    run_id: str
    ask_id: str


class TouchSession(Operation[None], frozen=True):
    """Something about the session changed at that time."""

    session_id: str
    at: float


class ForgetRuns(Operation[None], frozen=True):
    """Delete all records of the session, with their cancel requests."""

    session_id: str


class GetRun(Query[RunRecord | None], frozen=True):
    run_id: str


class RunByKey(Query[RunRecord | None], frozen=True):
    """The record with that idempotency key that is newer than `since`."""

    session_id: str
    key: str
    since: float


class FindRuns(Query[list[RunRecord]], frozen=True):
    """Newest first: of one session, or of all sessions whose id begins so."""

    session_id: str | None = None
    prefix: str = ""
    limit: int = 1000


class EndedRuns(Query[list[RunRecord]], frozen=True):
    """Newest first, below a cursor: of all sessions whose id begins so."""

    limit: int
    prefix: str = ""
    after: Cursor | None = None


class OpenRuns(Query[list[RunRecord]], frozen=True):
    """In the order in which they were accepted. `waiting`: also those that wait for a person."""

    session_id: str | None = None
    waiting: bool = True
    owner: str | None = None


class OrphanedRuns(Query[list[RunRecord]], frozen=True):
    """Open runs that are free or whose owner is dead, in the order in which they were accepted.

    `run_id`: that run alone, if it is one of them.
    """

    waiting: bool = True
    run_id: str | None = None


class CancelRequests(Query[list[StoredCancelRequest]], frozen=True):
    """All requests of one run, in the order in which they were stored."""

    run_id: str


class UnheardCancels(Query[list[StoredCancelRequest]], frozen=True):
    """Requests that the owner of their open run has not acknowledged."""

    owner: str


class CancelAnswer(Query[Json | None], frozen=True):
    number: int


class TouchedSessions(Query[dict[str, float]], frozen=True):
    """When the sessions whose id begins so were last changed, by a run or otherwise."""

    prefix: str


# -- what operators have ordered -------------------------------------------------------------------------------------


class AddFreeze(Operation[None], frozen=True):
    """From now on it holds, in place of one with the same id."""

    freeze: Freeze


class RemoveFreeze(Operation[bool], frozen=True):
    """Whether it was there."""

    id: str


class AddAudit(Operation[int], frozen=True):
    """The number of the entry."""

    entry: AuditEntry


class ListFreezes(Query[list[Freeze]], frozen=True):
    """Oldest first."""


class ReadAudit(Query[list[AuditEntry]], frozen=True):
    """Oldest first, above that number: all of them, or those of one run."""

    after: int = 0
    run_id: str | None = None
    limit: int = 1000


# -- shared state, notes, loops --------------------------------------------------------------------------------------


class Share(Operation[None], frozen=True):
    """Set these values of the place; None deletes one."""

    place: str
    delta: Json


class AddNote(Operation[None], frozen=True):
    session_id: str
    note: Note


class ForgetNotes(Operation[None], frozen=True):
    session_id: str


class ReadShared(Query[dict[str, Any]], frozen=True):  # Any: JSON values
    """All values of these places, by name."""

    places: tuple[str, ...]


class ReadNotes(Query[list[Note]], frozen=True):
    """Oldest first."""

    session_id: str


class OpenLoop(Operation[OpenedLoop], frozen=True):
    """Take the record and read it. Raises `StoreError` while another claimant has it whose process lives."""

    id: str
    claimant: str


class ChangeLoop(Operation[None], frozen=True):
    """Raises `Superseded` if another loop has taken the record since that epoch."""

    id: str
    epoch: int
    changes: Sequence[LoopChange]


class ReleaseLoop(Operation[None], frozen=True):
    id: str
    claimant: str


class ReplaceLoop(Operation[None], frozen=True):
    """The record is this and nothing else, whichever loop has it. An empty one is deleted."""

    id: str
    stored: StoredLoop


class ReadLoop(Query[StoredLoop], frozen=True):
    """An empty record if there is none. Raises `StoreCorrupt`."""

    id: str

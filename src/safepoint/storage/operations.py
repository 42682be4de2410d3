"""Everything that can be asked of a storage, as frozen values: operations, which change something, and queries.

`await storage.commit(operation, …)` is one unit of work: all of its operations happen, in their order, in one
transaction, or none does. Whatever has to be decided is decided inside it: that a session is free, that an epoch is
current, that an idempotency key is new. Because a unit of work is data, a storage may run it in a writer thread or as
one statement of a database server, and may run it again after an answer was lost.

A unit of work that has an `AppendChanges` with a number happens once: if that number was written before, under the same
epoch, nothing is done. So a writer that does not know whether its commit happened sends the unit again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from safepoint.storage.loop_data import LoopChange, OpenedLoop, StoredLoop
from safepoint.storage.run_records import Cursor, RunRecord, RunState, StoredCancelRequest
from safepoint.storage.session_data import Change, LateResult, Stored, Version
from safepoint.storage.shared_state import Note

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Json = Mapping[str, Any]  # Any: JSON values


class Statement(Generic[T_co]):
    """An operation or a query. `T_co` is the type of its result."""

    __slots__ = ()


class Operation(Statement[T_co]):
    """Changes something."""

    __slots__ = ()


class Query(Statement[T_co]):
    """Changes nothing. A unit of work may contain queries: they see what its earlier operations have written."""

    __slots__ = ()


# -- sessions --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CreateSession(Operation[Version]):
    """How far the new, empty session was written. Raises `SessionExists`."""

    session_id: str
    state: Json


@dataclass(frozen=True, slots=True)
class ClaimSession(Operation[int]):
    """Take the session; the result is the epoch of its writes. Raises `SessionBusy` while another claimant has it.

    `expected`: what the claimant knows of the session. Raises `SessionOutdated` if more was written since.
    """

    session_id: str
    claimant: str
    expected: Version | None = None


@dataclass(frozen=True, slots=True)
class AppendChanges(Operation[None]):
    """Raises `Superseded` for an old epoch, `SessionNotFound` after a delete.

    `epoch`: None stands for the epoch of the claim in the same unit of work. `number`: of this write under its epoch,
    counted from 1; 0 for a write that is never sent again.
    """

    session_id: str
    epoch: int | None
    changes: Sequence[Change]
    number: int = 0


@dataclass(frozen=True, slots=True)
class ReleaseSession(Operation[None]):
    """Does nothing if another claimant has it."""

    session_id: str
    claimant: str


@dataclass(frozen=True, slots=True)
class AddLateResult(Operation[None]):
    """From outside any run, so it needs no claim."""

    session_id: str
    late: LateResult


@dataclass(frozen=True, slots=True)
class DeleteSession(Operation[None]):
    """Deleting a session that does not exist is no error."""

    session_id: str


@dataclass(frozen=True, slots=True)
class LoadSession(Query[Stored]):
    """Raises `SessionNotFound`, or `StoreCorrupt`."""

    session_id: str


@dataclass(frozen=True, slots=True)
class ListSessions(Query[list[str]]):
    """The ids that begin so, sorted."""

    prefix: str = ""


@dataclass(frozen=True, slots=True)
class SessionStates(Query[dict[str, Json]]):
    """The states of the sessions of `ListSessions`, in the same order."""

    prefix: str = ""


# -- runs ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AcceptRun(Operation[RunRecord]):
    """Write the record of a new run.

    Raises `AlreadyAccepted` if its idempotency key belongs to a record that is newer than `since`, and `KeyTaken` if
    that record is of another request. `only_first`: raises `SessionBusy` if another run of the session is open that is
    live or waits for its turn.
    """

    record: RunRecord
    since: float
    only_first: bool = False


@dataclass(frozen=True, slots=True)
class MoveRun(Operation[RunRecord]):
    """The record after the move. Raises `RecordMoved`. `changes`: other fields of the record."""

    run_id: str
    state: RunState
    epoch: int
    changes: Json = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class TakeRun(Operation[RunRecord]):
    """The record under its new owner, with a new epoch. Raises `RecordMoved` if another process was faster."""

    run_id: str
    owner: str
    epoch: int


@dataclass(frozen=True, slots=True)
class RequestCancel(Operation[int]):
    """The number of the stored request. `acknowledged`: the process that has the run knows of it already."""

    run_id: str
    ask: Json
    acknowledged: bool = False


@dataclass(frozen=True, slots=True)
class AcknowledgeCancel(Operation[None]):
    """The owner of the run has taken the request up."""

    number: int


@dataclass(frozen=True, slots=True)
class AnswerCancel(Operation[None]):
    """What came of the request; does nothing if it was withdrawn."""

    number: int
    answer: Json


@dataclass(frozen=True, slots=True)
class WithdrawCancel(Operation[None]):
    """The request whose ask has that id is deleted; does nothing if there is none."""

    run_id: str
    ask_id: str


@dataclass(frozen=True, slots=True)
class TouchSession(Operation[None]):
    """Something about the session changed at that time."""

    session_id: str
    at: float


@dataclass(frozen=True, slots=True)
class ForgetRuns(Operation[None]):
    """Delete all records of the session, with their cancel requests."""

    session_id: str


@dataclass(frozen=True, slots=True)
class GetRun(Query[RunRecord | None]):
    run_id: str


@dataclass(frozen=True, slots=True)
class RunByKey(Query[RunRecord | None]):
    """The record with that idempotency key that is newer than `since`."""

    session_id: str
    key: str
    since: float


@dataclass(frozen=True, slots=True)
class FindRuns(Query[list[RunRecord]]):
    """Newest first: of one session, or of all sessions whose id begins so."""

    session_id: str | None = None
    prefix: str = ""
    limit: int = 1000


@dataclass(frozen=True, slots=True)
class EndedRuns(Query[list[RunRecord]]):
    """Newest first, below a cursor: of all sessions whose id begins so."""

    limit: int
    prefix: str = ""
    after: Cursor | None = None


@dataclass(frozen=True, slots=True)
class OpenRuns(Query[list[RunRecord]]):
    """In the order in which they were accepted. `waiting`: also those that wait for a person."""

    session_id: str | None = None
    waiting: bool = True
    owner: str | None = None


@dataclass(frozen=True, slots=True)
class OrphanedRuns(Query[list[RunRecord]]):
    """Open runs whose owner is dead, in the order in which they were accepted; or that run, if it is one of them."""

    waiting: bool = True
    run_id: str | None = None


@dataclass(frozen=True, slots=True)
class CancelRequests(Query[list[StoredCancelRequest]]):
    """All requests of one run, in the order in which they were stored."""

    run_id: str


@dataclass(frozen=True, slots=True)
class UnheardCancels(Query[list[StoredCancelRequest]]):
    """Requests that the owner of their open run has not acknowledged."""

    owner: str


@dataclass(frozen=True, slots=True)
class CancelAnswer(Query[Json | None]):
    number: int


@dataclass(frozen=True, slots=True)
class TouchedSessions(Query[dict[str, float]]):
    """When the sessions whose id begins so were last changed, by a run or otherwise."""

    prefix: str


# -- shared state, notes, loops --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Share(Operation[None]):
    """Set these values of the place; None deletes one."""

    place: str
    delta: Json


@dataclass(frozen=True, slots=True)
class AddNote(Operation[None]):
    session_id: str
    note: Note


@dataclass(frozen=True, slots=True)
class ForgetNotes(Operation[None]):
    session_id: str


@dataclass(frozen=True, slots=True)
class ReadShared(Query[dict[str, Any]]):  # Any: JSON values
    """All values of these places, by name."""

    places: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReadNotes(Query[list[Note]]):
    """Oldest first."""

    session_id: str


@dataclass(frozen=True, slots=True)
class OpenLoop(Operation[OpenedLoop]):
    """Take the record and read it. Raises `StoreError` while another claimant has it whose process lives."""

    id: str
    claimant: str


@dataclass(frozen=True, slots=True)
class ChangeLoop(Operation[None]):
    """Raises `Superseded` if another loop has taken the record since that epoch."""

    id: str
    epoch: int
    changes: Sequence[LoopChange]


@dataclass(frozen=True, slots=True)
class ReleaseLoop(Operation[None]):
    id: str
    claimant: str


@dataclass(frozen=True, slots=True)
class ReplaceLoop(Operation[None]):
    """The record is this and nothing else, whichever loop has it. An empty one is deleted."""

    id: str
    stored: StoredLoop


@dataclass(frozen=True, slots=True)
class ReadLoop(Query[StoredLoop]):
    """An empty record if there is none. Raises `StoreCorrupt`."""

    id: str

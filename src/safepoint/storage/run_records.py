"""Which runs there are, for every process that has to find, stop or pick up a run that another one started.

A record is written when a message is accepted and ends with the run. A cancel request is a row of its own, written
whether or not the owner can be reached: the owner, or its successor, finds it there and may answer it.

    queued ──▶ live ──▶ ended
       │         ├────▶ paused ──▶ live | ended
       └─────────┴────▶ suspended ──▶ queued (picked up by the next process) | ended

`suspended`: stopped by a shutdown, to be picked up. A queued run may end too, by a cancel. Other moves raise
`RecordMoved`. A run that becomes live leaves what its session had stopped behind: records that were paused, and older
ones that were suspended, end with it. A message that was suspended before its turn came is not left behind.

A record has one owner, the worker that runs it. The record of a dead owner is taken over by `take`, which raises its
epoch; a move with an old epoch is refused. So a run has one owner at a time, and an owner that was taken for dead
cannot spoil what its successor has recorded. A suspended run is FREE: it has no owner, and any worker may take it at
once.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Protocol

from msgspec import field
from msgspec.structs import replace

from safepoint._values import Value
from safepoint.errors import SessionBusy, StoreError


class RunState(StrEnum):
    QUEUED = "queued"
    LIVE = "live"
    PAUSED = "paused"
    SUSPENDED = "suspended"
    ENDED = "ended"


FREE = ""
"""The owner of a run that any worker may take."""

MOVES: Mapping[RunState, frozenset[RunState]] = {
    RunState.QUEUED: frozenset({RunState.LIVE, RunState.SUSPENDED, RunState.ENDED}),
    RunState.LIVE: frozenset({RunState.PAUSED, RunState.SUSPENDED, RunState.ENDED}),
    RunState.PAUSED: frozenset({RunState.LIVE, RunState.ENDED}),
    RunState.SUSPENDED: frozenset({RunState.QUEUED, RunState.ENDED}),
    RunState.ENDED: frozenset(),
}


class RecordMoved(StoreError):
    """The run is not where this change expected it: another process, or a later step, has moved it on."""


class KeyTaken(StoreError):
    """The idempotency key belongs to another request."""


class AlreadyAccepted(StoreError):
    """The same request was accepted before: `record` is the run that it belongs to."""

    def __init__(self, record: RunRecord) -> None:
        super().__init__(f"the request with the idempotency key {record.key!r} was accepted before")
        self.record = record


class Cursor(Value, frozen=True, order=True):
    """Where a record is among all others, which are in the order in which they were accepted."""

    created_at: float
    run_id: str


class RunRecord(Value, frozen=True):
    """One accepted run. `session` is the id of its session in the storage; `owner` the worker that runs it.

    `request`: what was asked for, so that a successor can start it; `digest`: of that, to tell a repeat from another
    request with the same `key`. `by`: who asked. Times are seconds since 1970; `started_at`: when its turn came, None
    before that. `reason`: why it was stopped, or why it failed. `usage`: what it cost, once it is over.
    `deaths`: how many workers have died in a row while the run was live there.
    """

    run_id: str
    session: str
    state: RunState
    created_at: float
    owner: str
    request: Mapping[str, Any] = field(default_factory=dict[str, Any])  # Any: JSON values
    key: str | None = None
    digest: str | None = None
    started_at: float | None = None
    ended_at: float | None = None
    outcome: str | None = None
    reason: Mapping[str, Any] | None = None  # Any: JSON values
    epoch: int = 0
    by: str = ""
    usage: Mapping[str, Any] | None = None  # Any: JSON values
    deaths: int = 0

    @property
    def cursor(self) -> Cursor:
        return Cursor(self.created_at, self.run_id)

    @property
    def ended(self) -> bool:
        return self.state is RunState.ENDED


class StoredCancelRequest(Value, frozen=True):
    """The durable row of an ask to stop a run. Every later request has a higher number.

    `acknowledged`: the owner of the run has taken it up. `answer`: what it said came of it.
    """

    number: int
    run_id: str
    ask: Mapping[str, Any]  # Any: JSON values
    acknowledged: bool = False
    answer: Mapping[str, Any] | None = None  # Any: JSON values


def moved(record: RunRecord, state: RunState, epoch: int, changes: Mapping[str, Any]) -> RunRecord:  # Any: fields of it
    """The record after the move. Raises `RecordMoved` for a move that is not drawn above, or an old epoch."""
    if record.epoch != epoch:
        raise RecordMoved(f"the run {record.run_id} has another owner by now")
    if state not in MOVES[record.state]:
        raise RecordMoved(f"the run {record.run_id} is {record.state}; it can't become {state}")
    deaths = 0 if state is RunState.SUSPENDED else record.deaths  # its worker has lived to store that
    return replace(record, state=state, **{"deaths": deaths, **changes})


def take_over(record: RunRecord, owner: str, epoch: int) -> RunRecord:
    """The record under its new owner. Raises `RecordMoved` if another process was faster."""
    if record.epoch != epoch or record.ended:
        raise RecordMoved(f"the run {record.run_id} was taken over by another process, or has ended")
    died = record.state is RunState.LIVE and FREE not in (record.owner, owner)
    return replace(record, owner=owner, epoch=epoch + 1, deaths=record.deaths + died)


def is_left_behind(record: RunRecord, live: RunRecord) -> bool:
    """Does the record end because another run of its session is live now?"""
    if record.run_id == live.run_id:
        return False
    if record.state is RunState.PAUSED:
        return True  # a new turn closes the questions of the one before, whichever was accepted first
    stopped = record.state is RunState.SUSPENDED and record.started_at is not None
    return stopped and record.created_at <= live.created_at


def left_behind(record: RunRecord) -> RunRecord:
    """Its end. A process that still takes it for its own cannot change that."""
    return replace(record, state=RunState.ENDED, epoch=record.epoch + 1)


def is_in_line(record: RunRecord) -> bool:
    """Does a later message of the session have to wait for this run?"""
    return record.state in (RunState.QUEUED, RunState.LIVE)


def is_free(record: RunRecord) -> bool:
    """May any worker take it?"""
    return record.owner == FREE and not record.ended


def must_wait(record: RunRecord, other: RunRecord) -> SessionBusy:
    return SessionBusy(f"the run {other.run_id} of the session {record.session!r} is {other.state}, and comes first")


def same_request(known: RunRecord, digest: str | None) -> RunRecord:
    """The run that a repeated request belongs to. Raises `KeyTaken` if it is another request."""
    if known.digest != digest:
        raise KeyTaken(f"the idempotency key {known.key!r} belongs to another request")
    return known


class RunRegistry(Protocol):
    """Every method is atomic: it happens whole or raises. Cancellation of any of them: likewise."""

    async def accept(self, record: RunRecord, *, since: float) -> RunRecord:
        """Write it; or return the record that has the same key and digest, if that is newer than `since`.

        Raises `KeyTaken` for the same key with another digest.
        """
        ...

    async def move(self, run_id: str, state: RunState, *, epoch: int, **changes: Any) -> RunRecord:  # Any: its fields
        """The record after the move. Raises `RecordMoved`."""
        ...

    async def take(self, run_id: str, owner: str, *, epoch: int) -> RunRecord:
        """Take over a run whose owner is dead. Raises `RecordMoved` if another process was faster."""
        ...

    async def get(self, run_id: str) -> RunRecord | None: ...

    async def by_key(self, session: str, key: str, *, since: float) -> RunRecord | None:
        """The record with that idempotency key that is newer than `since`."""
        ...

    async def find(self, *, session: str | None = None, prefix: str = "", limit: int = 1000) -> list[RunRecord]:
        """Records, newest first: of one session, or of all sessions whose id begins so."""
        ...

    async def over(self, *, prefix: str = "", after: Cursor | None = None, limit: int) -> list[RunRecord]:
        """Records that have ended, newest first: of all sessions whose id begins so, below a cursor."""
        ...

    async def still_open(
        self, session: str | None = None, *, waiting: bool = True, owner: str | None = None
    ) -> list[RunRecord]:
        """Records that have not ended, in the order in which they were accepted: of one session, of one owner, of all.

        `waiting`: also those that wait for a person.
        """
        ...

    async def orphans(self, *, waiting: bool = True, run_id: str | None = None) -> list[RunRecord]:
        """Open records that are free or whose owner is dead, in the order in which they were accepted.

        `run_id`: that one alone.
        """
        ...

    async def request_cancel(self, run_id: str, ask: Mapping[str, Any], *, acknowledged: bool = False) -> int:
        """The number of the stored request. It is kept as long as the run's record, or until it is withdrawn.

        `acknowledged`: the owner of the run knows of it already.
        """
        ...

    async def cancel_requests(self, run_id: str) -> list[StoredCancelRequest]: ...

    async def unheard_cancels(self, owner: str) -> list[StoredCancelRequest]:
        """Requests for open runs of that owner which it has not acknowledged."""
        ...

    async def acknowledge_cancel(self, number: int) -> None: ...

    async def answer_cancel(self, number: int, answer: Mapping[str, Any]) -> None:  # Any: JSON values
        """What came of the request, for the process that stored it; does nothing if it was withdrawn."""
        ...

    async def cancel_answer(self, number: int) -> Mapping[str, Any] | None:  # Any: JSON values
        """What the owner of the run has said to it, if it has."""
        ...

    async def withdraw_cancel(self, run_id: str, ask_id: str) -> None:
        """The request whose ask has that `id` is deleted; does nothing if there is none."""
        ...

    async def touch(self, session: str, at: float) -> None:
        """Something about the session changed at that time."""
        ...

    async def touched(self, prefix: str) -> dict[str, float]:
        """When the sessions whose id begins so were last changed, by a run or otherwise."""
        ...

    async def forget(self, session: str) -> None:
        """The session is deleted, and its records with it."""
        ...

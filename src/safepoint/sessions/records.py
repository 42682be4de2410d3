"""Which runs there are, for whoever has to find, stop or pick up a run that somebody else started.

A record is written when a message is accepted and ends with the run. A wish to cancel is a row of its own, written
whether or not the owner can be reached: whoever comes to the run next, the owner or its successor, finds it there.

    queued ──▶ live ──▶ ended
       │         ├────▶ paused ──▶ live (resumed) | ended
       └─────────┴────▶ suspended ──▶ live (resumed on the next start) | ended

`suspended`: stopped by a shutdown or a crash, to be picked up. Other moves raise `RecordMoved`, so two processes
can't both pick up one run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Protocol

from safepoint.errors import StoreError


class RunState(StrEnum):
    QUEUED = "queued"
    LIVE = "live"
    PAUSED = "paused"
    SUSPENDED = "suspended"
    ENDED = "ended"


MOVES: Mapping[RunState, frozenset[RunState]] = {
    RunState.QUEUED: frozenset({RunState.LIVE, RunState.SUSPENDED, RunState.ENDED}),
    RunState.LIVE: frozenset({RunState.PAUSED, RunState.SUSPENDED, RunState.ENDED}),
    RunState.PAUSED: frozenset({RunState.LIVE, RunState.ENDED}),
    RunState.SUSPENDED: frozenset({RunState.LIVE, RunState.QUEUED, RunState.ENDED}),
    RunState.ENDED: frozenset(),
}


class RecordMoved(StoreError):
    """The run is no longer where this change expected it: somebody else has moved it on."""


class KeyTaken(StoreError):
    """The idempotency key belongs to another request."""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One accepted run. `session` is the store's id of its session; `owner` the process that runs it.

    `request`: what was asked for, so that a successor can start it; `digest`: of that, to tell a repeat from another
    request with the same `key`. Times are seconds since the epoch.
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
    reason: Mapping[str, Any] | None = None  # Any: as above


def moved(record: RunRecord, state: RunState, changes: Mapping[str, Any]) -> RunRecord:  # Any: fields of the record
    """The record after the move. Raises `RecordMoved` for one that is not drawn above."""
    if state not in MOVES[record.state]:
        raise RecordMoved(f"the run {record.run_id} is {record.state}; it can't become {state}")
    return replace(record, state=state, **changes)


class RunBook(Protocol):
    """Every method is atomic: it happens whole or raises. Cancellation of any of them: likewise.

    `durable`: whether what it holds outlives the process.
    """

    durable: bool

    async def accept(self, record: RunRecord, *, since: float) -> RunRecord:
        """Write it; or return the record that has the same key and digest, if that is newer than `since`.

        Raises `KeyTaken` for the same key with another digest.
        """
        ...

    async def move(self, run_id: str, state: RunState, **changes: Any) -> RunRecord:  # Any: fields of the record
        """The record after the move. Raises `RecordMoved`."""
        ...

    async def get(self, run_id: str) -> RunRecord | None: ...

    async def find(self, *, session: str | None = None, prefix: str = "", limit: int = 1000) -> list[RunRecord]:
        """Records, newest first: of one session, or of all sessions whose id begins so."""
        ...

    async def left_open(self, owner: str) -> list[RunRecord]:
        """Records that have not ended and are not of that owner, oldest first."""
        ...

    async def intend(self, run_id: str, ask: Mapping[str, Any]) -> None:  # Any: JSON values
        """Somebody wants the run stopped; kept until the run has ended, and after."""
        ...

    async def intents(self, run_id: str) -> list[Mapping[str, Any]]:  # Any: JSON values
        ...

    async def touch(self, session: str, at: float) -> None:
        """Something about the session changed then."""
        ...

    async def touched(self, prefix: str) -> dict[str, float]:
        """When the sessions whose id begins so were last changed."""
        ...

    async def forget(self, session: str) -> None:
        """The session is deleted, and its records with it."""
        ...

    async def aclose(self) -> None: ...


class MemoryRunBook:
    """Records that last as long as the process."""

    durable = False

    def __init__(self) -> None:
        self._records: dict[str, RunRecord] = {}
        self._intents: dict[str, list[Mapping[str, Any]]] = {}  # Any: JSON values
        self._touched: dict[str, float] = {}

    async def accept(self, record: RunRecord, *, since: float) -> RunRecord:
        """Cancellation: of this and of every other method: there is nothing to wait for."""
        for known in self._records.values():
            if record.key is not None and (known.session, known.key) == (record.session, record.key):
                if known.created_at < since:
                    continue
                return repeated(known, record)
        self._records[record.run_id] = record
        return record

    async def move(self, run_id: str, state: RunState, **changes: Any) -> RunRecord:  # Any: fields of the record
        if run_id not in self._records:
            raise RecordMoved(f"there is no run {run_id}")
        record = self._records[run_id] = moved(self._records[run_id], state, changes)
        return record

    async def get(self, run_id: str) -> RunRecord | None:
        return self._records.get(run_id)

    async def find(self, *, session: str | None = None, prefix: str = "", limit: int = 1000) -> list[RunRecord]:
        found = [
            record
            for record in self._records.values()
            if record.session.startswith(prefix) and session in (None, record.session)
        ]
        return sorted(found, key=lambda record: record.created_at, reverse=True)[:limit]

    async def left_open(self, owner: str) -> list[RunRecord]:
        found = [each for each in self._records.values() if each.state is not RunState.ENDED and each.owner != owner]
        return sorted(found, key=lambda record: record.created_at)

    async def intend(self, run_id: str, ask: Mapping[str, Any]) -> None:  # Any: JSON values
        self._intents.setdefault(run_id, []).append(dict(ask))

    async def intents(self, run_id: str) -> list[Mapping[str, Any]]:  # Any: JSON values
        return list(self._intents.get(run_id, ()))

    async def touch(self, session: str, at: float) -> None:
        self._touched[session] = at

    async def touched(self, prefix: str) -> dict[str, float]:
        return {session: at for session, at in self._touched.items() if session.startswith(prefix)}

    async def forget(self, session: str) -> None:
        self._touched.pop(session, None)
        gone = [record.run_id for record in self._records.values() if record.session == session]
        for run_id in gone:
            del self._records[run_id]
            self._intents.pop(run_id, None)

    async def aclose(self) -> None:
        pass


def repeated(known: RunRecord, asked: RunRecord) -> RunRecord:
    if known.digest != asked.digest:
        raise KeyTaken(f"the idempotency key {asked.key!r} belongs to another request")
    return known

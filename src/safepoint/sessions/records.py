"""Which runs there are, for whoever has to find, stop or pick up a run that somebody else started.

A record is written when a message is accepted and ends with the run. A wish to cancel is a row of its own, written
whether or not the owner can be reached: whoever comes to the run next, the owner or its successor, finds it there, and
may answer it.

    queued ──▶ live ──▶ ended
       │         ├────▶ paused ──▶ live | ended
       └─────────┴────▶ suspended ──▶ queued (picked up by the next process) | ended

`suspended`: stopped by a shutdown, to be picked up. A queued run may end too, by a cancel. Other moves raise
`RecordMoved`. A run that becomes live leaves what its session had stopped behind: older records that were paused or
suspended end with it. A message that was suspended before its turn came is not left behind.

A record has one owner, the process that runs it, which renews it by `beat` and learns there who wants it stopped. The
record of an owner that is gone is taken over by `take`, which raises its epoch; a move with an old epoch is refused.
So a run has one owner at a time, and one that was taken for dead can't spoil what its successor has recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import count
from typing import Any, Protocol

from safepoint.errors import StoreCorrupt, StoreError
from safepoint.sessions.owners import Owner


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
    RunState.SUSPENDED: frozenset({RunState.QUEUED, RunState.ENDED}),
    RunState.ENDED: frozenset(),
}


class RecordMoved(StoreError):
    """The run is no longer where this change expected it: somebody else has moved it on."""


class KeyTaken(StoreError):
    """The idempotency key belongs to another request."""


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Where a record is among all others, which are in the order in which they were accepted."""

    created_at: float
    run_id: str


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One accepted run. `session` is the store's id of its session; `owner` the process that runs it.

    `request`: what was asked for, so that a successor can start it; `digest`: of that, to tell a repeat from another
    request with the same `key`. `by`: who asked. Times are seconds since the epoch; `renewed`: when its owner was last
    known to live; `started_at`: when its turn came, None before that. `reason`: why it was stopped, or why it failed.
    `usage`: what it cost, once it is over.
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
    renewed: float = 0.0
    epoch: int = 0
    by: str = ""
    usage: Mapping[str, Any] | None = None  # Any: as above

    @property
    def place(self) -> Place:
        return Place(self.created_at, self.run_id)

    @property
    def ended(self) -> bool:
        return self.state is RunState.ENDED

    @property
    def is_orphan(self) -> bool:
        """Not ended, and whoever ran it is gone. Raises `StoreCorrupt` if nobody can read who that was."""
        try:
            return not self.ended and Owner.parse(self.owner).is_gone(max(self.renewed, self.created_at))
        except ValueError as error:
            raise StoreCorrupt(f"the owner of the run {self.run_id} can't be read: {self.owner!r}") from error


@dataclass(frozen=True, slots=True)
class Intent:
    """Somebody wants a run stopped. `number` grows with every intent of the book."""

    number: int
    run_id: str
    ask: Mapping[str, Any]  # Any: JSON values


def moved(record: RunRecord, state: RunState, epoch: int, changes: Mapping[str, Any]) -> RunRecord:  # Any: fields of it
    """The record after the move. Raises `RecordMoved` for one that is not drawn above, or of an old epoch."""
    if record.epoch != epoch:
        raise RecordMoved(f"the run {record.run_id} has another owner by now")
    if state not in MOVES[record.state]:
        raise RecordMoved(f"the run {record.run_id} is {record.state}; it can't become {state}")
    return replace(record, state=state, **changes)


def taken(record: RunRecord, owner: str, epoch: int, at: float) -> RunRecord:
    """The record under its new owner. Raises `RecordMoved` if somebody was faster."""
    if record.epoch != epoch or record.ended:
        raise RecordMoved(f"the run {record.run_id} was taken over by somebody else, or has ended")
    return replace(record, owner=owner, epoch=epoch + 1, renewed=at)


def is_left_behind(record: RunRecord, live: RunRecord) -> bool:
    """Is it over, now that the other run of its session is live?"""
    stopped = record.state is RunState.PAUSED or (record.state is RunState.SUSPENDED and record.started_at is not None)
    return stopped and record.run_id != live.run_id and record.created_at <= live.created_at


def left_behind(record: RunRecord) -> RunRecord:
    """Its end, which nobody who still thinks of it as theirs can change."""
    return replace(record, state=RunState.ENDED, epoch=record.epoch + 1)


def same_request(known: RunRecord, digest: str | None) -> RunRecord:
    """The run that a repeated request belongs to. Raises `KeyTaken` if it is another request."""
    if known.digest != digest:
        raise KeyTaken(f"the idempotency key {known.key!r} belongs to another request")
    return known


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

    async def move(self, run_id: str, state: RunState, *, epoch: int, **changes: Any) -> RunRecord:  # Any: its fields
        """The record after the move. Raises `RecordMoved`."""
        ...

    async def take(self, run_id: str, owner: str, *, epoch: int, at: float) -> RunRecord:
        """Take over a run whose owner is gone. Raises `RecordMoved` if somebody was faster."""
        ...

    async def beat(self, owner: str, *, at: float, after: int) -> list[Intent]:
        """The owner lives; what is wanted of its runs that have not ended, by intents numbered above `after`."""
        ...

    async def get(self, run_id: str) -> RunRecord | None: ...

    async def by_key(self, session: str, key: str, *, since: float) -> RunRecord | None:
        """The record with that idempotency key that is newer than `since`."""
        ...

    async def find(self, *, session: str | None = None, prefix: str = "", limit: int = 1000) -> list[RunRecord]:
        """Records, newest first: of one session, or of all sessions whose id begins so."""
        ...

    async def over(self, *, prefix: str = "", after: Place | None = None, limit: int) -> list[RunRecord]:
        """Records that have ended, newest first: of all sessions whose id begins so, from below a place on."""
        ...

    async def still_open(self, session: str | None = None, *, waiting: bool = True) -> list[RunRecord]:
        """Records that have not ended, in the order in which they were accepted: of one session, or of all.

        `waiting`: also those that wait for a person.
        """
        ...

    async def intend(self, run_id: str, ask: Mapping[str, Any]) -> int:  # Any: JSON values
        """Somebody wants the run stopped. The number of that intent, which is kept as long as the run's record, or
        until it is taken back.
        """
        ...

    async def answer(self, number: int, said: Mapping[str, Any]) -> None:  # Any: as above
        """What came of the intent of that number, for whoever wrote it; nothing happens if there is none."""
        ...

    async def answer_to(self, number: int) -> Mapping[str, Any] | None:  # Any: as above
        """What the owner of the run has said to it, if it has."""
        ...

    async def retract(self, run_id: str, ask_id: str) -> None:
        """The intent whose ask has that `id` is taken back; nothing happens if there is none."""
        ...

    async def intents(self, run_id: str) -> list[Intent]: ...

    async def touch(self, session: str, at: float) -> None:
        """Something about the session changed then."""
        ...

    async def touched(self, prefix: str) -> dict[str, float]:
        """When the sessions whose id begins so were last changed, by a run or otherwise."""
        ...

    async def forget(self, session: str) -> None:
        """The session is deleted, and its records with it."""
        ...


class MemoryRunBook:
    """Records that last as long as the process."""

    durable = False

    def __init__(self) -> None:
        self._records: dict[str, RunRecord] = {}
        self._of_session: dict[str, list[str]] = {}
        self._by_key: dict[tuple[str, str], str] = {}
        self._stopped: dict[str, set[str]] = {}
        self._intents: dict[str, list[Intent]] = {}
        self._answers: dict[int, Mapping[str, Any]] = {}  # Any: JSON values
        self._touched: dict[str, float] = {}
        self._numbers = count(1)

    async def accept(self, record: RunRecord, *, since: float) -> RunRecord:
        """Cancellation: of this and of every other method: there is nothing to wait for."""
        if record.key is not None:
            known = self._newer(record.session, record.key, since)
            if known is not None:
                return same_request(known, record.digest)
            self._by_key[record.session, record.key] = record.run_id
        self._of_session.setdefault(record.session, []).append(record.run_id)
        return self._put(record)

    async def move(self, run_id: str, state: RunState, *, epoch: int, **changes: Any) -> RunRecord:  # Any: its fields
        known = self._known(run_id)
        record = moved(known, state, epoch, changes)
        if known.key is not None and record.key is None and self._by_key.get((known.session, known.key)) == run_id:
            del self._by_key[known.session, known.key]
        return self._put(record)

    async def take(self, run_id: str, owner: str, *, epoch: int, at: float) -> RunRecord:
        record = self._records[run_id] = taken(self._known(run_id), owner, epoch, at)
        return record

    def _put(self, record: RunRecord) -> RunRecord:
        self._records[record.run_id] = record
        stopped = self._stopped.setdefault(record.session, set())
        stopped.discard(record.run_id)
        if record.state in (RunState.PAUSED, RunState.SUSPENDED):
            stopped.add(record.run_id)
        elif record.state is RunState.LIVE:
            for other in map(self._known, tuple(stopped)):
                if is_left_behind(other, record):
                    self._put(left_behind(other))
        return record

    def _known(self, run_id: str) -> RunRecord:
        if run_id not in self._records:
            raise RecordMoved(f"there is no run {run_id}")
        return self._records[run_id]

    async def beat(self, owner: str, *, at: float, after: int) -> list[Intent]:
        return []  # nobody else can reach this book, so whoever wants a run stopped has asked it already

    async def get(self, run_id: str) -> RunRecord | None:
        return self._records.get(run_id)

    async def by_key(self, session: str, key: str, *, since: float) -> RunRecord | None:
        return self._newer(session, key, since)

    def _newer(self, session: str, key: str, since: float) -> RunRecord | None:
        known = self._records.get(self._by_key.get((session, key), ""))
        return known if known is not None and known.created_at >= since else None

    async def find(self, *, session: str | None = None, prefix: str = "", limit: int = 1000) -> list[RunRecord]:
        known = self._records.values() if session is None else map(self._known, self._of_session.get(session, ()))
        found = [record for record in known if session is not None or record.session.startswith(prefix)]
        return sorted(found, key=lambda record: record.created_at)[: -limit - 1 : -1]

    async def over(self, *, prefix: str = "", after: Place | None = None, limit: int) -> list[RunRecord]:
        ended = (each for each in self._records.values() if each.ended and each.session.startswith(prefix))
        found = [record for record in ended if after is None or record.place < after]
        return sorted(found, key=lambda record: record.place, reverse=True)[:limit]

    async def still_open(self, session: str | None = None, *, waiting: bool = True) -> list[RunRecord]:
        known = self._records.values() if session is None else map(self._known, self._of_session.get(session, ()))
        closed = {RunState.ENDED} if waiting else {RunState.ENDED, RunState.PAUSED}
        return [record for record in known if record.state not in closed]

    async def intend(self, run_id: str, ask: Mapping[str, Any]) -> int:  # Any: JSON values
        intent = Intent(next(self._numbers), run_id, dict(ask))
        self._intents.setdefault(run_id, []).append(intent)
        return intent.number

    async def answer(self, number: int, said: Mapping[str, Any]) -> None:  # Any: JSON values
        if any(intent.number == number for each in self._intents.values() for intent in each):
            self._answers[number] = dict(said)

    async def answer_to(self, number: int) -> Mapping[str, Any] | None:  # Any: JSON values
        return self._answers.get(number)

    async def retract(self, run_id: str, ask_id: str) -> None:
        known = self._intents.get(run_id, [])
        self._intents[run_id] = [each for each in known if each.ask.get("id") != ask_id]
        self._drop_answers(each for each in known if each.ask.get("id") == ask_id)

    def _drop_answers(self, intents: Iterable[Intent]) -> None:
        for intent in intents:
            self._answers.pop(intent.number, None)

    async def intents(self, run_id: str) -> list[Intent]:
        return list(self._intents.get(run_id, ()))

    async def touch(self, session: str, at: float) -> None:
        self._touched[session] = at

    async def touched(self, prefix: str) -> dict[str, float]:
        found = {session: at for session, at in self._touched.items() if session.startswith(prefix)}
        for session, runs in self._of_session.items():
            if session.startswith(prefix):
                last = (self._records[run_id] for run_id in runs)
                found[session] = max((found.get(session, 0.0), *(run.ended_at or run.created_at for run in last)))
        return found

    async def forget(self, session: str) -> None:
        self._touched.pop(session, None)
        self._stopped.pop(session, None)
        for run_id in self._of_session.pop(session, ()):
            record = self._records.pop(run_id)
            self._drop_answers(self._intents.pop(run_id, ()))
            if record.key is not None:
                self._by_key.pop((session, record.key), None)

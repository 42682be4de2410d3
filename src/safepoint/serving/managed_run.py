"""One run that is served to clients, from the accepted message to the last event.

It lives in a task of its own, never in a request's: clients come and go, and the run goes on. Its record is stored with
the beginning of the run, or before that if the message has to wait; it ends with the run.

`Phase` says how far it is, and what is stored of it:

      NEW ──its task begins──▶ WAITING ──its turn──▶ ADMITTED ─┐
       │                                                        │ record and beginning are stored
       │ its record is stored                                   ▼
       └───▶ QUEUED ──its turn──▶ STARTING ──beginning is──▶ RUNNING ──its end is──▶ RECORDED
                │                     │        stored           │         stored        ▲  │
                │                     └─────────────┐           │                       │  │ its pause is cleared
                └──withdrawn, joined or refused───▶ OWED ◀──────┘───────────────────────┘◀─┘
                                                    its record has to be ended, and that is tried until it is

A message that is refused before its record is stored stays WAITING or ADMITTED: nothing of it is stored. If the storage
hung in that moment, the end may still arrive there, and then it is RECORDED. Other moves raise.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import Any

from safepoint._core.latch import Latch
from safepoint._core.points import Level, SafePoint
from safepoint._core.reasons import Reason, Source
from safepoint._core.receipts import Receipt
from safepoint.agent.freeze import Freeze, Gate
from safepoint.agent.journal import Ended
from safepoint.agent.result import StopReason
from safepoint.errors import SessionBusy, SessionNotFound, StoreError
from safepoint.history.parts import Prompt
from safepoint.serving.cancel_requests import reason_json
from safepoint.serving.event_publisher import AnyRun, EventPublisher
from safepoint.serving.events import REFUSED, Failure, RunEnd, Turn
from safepoint.serving.feed import Feed
from safepoint.serving.ids import SessionKey
from safepoint.serving.shared_state import SHARED, bring, changed, drop_temporary, merge, places, session_part, shared
from safepoint.serving.stored_events import before_its_turn, usage_json
from safepoint.serving.submission import OnDisconnect
from safepoint.sessions.dispatch import Delivery, IfBusy, SessionDispatcher
from safepoint.sessions.pending_ends import REFUSED as NEVER_STORED
from safepoint.sessions.session import Session
from safepoint.storage.audit import AuditEntry
from safepoint.storage.operations import AcceptRun, AddAudit, AddNote, MoveRun, ReadShared, Share, Statement
from safepoint.storage.run_records import FREE, AlreadyAccepted, RecordMoved, RunRecord, RunRegistry, RunState
from safepoint.storage.shared_state import Note

_log = logging.getLogger("safepoint.server")

_PATIENCE = 10.0
# More events, twice, than a run tells in one process.
_LIFE = 1_000_000
# Who stops a run only for a while: a process that ends, and a freeze.
GOES_ON_LATER = frozenset({Source.SHUTDOWN, Source.FREEZE})
# How the record of a message ends that was not taken: its idempotency key is free for the same message sent again.
NOT_TAKEN: Mapping[str, str | None] = {"outcome": REFUSED, "key": None, "digest": None}


class Phase(Enum):
    """How far a served run is; drawn above."""

    NEW = "new"
    WAITING = "waiting"
    ADMITTED = "admitted"
    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    OWED = "owed"
    RECORDED = "recorded"

    @property
    def is_stored(self) -> bool:
        """Does the storage have its record?"""
        return self not in (Phase.NEW, Phase.WAITING, Phase.ADMITTED)


_MOVES: Mapping[Phase, frozenset[Phase]] = {
    Phase.NEW: frozenset({Phase.WAITING, Phase.QUEUED}),
    Phase.WAITING: frozenset({Phase.ADMITTED}),
    Phase.ADMITTED: frozenset({Phase.RUNNING, Phase.RECORDED}),
    Phase.QUEUED: frozenset({Phase.STARTING, Phase.OWED}),
    Phase.STARTING: frozenset({Phase.RUNNING, Phase.RECORDED, Phase.OWED}),
    Phase.RUNNING: frozenset({Phase.RECORDED, Phase.OWED}),
    Phase.OWED: frozenset({Phase.RECORDED}),
    Phase.RECORDED: frozenset({Phase.OWED}),
}


class ManagedRun:
    """A run, its feed, and its record. `admitted` opens when it is clear that the message was taken, or refused.

    `by`: the key that pays for it. `record_state`: of its record, if that is stored already; a queued record becomes
    live when its turn comes. `epoch`: of its record; above 0 it was taken over from another process, and publishes
    first what was published there. `asks`: receipts, by the ids of their asks.
    """

    def __init__(
        self,
        key: SessionKey,
        run: AnyRun,
        prompt: Prompt,
        turn: Turn,
        *,
        by: str = "",
        epoch: int = 0,
        record_state: RunState | None = None,
    ) -> None:
        self.key = key
        self.id = run.id
        self.run = run
        self.prompt = prompt
        self.by = by
        self.phase = Phase.NEW if record_state is None else Phase.QUEUED
        self.record_state = record_state
        self.disconnect_policy = DisconnectPolicy(self.ask)
        self.feed = Feed(turn, first_event(epoch), self.disconnect_policy)
        self.epoch = epoch
        self.admitted = Latch()
        # Its record is stored, or never will be.
        self.accepted = Latch()
        # Nothing more becomes of a message that was refused; else it is accepted `again`, to wait for its turn.
        self.decided = Latch()
        self.again: ManagedRun | None = None
        # Accepted by an earlier request with the same idempotency key.
        self.twin: RunRecord | None = None
        # The beginning of its run is stored, or there is none.
        self.begun = Latch()
        self.publisher = EventPublisher(run, self.feed, self._on_begin, again=epoch > 0)
        self.refused: SessionBusy | SessionNotFound | None = None
        # Its turn could not begin, or another process has it now.
        self.failed: StoreError | None = None
        self.delivery: Delivery | None = None
        # Asked to stop while it was waiting for its turn: then there is no run to ask.
        self.withdrawn: Reason | None = None
        self.accepted_at = time.time()
        self.over = Latch()
        self.task: asyncio.Task[None] | None = None
        self.asks: dict[str, Receipt] = {}
        # What came with the message.
        self.state_delta: Mapping[str, Any] = {}  # Any: JSON values
        # Its record, if that is to be accepted with the beginning of the run.
        self.accept: AcceptRun | None = None
        # Waits for runs of its session in other processes that come before it; None once they are over.
        self.ahead_over: Callable[[], Awaitable[None]] | None = None
        # What is frozen for it; None before it has its task.
        self.gate: Gate | None = None
        # It goes on where a freeze has stopped it.
        self.was_frozen = False
        # Strikes when it has run as long as a run may.
        self.limit: asyncio.TimerHandle | None = None
        self._session: Session | None = None

    def move(self, phase: Phase) -> None:
        """Raises RuntimeError for a move that is not drawn above."""
        if phase not in _MOVES[self.phase]:
            raise RuntimeError(f"the run {self.id} cannot go from {self.phase.value} to {phase.value}")
        self.phase = phase

    def queue(self) -> None:
        """Its record is stored: it waits for its turn."""
        self.move(Phase.QUEUED)
        self.record_state = RunState.QUEUED

    @property
    def is_accepted(self) -> bool:
        """Is its record stored?"""
        return self.phase.is_stored

    async def as_accepted(self) -> ManagedRun | None:
        """The run as which its message was accepted; None if it was not. Cancellation: only the waiting ends."""
        await self.accepted.wait()
        if self.is_accepted:
            return self
        await self.decided.wait()
        return None if self.again is None else await self.again.as_accepted()

    @property
    def is_refused(self) -> bool:
        """Is it certain that its message is not stored as this run? Else a storage that hung may still do that."""
        return self.refused is not None or self.twin is not None

    @property
    def why_not_accepted(self) -> Exception:
        """Of a run that is over, and was not accepted."""
        found = self.refused or self.failed
        if found is None and self.run.ended:
            result = self.run.result
            error = result.error or result.save_error
            found = error if isinstance(error, StoreError) else None
            if found is None and isinstance(error, Exception):
                return error
        return found or StoreError("the run was stopped before it could be accepted")

    @property
    def live(self) -> bool:
        """Is there anything that could be stopped? Not of a message that has joined another run."""
        return not self.over.is_set and self.feed.joined is None

    @property
    def state(self) -> RunState:
        if not self.live:
            runs = self._session.runs if self._session is not None else ()
            waits = self.paused and bool(runs) and runs[-1].run_id == self.id  # and no later message came
            if waits:
                return RunState.PAUSED
            return state_after(self.run.result.stop_reason, self.reason) if self._goes_on_later else RunState.ENDED
        return RunState.QUEUED if self.phase in (Phase.WAITING, Phase.QUEUED) else RunState.LIVE

    def frozen_before(self) -> Freeze | None:
        """What keeps it from beginning."""
        gate = self.gate
        return None if gate is None else gate.of_stopped() if self.was_frozen else gate.of_run()

    @property
    def held_by(self) -> Freeze | None:
        """The freeze that it waits for, before its turn or in the middle of it."""
        return self.run.held_by if self.run.node.started else self.frozen_before()

    @property
    def paused(self) -> bool:
        waited = self.run.ended and self.run.result.stop_reason is StopReason.INTERRUPTED
        return waited and self.run.cleared is None

    @property
    def _goes_on_later(self) -> bool:
        """Did it stop only for a while?"""
        stopped = self.run.ended and self.run.result.stop_reason is StopReason.CANCELLED and self.run.cleared is None
        return stopped and self.phase is Phase.RECORDED and self.withdrawn is None

    @property
    def outcome(self) -> str | None:
        """The fixed word for how it ended; None before that."""
        if self.refused is not None:
            return REFUSED
        if self.failed is not None:
            return str(StopReason.ERROR)
        if self.delivery is Delivery.JOINED:
            return "joined"
        if self.withdrawn is not None:
            return str(StopReason.CANCELLED)
        if self.run.cleared is not None:
            return str(StopReason.CANCELLED)
        return str(self.run.result.stop_reason) if self.run.ended else None

    @property
    def reason(self) -> Reason | None:
        """Why it was stopped, if it was."""
        if self.withdrawn is not None:
            return self.withdrawn
        cancellation = self.run.result.cancellation if self.run.ended else None
        return cancellation.reason if cancellation is not None else self.run.cleared

    @property
    def error(self) -> BaseException | None:
        """Why it failed, if it did."""
        return self.run.result.error if self.run.ended and self.withdrawn is None else None

    # -- its life ------------------------------------------------------------------------------------------------------

    async def serve(
        self, dispatcher: SessionDispatcher, if_busy: IfBusy, runs: RunRegistry, joined: Callable[[AnyRun], object]
    ) -> None:
        """From the queue to the last event, as the body of a task of the server.

        Cancellation: a run that waits for its turn is withdrawn; a live one is stopped NOW.
        """
        session = self._session = dispatcher.session
        stop_listening = self.publisher.listen(session)
        session.attach(self.id, StateSync(self, session, self.accept))
        if self.phase is Phase.NEW:
            self.move(Phase.WAITING)
        else:
            self.accepted.set()
        if if_busy != "reject":
            self.admitted.set()
        try:
            if self.withdrawn is not None:
                self.run.discard()
                raise asyncio.CancelledError  # asked for before this task had made a step
            await self._let_others_end()
            # The record ends before the next run of the session begins, whose work would else be taken for this run's.
            sent = await dispatcher.deliver(
                self.run,
                self.prompt,
                if_busy=if_busy,
                on_turn=self._begin,
                on_over=partial(self._record_over, runs),
                on_joined=joined,
            )
            self.delivery = sent.delivery
            if self.refused is not None:
                self.publisher.ended(_refused(self.refused))
            elif sent.delivery is not Delivery.JOINED:
                self.publisher.end(sent.result)
        except SessionBusy as error:
            self.refused = error
        except StoreError as error:
            self.failed = error
            self.publisher.ended(_refused(error))
        except asyncio.CancelledError:
            if self.withdrawn is None:
                raise
            if self.feed.joined is not None:  # in that very moment
                self.delivery, self.withdrawn = Delivery.JOINED, None
                return
            self.publisher.ended(before_its_turn(self.withdrawn.text))
        finally:
            stop_listening()
            self._on_begin()  # a message that never began must not keep those who wait for its beginning
            # The record ends before the feed closes and `over` opens: who waits for either reads of an ended run.
            await self.record_end(runs)
            self.accepted.set()
            cause = self.error
            self.feed.close(None if cause is None else Failure.of(cause, time.time()))
            self.over.set()
            self.disconnect_policy.end()

    def opened(self) -> None:
        """The session has its beginning: its end will be stored there, and that of its record with it."""
        self.move(Phase.RUNNING)
        self.accepted.set()

    def ended(self) -> None:
        """Its end is stored, and that of its record with it."""
        if self.phase is not Phase.RECORDED:
            self.move(Phase.RECORDED)
        self.accepted.set()

    def _on_begin(self) -> None:
        if not self.begun.is_set:
            self.begun.set()
            self.admitted.set()

    async def _let_others_end(self) -> None:
        """Cancellation: the run never starts."""
        try:
            if self.ahead_over is not None:
                await self.ahead_over()
                self.ahead_over = None
        except BaseException:
            self.run.discard()
            raise

    async def _begin(self) -> None:
        """Its turn has come."""
        self.move(Phase.ADMITTED if self.phase is Phase.WAITING else Phase.STARTING)

    async def _record_over(self, runs: RunRegistry) -> None:
        """Cancellation: as of `record_end`."""
        result = self.run.result
        error = result.error
        if error is None and self.phase in (Phase.ADMITTED, Phase.STARTING):  # it was asked to stop meanwhile
            error = result.save_error
        if isinstance(error, AlreadyAccepted):
            self.twin = error.record
        elif isinstance(error, SessionBusy) or (isinstance(error, SessionNotFound) and not self.begun.is_set):
            self.refused = error  # another process has a run of it, or has deleted it
        elif isinstance(error, RecordMoved) and not self.begun.is_set:
            self.failed = error
        if result.save_error is not None:
            await self._store_end()
        pause = self.run.pause
        if pause is not None and pause.clearing is not None:
            # A tool or a hook cancelled it while it closed itself to wait for a person.
            await pause.clearing.wait()
        await self.record_end(runs)

    async def _store_end(self) -> None:
        """The end was not stored in time: try once more, bounded. Cancellation: it is tried again later."""
        assert self._session is not None
        try:
            async with asyncio.timeout(_PATIENCE):
                await self._session.store_end()
        except (StoreError, TimeoutError) as error:
            _log.error("the end of the run %s is not stored yet: %s", self.id, error)

    async def record_end(self, runs: RunRegistry) -> None:
        """How the record of a message ends that never became a run, or was never told so; a run ends its own.

        Bounded; what fails is owed, and tried again. Cancellation: likewise, by the next start at the latest.
        """
        was_cleared = self.run.cleared is not None  # what was stored with its end says that it waits for a person
        ends_itself = self.phase is Phase.RUNNING and not self._is_lost
        if not was_cleared and (not self.phase.is_stored or self.phase is Phase.RECORDED or ends_itself):
            return
        if isinstance(self.failed, RecordMoved) or (self.refused is not None and self.epoch):
            return  # it is another's by now; or it was picked up too early, and its turn is still to come
        reason, error = self.reason, self.error
        is_over = self.run.ended and not was_cleared
        stop_reason = self.run.result.stop_reason if is_over else StopReason.CANCELLED
        why: Mapping[str, Any] | None = None if reason is None else reason_json(reason)  # Any: JSON values
        if error is not None and why is None:
            why = {"error": type(error).__name__, "text": str(error)}
        usage = usage_json(self.run.result.usage) if self.run.ended else None
        state = state_after(stop_reason, reason)
        left = {"ended_at": time.time(), "outcome": self.outcome, "reason": why, "usage": usage, **_owner_of(state)}
        if self.refused is not None:
            left |= NOT_TAKEN
        if self.phase is not Phase.OWED:
            self.move(Phase.OWED)
        try:
            async with asyncio.timeout(_PATIENCE):
                await runs.move(self.id, state, epoch=self.epoch, **left)
        except RecordMoved as moved:
            _log.warning("the end of the run %s is recorded by another process: %s", self.id, moved)
        except (StoreError, TimeoutError):
            _log.exception("the end of the run %s could not be recorded yet", self.id)
            return
        self.move(Phase.RECORDED)

    @property
    def _is_lost(self) -> bool:
        """Will the session never have its end? It was deleted, or taken over."""
        error = self.run.result.save_error if self.run.ended else None
        return isinstance(error, NEVER_STORED)

    # -- asking --------------------------------------------------------------------------------------------------------

    def withdraw(self, reason: Reason) -> None:
        """Take it out of the queue. Only for a run that has not started."""
        asked = self.run.node.request()
        if self.withdrawn is not None or (asked is not None and asked.at.level is not Level.SAFE):
            return  # it was asked already, and ends by itself as soon as it starts
        self.withdrawn = reason
        if self.task is not None and self._session is not None:  # a task that has made no step would never see it
            self.task.cancel()

    def give_up(self, reason: Reason) -> None:
        """The process leaves and its end can't be recorded: its viewers are told, and the next process settles it."""
        self.publisher.ended(RunEnd(str(StopReason.CANCELLED), reason.text))
        self.feed.close()

    def hand_over(self, reason: Reason, *, within: float) -> None:
        """Stop it at a safe point, and NOW after so many seconds, for another process to continue it."""
        if self.state is RunState.QUEUED:
            return self.withdraw(reason)
        self.run.node.cancel(SafePoint.ANY, within=within, recursive=True, reason=reason)

    def ask(self, at: SafePoint, reason: Reason) -> None:
        """Stop it, whatever it does now; for askers that need no receipt."""
        if self.state is RunState.QUEUED:
            self.withdraw(reason)
        elif self.state is RunState.LIVE:
            self.run.node.cancel(at, recursive=True, reason=reason)


def _refused(error: Exception) -> RunEnd:
    return RunEnd(REFUSED, str(error), failure=Failure.of(error))


class DisconnectPolicy:
    """What becomes of a run when its last viewer leaves. Called with whether there is a viewer, when that changes.

    `ask` stops the run, if it can still be stopped. A viewer that comes back stops the clock; the next viewer that
    leaves starts it anew.
    """

    def __init__(self, ask: Callable[[SafePoint, Reason], object]) -> None:
        self.policy: OnDisconnect = "cancel"
        self._ask = ask
        self._clock: asyncio.TimerHandle | None = None
        self._over = False

    def __call__(self, watched: bool) -> None:
        self._stop_clock()
        if watched or self._over or self.policy == "detach":
            return
        reason = Reason("its client went away", Source.DISCONNECT)
        if self.policy == "cancel":
            self._ask(SafePoint.NOW, reason)
        else:
            loop = asyncio.get_running_loop()
            self._clock = loop.call_later(self.policy.seconds, self._ask, SafePoint.NOW, reason)

    def end(self) -> None:
        """The run is over: a clock that goes on would only keep it in memory."""
        self._over = True
        self._stop_clock()

    def _stop_clock(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None


def first_event(epoch: int) -> int:
    """The number before the first event of a run that was taken over so often."""
    return epoch * _LIFE


def first_stored(epoch: int) -> int:
    """As `first_event`, where its events are told as they are stored."""
    return epoch * _LIFE + _LIFE // 2


class StateSync:
    """What is written with the beginning and the end of a served run, beside its conversation.

    With the beginning: its record, what its message does to the state, and what sessions share, which the run then
    finds in the state of its session. With the end: how its record ends, what the run did to shared values, and which
    event told of which change. So session and record cannot disagree about an end.
    `accept`: the record, if the beginning of the run is what accepts it.
    """

    def __init__(self, managed: ManagedRun, session: Session, accept: AcceptRun | None) -> None:
        self._managed = managed
        self._session = session
        self._accept = accept
        # What the message has replaced in the state, to be put back if the run does not begin.
        self._replaced: dict[str, Any] = {}  # Any: JSON values
        self._shared_before: Mapping[str, Any] | None = None  # Any: JSON values

    def opening(self) -> Sequence[Statement[Any]]:  # Any: of every result
        managed = self._managed
        if managed.state_delta:
            delta = session_part(managed.state_delta)
            self._replaced = {name: self._session.state.get(name) for name in delta}
            merge(self._session.state, delta)
        statements: list[Statement[Any]] = []  # Any: of every result
        if self._accept is not None:
            statements.append(self._accept)
        elif managed.record_state is RunState.QUEUED:
            statements.append(MoveRun(managed.id, RunState.LIVE, managed.epoch, {"started_at": time.time()}))
        if managed.state_delta:
            statements += share(managed.key, managed.state_delta)
        return [*statements, ReadShared(tuple(places(managed.key).values()))]

    def not_opened(self) -> None:
        """Until its turn has come nothing of a message is in the state."""
        merge(self._session.state, self._replaced)

    def opened(self, results: Sequence[Any] | None) -> None:  # Any: a result for each
        self._managed.opened()
        if results:
            self._shared_before = results[-1]
            merge(self._session.state, {n: v for n, v in self._managed.state_delta.items() if n.startswith("temp:")})
            bring(self._session.state, results[-1])

    def ending(self, ended: Ended, state: Mapping[str, Any]) -> Sequence[Statement[Any]]:  # Any: JSON values
        managed, session = self._managed, self._session
        drop_temporary(session.state)
        shared_now = {name: value for name, value in session.state.items() if name.startswith(SHARED)}
        managed.publisher.prepare_end(ended, {**session_part(state), **shared_now})
        state_now = state_after(ended.stop_reason, ended.reason)
        left = {**_left_behind(ended), **_owner_of(state_now)}
        statements: list[Statement[Any]] = [MoveRun(managed.id, state_now, managed.epoch, left)]  # Any: of every result
        if ended.reason is not None:
            statements.append(AddAudit(_stopped(managed, ended, ended.reason)))
        deltas = managed.publisher.state.deltas.items()
        notes = (Note(ended.at, {"event": event, "stateDelta": delta}) for event, delta in deltas)
        statements += [AddNote(managed.key.stored_as, note) for note in notes]
        if self._shared_before is not None and (delta := changed(self._shared_before, session.state)):
            statements += share(managed.key, delta)
        return statements

    def ended(self) -> None:
        self._managed.ended()


def state_after(stop_reason: StopReason, reason: Reason | None) -> RunState:
    """What a run is once it has stopped."""
    if stop_reason is StopReason.INTERRUPTED:
        return RunState.PAUSED
    return RunState.SUSPENDED if reason is not None and reason.source in GOES_ON_LATER else RunState.ENDED


def _owner_of(state: RunState) -> Mapping[str, str]:
    """A suspended run is free from the transaction on that stores its end: no process has to be gone first."""
    return {"owner": FREE} if state is RunState.SUSPENDED else {}


def _stopped(managed: ManagedRun, ended: Ended, reason: Reason) -> AuditEntry:
    """That a run was stopped, whoever asked: written with its end."""
    key, origin = managed.key, str(reason.source)
    asked = {"reason": reason_json(reason)}
    outcome = {"outcome": str(ended.stop_reason), "usage": usage_json(ended.usage)}
    whose = (managed.id, key.app, key.user, key.session)
    return AuditEntry(ended.at, reason.by or origin, "stopped", origin, *whose, asked, outcome)


def _left_behind(ended: Ended) -> Mapping[str, Any]:  # Any: fields of a record
    why: Mapping[str, Any] | None = None if ended.reason is None else reason_json(ended.reason)  # Any: JSON values
    if why is None and ended.error is not None:
        why = {"error": type(ended.error).__name__, "text": str(ended.error)}
    outcome, usage = str(ended.stop_reason), usage_json(ended.usage)
    return {"ended_at": ended.at, "outcome": outcome, "reason": why, "usage": usage}


def share(key: SessionKey, delta: Mapping[str, Any]) -> list[Share]:  # Any: JSON values
    """What others have too, by its place."""
    return [Share(place, part) for place, part in shared(key, delta).items()]

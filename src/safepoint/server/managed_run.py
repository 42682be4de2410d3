"""One run that the server holds for its clients, from the accepted message to the last event.

The run lives in a task of the server's own, never in a request's: whoever comes and goes, it has one life. Its record
is accepted with the beginning of the run, or before that if it has to wait for its turn, and ends with the run.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from safepoint._core.latch import Latch
from safepoint._core.points import Level, SafePoint
from safepoint._core.reasons import Reason
from safepoint._core.receipts import Receipt
from safepoint.agent.result import StopReason
from safepoint.errors import SessionBusy, SessionNotFound, StoreError
from safepoint.history.parts import Prompt
from safepoint.server.disconnect import DisconnectPolicy
from safepoint.server.event_publisher import AnyRun, EventPublisher, before_its_turn, failure
from safepoint.server.feed import Feed
from safepoint.server.state_sync import StateSync, reason_json, state_after
from safepoint.server.wire_events import ABORTED, Abnormal, EventContext, Json, error_frame, usage_json
from safepoint.serving.ids import SessionKey
from safepoint.sessions.dispatch import Delivery, IfBusy, SessionDispatcher
from safepoint.sessions.pending_ends import REFUSED
from safepoint.sessions.session import Session
from safepoint.storage.operations import AcceptRun
from safepoint.storage.run_records import AlreadyAccepted, RecordMoved, RunRecord, RunRegistry, RunState

_log = logging.getLogger("safepoint.server")

_PATIENCE = 10.0
# More events, twice, than a run tells in one process.
_LIFE = 1_000_000
# How the record of a message ends that was not taken: its idempotency key is free, for whoever sends it again.
NOT_TAKEN: Mapping[str, str | None] = {"outcome": "refused", "key": None, "digest": None}


class ManagedRun:
    """A run, its feed, and its record. `admitted` opens when it is clear that the message was taken, or refused.

    `by`: the key that pays for it. `queued`: its record has to become live when its turn comes. `epoch`: of its
    record; above 0 it was picked up from another process, and tells first what was told there. `asks`: receipts, by
    the ids of their asks.
    """

    def __init__(
        self, key: SessionKey, run: AnyRun, prompt: Prompt, event_context: EventContext, *, by: str = "", epoch: int = 0
    ) -> None:
        self.key = key
        self.run = run
        self.prompt = prompt
        self.by = by
        self.disconnect_policy = DisconnectPolicy(self.ask)
        self.feed = Feed(event_context, first_event(epoch), self.disconnect_policy)
        self.queued = False
        self.epoch = epoch
        self.admitted = Latch()
        # Its record is stored, or never will be.
        self.accepted = Latch()
        # Nothing more becomes of a message that was refused; else it is accepted `again`, to wait for its turn.
        self.decided = Latch()
        self.again: ManagedRun | None = None
        # Accepted by an earlier request with the same idempotency key.
        self.twin: RunRecord | None = None
        self._is_stored = False
        self._has_opened = False
        # The beginning of its run is stored, or there is none.
        self.begun = Latch()
        self.publisher = EventPublisher(run, self.feed, self._on_begin, again=epoch > 0)
        self.refused: SessionBusy | SessionNotFound | None = None
        # Its turn could not begin, or another process has it now.
        self.failed: StoreError | None = None
        # The message never became a run, and its record could not be ended yet.
        self.owed = False
        # Its record says how it ended.
        self.is_recorded = False
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
        self.others_over: Callable[[], Awaitable[None]] | None = None
        self._session: Session | None = None
        self._has_turn = False

    @property
    def id(self) -> str:
        return self.run.id

    @property
    def is_accepted(self) -> bool:
        """Is its record stored?"""
        return self._is_stored

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
            return RunState.PAUSED if waits else RunState.ENDED
        # Its record tells whether it will have to wait; once its task has begun, it waits until its turn comes.
        waits = self.queued if self._session is None else not self._has_turn
        return RunState.QUEUED if waits else RunState.LIVE

    @property
    def paused(self) -> bool:
        waited = self.run.ended and self.run.result.stop_reason is StopReason.INTERRUPTED
        return waited and self.run.cleared is None

    @property
    def outcome(self) -> str | None:
        """The fixed word for how it ended; None before that."""
        if self.refused is not None:
            return "refused"
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
        if self.accept is None:
            self.stored()
        if if_busy != "reject":
            self.admitted.set()
        try:
            if self.withdrawn is not None:
                self.run.discard()
                raise asyncio.CancelledError  # asked for before this task had made a step
            await self._let_others_end()
            # The record has ended before the next run of the session begins, so nobody takes that one's work for this.
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
                self.publisher.abnormal(Abnormal(type(self.refused).__name__, str(self.refused)))
            elif sent.delivery is not Delivery.JOINED:
                self.publisher.end(sent.result)
        except SessionBusy as error:
            self.refused = error
        except StoreError as error:
            self.failed = error
            self.publisher.abnormal(Abnormal(type(error).__name__, str(error)))
        except asyncio.CancelledError:
            if self.withdrawn is None:
                raise
            if self.feed.joined is not None:  # in that very moment
                self.delivery, self.withdrawn = Delivery.JOINED, None
                return
            self.publisher.abnormal(before_its_turn(self.withdrawn.text))
        finally:
            stop_listening()
            self._on_begin()
            await self.record_end(runs)
            self.accepted.set()
            self.feed.close(self._error_frame())
            self.over.set()
            self.disconnect_policy.end()

    def stored(self) -> None:
        """Its record is there: a successor finds it."""
        self._is_stored = True
        self.accepted.set()

    def opened(self) -> None:
        """The session has its beginning: its end will be stored there, and that of its record with it."""
        self._has_opened, self.queued = True, False
        self.stored()

    def _on_begin(self) -> None:
        self.begun.set()
        self.admitted.set()

    async def _let_others_end(self) -> None:
        """Cancellation: the run never starts."""
        try:
            if self.others_over is not None:
                await self.others_over()
                self.others_over = None
        except BaseException:
            self.run.discard()
            raise

    async def _begin(self) -> None:
        """Its turn has come. Cancellation: there is nothing to wait for."""
        self._has_turn = True

    async def _record_over(self, runs: RunRegistry) -> None:
        """Cancellation: as of `record_end`."""
        error = self.run.result.error
        if error is None and not self._has_opened:  # it was asked to stop meanwhile
            error = self.run.result.save_error
        if isinstance(error, AlreadyAccepted):
            self.twin = error.record
        elif isinstance(error, SessionBusy) or (isinstance(error, SessionNotFound) and not self.begun.is_set):
            self.refused = error  # another process has a run of it, or has deleted it
        elif isinstance(error, RecordMoved) and not self.begun.is_set:
            self.failed = error
        if self.run.result.save_error is not None:
            await self._store_end()
        if self.run.pause is not None and self.run.pause.clearing is not None:
            # A tool or a hook cancelled it while it closed itself to wait for a person.
            await self.run.pause.clearing.wait()
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
        if not was_cleared and (self.is_recorded or not self._is_stored or (self._has_opened and not self._is_lost)):
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
        left = {"ended_at": time.time(), "outcome": self.outcome, "reason": why, "usage": usage}
        if self.refused is not None:
            left |= NOT_TAKEN
        self.owed = True
        try:
            async with asyncio.timeout(_PATIENCE):
                await runs.move(self.id, state_after(stop_reason, reason), epoch=self.epoch, **left)
        except RecordMoved as moved:
            _log.warning("the end of the run %s is recorded by another process: %s", self.id, moved)
        except (StoreError, TimeoutError):
            _log.exception("the end of the run %s could not be recorded yet", self.id)
            return
        self.owed, self.is_recorded = False, True

    @property
    def _is_lost(self) -> bool:
        """Will the session never have its end? It was deleted, or taken over."""
        error = self.run.result.save_error if self.run.ended else None
        return isinstance(error, REFUSED)

    def _error_frame(self) -> Json | None:
        return None if self.error is None else error_frame(*failure(self.error), time.time())

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
        self.publisher.abnormal(Abnormal(ABORTED, reason.text))
        self.feed.close()

    def ask(self, at: SafePoint, reason: Reason) -> None:
        """Stop it, whatever it does now; for askers that need no receipt."""
        if self.state is RunState.QUEUED:
            self.withdraw(reason)
        elif self.state is RunState.LIVE:
            self.run.node.cancel(at, recursive=True, reason=reason)


def first_event(epoch: int) -> int:
    """The number before the first event of a run that was taken over so often."""
    return epoch * _LIFE


def first_stored(epoch: int) -> int:
    """As `first_event`, where its events are told as they are stored."""
    return epoch * _LIFE + _LIFE // 2

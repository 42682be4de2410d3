"""One run that the server holds for its clients, from the accepted message to the last event.

The run lives in a task of the server's own, never in a request's. What is told comes from the journal: an event is
sent after it is stored, and in the form in which it is stored. Words under way are told in between.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

from safepoint._core.asks import Ask
from safepoint._core.latch import Latch
from safepoint._core.points import SafePoint
from safepoint._core.reasons import Reason, Source
from safepoint.agent.events import Event, ModelCallStarted, ReasoningStreamed, TextStreamed
from safepoint.agent.journal import Ended, Fact, Opened, Said
from safepoint.agent.ledger import LedgerEntry
from safepoint.agent.result import RunResult, StopReason
from safepoint.agent.run import Run
from safepoint.errors import SessionBusy, StoreError
from safepoint.history.parts import Message, Prompt
from safepoint.server.feed import Feed
from safepoint.server.ids import SessionKey
from safepoint.server.requests import OnDisconnect
from safepoint.server.wire_events import (
    ABORTED,
    Abnormal,
    Json,
    Scene,
    abnormal_event,
    empty_event,
    message_event,
    notices,
    with_usage,
)
from safepoint.sessions.busy import Delivery, IfBusy, Sender
from safepoint.sessions.records import RunBook, RunState

_log = logging.getLogger("safepoint.server")

_PATIENCE = 10.0

AnyRun: TypeAlias = Run[Any, Any]  # Any: runs of every agent


class HostedRun:
    """A run, its feed, and its record. `admitted` opens when it is clear that the message was taken, or refused.

    `by`: the key that pays for it. `queued`: its record says so. `epoch`: of its record.
    """

    def __init__(self, key: SessionKey, run: AnyRun, prompt: Prompt, scene: Scene, by: str = "") -> None:
        self.key = key
        self.run = run
        self.prompt = prompt
        self.by = by
        self.feed = Feed(scene, self._watched)
        self.on_disconnect: OnDisconnect = "cancel"
        self.queued = False
        self.epoch = 0
        self.admitted = Latch()
        self.refused: SessionBusy | None = None
        self.delivery: Delivery | None = None
        # Asked to stop while it was waiting for its turn: then there is no run to ask.
        self.withdrawn: Reason | None = None
        self.over = Latch()
        self.task: asyncio.Task[None] | None = None
        self._said: dict[int, Message] = {}
        self._place = 0
        self._mine = False
        # Stops it if nobody comes back in time.
        self._alone: asyncio.TimerHandle | None = None

    @property
    def id(self) -> str:
        return self.run.id

    @property
    def live(self) -> bool:
        """Is there anything that could be stopped? Not of a message that has joined another run."""
        return not self.over.is_set and self.feed.joined is None

    @property
    def state(self) -> RunState:
        if not self.live:
            return RunState.PAUSED if self.paused else RunState.ENDED
        return RunState.LIVE if self.run.node.started else RunState.QUEUED

    @property
    def paused(self) -> bool:
        return self.run.ended and self.run.result.stop_reason is StopReason.INTERRUPTED

    @property
    def outcome(self) -> str | None:
        """The fixed word for how it ended; None before that."""
        if self.refused is not None:
            return "refused"
        if self.delivery is Delivery.JOINED:
            return "joined"
        if self.withdrawn is not None:
            return str(StopReason.CANCELLED)
        return str(self.run.result.stop_reason) if self.run.ended else None

    @property
    def reason(self) -> Reason | None:
        """Why it was stopped, if it was."""
        if self.withdrawn is not None:
            return self.withdrawn
        cancellation = self.run.result.cancellation if self.run.ended else None
        return cancellation.reason if cancellation is not None else None

    # -- its life ------------------------------------------------------------------------------------------------------

    async def serve(self, sender: Sender, if_busy: IfBusy, book: RunBook, joined: Callable[[AnyRun], object]) -> None:
        """From the queue to the last event, as the body of a task of the server.

        Cancellation: a run that waits for its turn is withdrawn; a live one is stopped NOW.
        """
        stop_listening = sender.session.listen(self._take)
        self.run.hub.listen(self._overhear)
        if if_busy != "reject":
            self.admitted.set()
        on_turn = partial(self._begin, book)
        try:
            sent = await sender.deliver(self.run, self.prompt, if_busy=if_busy, on_turn=on_turn, on_joined=joined)
            self.delivery = sent.delivery
            self._tell_end(sent.result)
        except SessionBusy as error:
            self.refused = error
        except asyncio.CancelledError:
            if self.withdrawn is None:
                raise
            self._tell_withdrawal(self.withdrawn)
        finally:
            stop_listening()
            self.admitted.set()
            await self._record_end(book)
            self.feed.close(self._error_frame())
            self.over.set()
            self._watched(True)  # over is over: the timer must not hold it

    async def _begin(self, book: RunBook) -> None:
        """Cancellation: the record says that it is queued, and the run does not start."""
        if self.queued:
            await book.move(self.id, RunState.LIVE, epoch=self.epoch, started_at=time.time())
            self.queued = False

    async def _record_end(self, book: RunBook) -> None:
        """Bounded. Cancellation: the record stays open, and the next start settles it."""
        state, reason = RunState.ENDED, self.reason
        if self.paused:
            state = RunState.PAUSED
        elif reason is not None and reason.source is Source.SHUTDOWN:
            state = RunState.SUSPENDED
        why, now = None if reason is None else reason_json(reason), time.time()
        try:
            async with asyncio.timeout(_PATIENCE):
                await book.move(self.id, state, epoch=self.epoch, ended_at=now, outcome=self.outcome, reason=why)
        except (StoreError, TimeoutError):
            _log.exception("the end of the run %s could not be recorded", self.id)

    # -- asking --------------------------------------------------------------------------------------------------------

    def withdraw(self, reason: Reason) -> None:
        """Take it out of the queue. Only for a run that has not started."""
        self.withdrawn = self.withdrawn or reason
        if self.task is not None:
            self.task.cancel()

    def ask(self, at: SafePoint, reason: Reason) -> None:
        """Stop it, whatever it does now; for askers that need no receipt."""
        if self.state is RunState.QUEUED:
            self.withdraw(reason)
        elif self.state is RunState.LIVE:
            self.run.cancel(at, recursive=True, reason=reason)

    def _watched(self, watched: bool) -> None:
        """Somebody watches, or the last viewer has gone: then its policy decides."""
        if self._alone is not None:
            self._alone.cancel()
            self._alone = None
        policy, reason = self.on_disconnect, Reason("its client went away", Source.DISCONNECT)
        if watched or not self.live or policy == "detach":
            return
        if policy == "cancel":
            self.ask(SafePoint.NOW, reason)
        else:
            loop = asyncio.get_running_loop()
            self._alone = loop.call_later(policy.cancel_after, self.ask, SafePoint.NOW, reason)

    # -- telling -------------------------------------------------------------------------------------------------------

    def _take(self, facts: tuple[Fact, ...]) -> None:
        for fact in facts:
            match fact:
                case Opened(run_id=run_id) if run_id == self.id:
                    self._mine = True
                    self._said = dict(enumerate(fact.messages, fact.index))
                    self._place = fact.index + len(fact.messages)
                    self.admitted.set()
                case Said(index, message, at) if self._mine:
                    self._say(index, message, at)
                case Ended() if self._mine and fact.run_id == self.id:
                    self._mine = False
                    self._say_last(fact)
                case _:
                    pass

    def _say(self, place: int, message: Message, at: float) -> None:
        if self._said.get(place) != message:
            self._said[place] = message
            self._place = place + 1
            self.feed.say(place, message_event(self.feed.scene, place, message, at))

    def _say_last(self, ended: Ended) -> None:
        """What the end adds, the last of it with how the run ended."""
        questions = tuple(call_of(question.id) for question in _questions(ended))
        for place, message in list(enumerate(ended.messages, ended.index))[:-1]:
            self._say(place, message, ended.at)
        place, message = ended.index + len(ended.messages) - 1, ended.messages[-1]
        event = message_event(self.feed.scene, place, message, ended.at, questions=questions)
        abnormal = abnormal_end(ended.stop_reason, message, ended.ledger)
        if abnormal is not None:
            event = abnormal_event(event, abnormal)
        self._said[place] = message
        self.feed.say(place, with_usage(event, ended.usage), last=True)

    def _overhear(self, event: Event) -> None:
        if event.run_id != self.id:
            return
        if isinstance(event, ModelCallStarted):
            self._catch_up()
            self.feed.begin()
        elif isinstance(event, TextStreamed | ReasoningStreamed):
            thought = isinstance(event, ReasoningStreamed)
            self.feed.whisper(self._place, event.text, time.time(), thought=thought)

    def _catch_up(self) -> None:
        """Results go into the conversation with the next message, and are durable before that, each by itself: so they
        are told before the words that answer them.
        """
        record = self.run.record
        if record is not None and self._mine:
            for place in range(self._place, len(record.messages)):
                self._say(place, record.messages[place], time.time())

    def _tell_end(self, result: RunResult[Any]) -> None:  # Any: of every output type
        """If its end could not be stored, it is told all the same."""
        if self.delivery is Delivery.JOINED or (not self._mine and self.feed.whole):
            return
        if self._mine or not self.feed.whole:
            self._mine = False
            why = str(result.save_error or result.error or result.stop_reason)
            code = ABORTED if result.cancellation is not None else type(result.error).__name__
            event = empty_event(self.feed.scene, self._place, time.time())
            self.feed.say(self._place, abnormal_event(event, Abnormal(code, why, result.ledger)), last=True)

    def _tell_withdrawal(self, reason: Reason) -> None:
        event = empty_event(self.feed.scene, 0, time.time())
        why = Abnormal(ABORTED, f"It was stopped before its turn came: {reason.text}")
        self.feed.say(0, abnormal_event(event, why), last=True)

    def _error_frame(self) -> Json | None:
        """ADK's own last frame after a failure."""
        error = self.run.result.error if self.run.ended and self.withdrawn is None else None
        if error is None:
            return None
        kind, text = type(error).__name__, str(error)
        details = {"error_type": kind, "error_message": text, "timestamp": time.time()}
        return {"error": f"{kind}: {text}", "error_details": details}


def abnormal_end(stop_reason: str, last: Message, ledger: tuple[LedgerEntry, ...]) -> Abnormal | None:
    """How a run that has no answer ended, in words for its last event; None for an answer or a question."""
    if stop_reason in (StopReason.END_TURN, StopReason.INTERRUPTED):
        return None
    code = ABORTED if stop_reason == StopReason.CANCELLED else str(stop_reason).upper()
    return Abnormal(code, notices(last) or str(stop_reason), ledger)


def reason_json(reason: Reason) -> dict[str, str | None]:
    return {"text": reason.text, "source": str(reason.source), "by": reason.by}


def ask_json(ask: Ask) -> Mapping[str, Any]:  # Any: JSON
    return {"id": ask.id, "at": sorted(ask.at.places), "reason": reason_json(ask.reason), "askedAt": ask.asked_at}


def call_of(question_id: str) -> str:
    """The id of the call, of the run itself, in which a question was asked."""
    outer, slash, _ = question_id.partition("/")
    return outer if slash else outer.rpartition(":")[0]


def _questions(ended: Ended) -> tuple[Any, ...]:  # Any: Question
    return ended.checkpoint.questions if ended.checkpoint is not None else ()

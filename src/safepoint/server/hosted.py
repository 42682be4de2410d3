"""One run that the server holds for its clients, from the accepted message to the last event.

The run lives in a task of the server's own, never in a request's. What is told comes from the journal: an event is
sent after it is stored, and in the form in which it is stored. Words under way are told in between.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias

from safepoint._core.latch import Latch
from safepoint._core.points import Level, SafePoint
from safepoint._core.reasons import Reason, Source
from safepoint._core.receipts import Receipt
from safepoint.agent.checkpoint import Question
from safepoint.agent.events import Event, ModelCallEnded, ModelCallStarted, ReasoningStreamed, TextStreamed
from safepoint.agent.journal import Ended, Fact, Opened, Said
from safepoint.agent.ledger import LedgerEntry
from safepoint.agent.result import RunResult, StopReason
from safepoint.agent.run import Run
from safepoint.errors import SessionBusy, StoreError
from safepoint.history.parts import Message, Prompt
from safepoint.server.feed import Feed
from safepoint.server.ids import SessionKey
from safepoint.server.leaving import Leaving
from safepoint.server.state_told import StateTold
from safepoint.server.wire_events import (
    ABORTED,
    Abnormal,
    Json,
    Scene,
    abnormal_event,
    asking_event,
    empty_event,
    error_frame,
    message_event,
    notices,
    usage_json,
    with_usage,
)
from safepoint.sessions.busy import Delivery, IfBusy, Sender
from safepoint.sessions.records import RecordMoved, RunBook, RunState
from safepoint.sessions.session import Session

_log = logging.getLogger("safepoint.server")

_PATIENCE = 10.0
# More events than a run tells in one process.
_LIFE = 1_000_000

AnyRun: TypeAlias = Run[Any, Any]  # Any: runs of every agent


class HostedRun:
    """A run, its feed, and its record. `admitted` opens when it is clear that the message was taken, or refused.

    `by`: the key that pays for it. `queued`: its record has to become live when its turn comes. `epoch`: of its
    record; above 0 it was picked up from another process, and tells first what was told there. `asks`: receipts, by
    the ids of their asks.
    """

    def __init__(
        self, key: SessionKey, run: AnyRun, prompt: Prompt, scene: Scene, *, by: str = "", epoch: int = 0
    ) -> None:
        self.key = key
        self.run = run
        self.prompt = prompt
        self.by = by
        self.leaving = Leaving(self.ask)
        self.feed = Feed(scene, first_event(epoch), self.leaving)
        self.queued = False
        self.epoch = epoch
        self.admitted = Latch()
        self.refused: SessionBusy | None = None
        # Its turn could not begin, or another process has it now.
        self.failed: StoreError | None = None
        # How it ended is known and could not be recorded yet.
        self.owed = False
        self._recorded = False
        self.delivery: Delivery | None = None
        # Asked to stop while it was waiting for its turn: then there is no run to ask.
        self.withdrawn: Reason | None = None
        self.accepted_at = time.time()
        self.over = Latch()
        self.task: asyncio.Task[None] | None = None
        self.asks: dict[str, Receipt] = {}
        # What came with the message, what sessions shared when its turn came, and who brings and keeps that.
        self.state_delta: Mapping[str, Any] = {}  # Any: JSON values
        self.shared_before: Mapping[str, Any] | None = None  # Any: as above
        self.state_told = StateTold()
        self.bring_state: Callable[[], Awaitable[None]] | None = None
        self.keep_state: Callable[[], Awaitable[None]] | None = None
        # Runs of its session in other processes come before it.
        self.others_over: Callable[[], Awaitable[None]] | None = None
        self._session: Session | None = None
        self._has_turn = False
        self._said: dict[int, Message] = {}
        # The last event of a run that failed, until it is known what the failure was.
        self._last: tuple[int, Json] | None = None
        self._place = 0
        self._index = 0
        self._mine = False

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
            runs = self._session.runs if self._session is not None else ()
            waits = self.paused and bool(runs) and runs[-1].run_id == self.id  # and no later message came
            return RunState.PAUSED if waits else RunState.ENDED
        # Its record tells whether it will have to wait; once its task has begun, it waits until its turn comes.
        waits = self.queued if self._session is None else not self._has_turn
        return RunState.QUEUED if waits else RunState.LIVE

    @property
    def paused(self) -> bool:
        return self.run.ended and self.run.result.stop_reason is StopReason.INTERRUPTED

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
        return str(self.run.result.stop_reason) if self.run.ended else None

    @property
    def reason(self) -> Reason | None:
        """Why it was stopped, if it was."""
        if self.withdrawn is not None:
            return self.withdrawn
        cancellation = self.run.result.cancellation if self.run.ended else None
        return cancellation.reason if cancellation is not None else None

    @property
    def error(self) -> BaseException | None:
        """Why it failed, if it did."""
        return self.run.result.error if self.run.ended and self.withdrawn is None else None

    # -- its life ------------------------------------------------------------------------------------------------------

    async def serve(self, sender: Sender, if_busy: IfBusy, book: RunBook, joined: Callable[[AnyRun], object]) -> None:
        """From the queue to the last event, as the body of a task of the server.

        Cancellation: a run that waits for its turn is withdrawn; a live one is stopped NOW.
        """
        self._session = sender.session
        stop_listening = sender.session.listen(self._take)
        self.run.hub.listen(self._overhear)
        if if_busy != "reject":
            self.admitted.set()
        # The record has ended before the next run of the session begins, so nobody can take that one's work for this.
        on_turn, on_over = partial(self._begin, book), partial(self._record_over, book)
        try:
            if self.withdrawn is not None:
                self.run.discard()
                raise asyncio.CancelledError  # asked for before this task had made a step
            await self._let_others_end()
            sent = await sender.deliver(
                self.run, self.prompt, if_busy=if_busy, on_turn=on_turn, on_over=on_over, on_joined=joined
            )
            self.delivery = sent.delivery
            if self.refused is None:
                self._tell_end(sent.result)
            else:
                self._tell_abnormal(Abnormal(type(self.refused).__name__, str(self.refused)))
        except SessionBusy as error:
            self.refused = error
        except StoreError as error:
            self.failed = error
            self._tell_abnormal(Abnormal(type(error).__name__, str(error)))
        except asyncio.CancelledError:
            if self.withdrawn is None:
                raise
            if self.feed.joined is not None:  # in that very moment
                self.delivery, self.withdrawn = Delivery.JOINED, None
                return
            self._tell_abnormal(before_its_turn(self.withdrawn.text))
        finally:
            stop_listening()
            self.admitted.set()
            if not self._recorded:
                await self.record_end(book)
            self.feed.close(self._error_frame())
            self.over.set()
            self.leaving.end()

    async def _let_others_end(self) -> None:
        """Cancellation: the run never starts."""
        try:
            if self.others_over is not None:
                await self.others_over()
        except BaseException:
            self.run.discard()
            raise

    async def _begin(self, book: RunBook) -> None:
        """Cancellation: the record says that it is queued, and the run does not start."""
        self._has_turn = True
        if self.queued:
            await book.move(self.id, RunState.LIVE, epoch=self.epoch, started_at=time.time())
            self.queued = False
        if self.bring_state is not None:
            await self.bring_state()

    async def _leave_state(self) -> None:
        """The run is over whether or not this can be stored. Cancellation: not all of it may be."""
        if self.keep_state is not None:
            try:
                await self.keep_state()
            except StoreError:
                _log.exception("what the run %s did to shared values could not be stored", self.id)

    async def _record_over(self, book: RunBook) -> None:
        """Cancellation: as of `record_end`."""
        error = self.run.result.error
        if isinstance(error, SessionBusy):  # of a run in another process
            self.refused = error
        if self.run.result.save_error is not None:
            await self._look_again()
        await self._leave_state()
        await self.record_end(book)

    async def _look_again(self) -> None:
        """A run that was forced did not wait for its end to be stored, but it may well be. Bounded.

        Cancellation: the session finds out when it is used next.
        """
        assert self._session is not None
        with suppress(StoreError, TimeoutError):
            async with asyncio.timeout(_PATIENCE):
                await self._session.save_state()

    async def record_end(self, book: RunBook) -> None:
        """Bounded; what fails is owed, and tried again. Cancellation: likewise, by the next start at the latest."""
        self._recorded = True
        if isinstance(self.failed, RecordMoved) or (self.refused is not None and self.epoch):
            return  # it is another's by now; or it was picked up too early, and its turn is still to come
        state, reason = RunState.ENDED, self.reason
        if self.paused:
            state = RunState.PAUSED
        elif reason is not None and reason.source is Source.SHUTDOWN:
            state = RunState.SUSPENDED
        why = None if reason is None else reason_json(reason)
        error, usage = self.error, usage_json(self.run.result.usage) if self.run.ended else None
        if error is not None and why is None:
            why = {"error": type(error).__name__, "text": str(error)}
        left = {"ended_at": time.time(), "outcome": self.outcome, "reason": why, "usage": usage}
        self.owed = True
        try:
            async with asyncio.timeout(_PATIENCE):
                await book.move(self.id, state, epoch=self.epoch, **left)
        except RecordMoved as moved:
            _log.warning("the end of the run %s is recorded by another process: %s", self.id, moved)
        except (StoreError, TimeoutError):
            _log.exception("the end of the run %s could not be recorded yet", self.id)
            return
        self.owed = False

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
        self._tell_abnormal(Abnormal(ABORTED, reason.text))
        self.feed.close()

    def ask(self, at: SafePoint, reason: Reason) -> None:
        """Stop it, whatever it does now; for askers that need no receipt."""
        if self.state is RunState.QUEUED:
            self.withdraw(reason)
        elif self.state is RunState.LIVE:
            self.run.cancel(at, recursive=True, reason=reason)

    # -- telling -------------------------------------------------------------------------------------------------------

    def _take(self, facts: tuple[Fact, ...]) -> None:
        for fact in facts:
            match fact:
                case Opened(run_id=run_id) if run_id == self.id:
                    self._mine = True
                    self.state_told.begin(self._stored_state)
                    self._index = fact.index
                    self._said = dict(enumerate(fact.messages, fact.index))
                    self._place = fact.index + len(fact.messages)
                    if self.epoch:
                        self._tell_again(fact)
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
            self.feed.say(place, self._with_state(message_event(self.feed.scene, place, message, at)))

    def _with_state(self, event: Json) -> Json:
        return self.state_told.on(event, self._stored_state)

    @property
    def _stored_state(self) -> Mapping[str, Any]:  # Any: JSON values
        assert self._session is not None
        return self._session.stored_state

    def _say_last(self, ended: Ended) -> None:
        """What the end adds, the last of it with how the run ended."""
        scene, asked = self.feed.scene, _questions(ended)
        spoken = list(enumerate(scene.spoken(ended.messages), ended.index))
        calls = [call.id for message in ended.messages for call in message.tool_calls]
        for place, (speaker, message) in spoken:
            event = self._with_state(message_event(speaker, place, message, ended.at, questions=asked))
            if place == spoken[-1][0]:
                self._said[place] = message
                self._tell_last(place, asking_event(event, asked, calls) if asked else event, message, ended)
            elif self._said.get(place) != message or event.get("longRunningToolIds"):
                self._said[place] = message
                self.feed.say(place, event)

    def _tell_last(self, place: int, event: Json, message: Message, ended: Ended) -> None:
        abnormal = abnormal_end(ended.stop_reason, message, ended.ledger)
        if abnormal is not None:
            event = abnormal_event(event, abnormal)
        event = with_usage(event, usage_json(ended.usage))
        if ended.stop_reason is StopReason.ERROR:
            self._last = (place, event)
        else:
            self.feed.say(place, event, last=True)

    def _overhear(self, event: Event) -> None:
        """The words of the run itself, or of a child that speaks for it, as they come."""
        if event.run_id not in self.run.hub.speakers:
            return
        if isinstance(event, ModelCallStarted):
            if event.run_id == self.id:
                self._tell_results()
            self.feed.begin()  # words of an attempt that failed are no part of the next
        elif isinstance(event, TextStreamed | ReasoningStreamed):
            thought, voice = isinstance(event, ReasoningStreamed), self._voice(event)
            self.feed.whisper(self._place, event.text, time.time(), thought=thought, voice=voice)
        elif isinstance(event, ModelCallEnded) and self.feed.scene.voice is not None:
            # The children's messages are the conversation itself: a reply with calls, and then their results.
            self._place += 2 if event.message is not None and event.message.tool_calls else 0

    def _tell_results(self) -> None:
        """The results of calls are stored one by one; the message they make is stored with the next reply.

        It is told before that reply's first words, which would have its place otherwise.
        """
        record, now = self.run.record, time.time()
        messages = record.messages if record is not None and self._mine else []
        for place in range(self._place, len(messages)):
            self._say(place, messages[place], now)

    def _voice(self, event: Event) -> str | None:
        """Who speaks, where agents hand one conversation on: their node is named after them, with a number."""
        if self.feed.scene.voice is None:
            return None
        below = event.path.removeprefix(f"{self.run.node.path}/").partition("/")[0]
        return below.rpartition("#")[0] or None

    def _tell_end(self, result: RunResult[Any]) -> None:  # Any: of every output type
        """What a failure was is known only now. If the end could not be stored, it is told all the same."""
        if self.delivery is Delivery.JOINED:
            return
        if self._mine:
            self._mine = False
            self._say_last(_end_of(result, self._index))
        if self._last is not None:
            place, event = self._last
            code, text = failure(result.error)
            self.feed.say(place, {**event, "errorCode": code, "errorMessage": text}, last=True)
        elif not self.feed.whole:
            code, why = failure(result.save_error or result.error)
            code = ABORTED if result.cancellation is not None else code
            self._tell_abnormal(Abnormal(code, why, result.ledger))

    def _tell_again(self, opened: Opened) -> None:
        """What the process before has told of this run, but for the message that it answers."""
        assert self._session is not None
        for place, message in list(self._said.items())[opened.messages[0].role == "user" :]:
            self.feed.say(place, message_event(self.feed.scene, place, message, self._session.times[place]))

    def _tell_abnormal(self, abnormal: Abnormal) -> None:
        """The end of a run that had no turn, or whose end could not be stored."""
        event = empty_event(self.feed.scene, self._place, time.time())
        self.feed.say(self._place, abnormal_event(event, abnormal), last=True)

    def _error_frame(self) -> Json | None:
        return None if self.error is None else error_frame(*failure(self.error), time.time())


def _end_of(result: RunResult[Any], index: int) -> Ended:  # Any: of every output type
    """The fact that nobody heard of, because it was not waited for."""
    own, ledger, usage = tuple(result.messages[index:]), result.ledger, result.usage
    return Ended(result.run_id, result.stop_reason, index, own, ledger, usage, result.checkpoint, time.time())


def failure(error: BaseException | None) -> tuple[str, str]:
    """What failed, in ADK's two fields."""
    return ("ERROR", "no error is known") if error is None else (type(error).__name__, str(error))


def before_its_turn(why: str) -> Abnormal:
    return Abnormal(ABORTED, f"It was stopped before its turn came: {why}")


def abnormal_end(stop_reason: str, last: Message, ledger: tuple[LedgerEntry, ...]) -> Abnormal | None:
    """How a run that has no answer ended, in words for its last event; None for an answer or a question."""
    if stop_reason in (StopReason.END_TURN, StopReason.INTERRUPTED):
        return None
    code = ABORTED if stop_reason == StopReason.CANCELLED else str(stop_reason).upper()
    return Abnormal(code, notices(last) or str(stop_reason), ledger)


def first_event(epoch: int) -> int:
    """The number before the first event of a run that was taken over so often."""
    return epoch * _LIFE


def reason_json(reason: Reason) -> dict[str, str | None]:
    return {"text": reason.text, "source": str(reason.source), "by": reason.by}


def _questions(ended: Ended) -> tuple[Question, ...]:
    return ended.checkpoint.questions if ended.checkpoint is not None else ()

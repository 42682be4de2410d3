"""What a run of the server tells those who watch it.

An event is told after it is stored, and in the form in which it is stored: it is made from the facts that the session
has written. Words under way are told in between, as they come.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any, TypeAlias

from safepoint.agent.checkpoint import Question
from safepoint.agent.events import (
    Event,
    ModelCallEnded,
    ModelCallStarted,
    ReasoningStreamed,
    TextStreamed,
    ToolCallEnded,
    ToolCallStarted,
    ToolOutputStreamed,
)
from safepoint.agent.journal import Ended, Fact, Opened, Said
from safepoint.agent.ledger import LedgerEntry
from safepoint.agent.result import RunResult, StopReason
from safepoint.agent.run import Run
from safepoint.history.parts import Message
from safepoint.server.feed import Feed
from safepoint.server.state_delta import StateDeltas
from safepoint.server.tool_output import Told
from safepoint.server.wire_events import (
    ABORTED,
    Abnormal,
    Json,
    abnormal_event,
    asking_event,
    empty_event,
    message_event,
    notices,
    usage_json,
    with_usage,
)
from safepoint.serving.shared_state import SHARED, own
from safepoint.sessions.session import Session

AnyRun: TypeAlias = Run[Any, Any]  # Any: runs of every agent

_WORDS = (TextStreamed, ReasoningStreamed)


class EventPublisher:
    """Of one run, to its feed. `again`: the process before has told the beginning, so that comes first.

    `on_begin` is called when the run's beginning is stored. `state`: what the run did to the session's state.
    """

    def __init__(self, run: AnyRun, feed: Feed, on_begin: Callable[[], object], *, again: bool) -> None:
        self.state = StateDeltas()
        self._run = run
        self._feed = feed
        self._on_begin = on_begin
        self._again = again
        self._session: Session | None = None
        # Between the run's beginning and its end the session's facts are about it.
        self._mine = False
        self._index = 0
        self._place = 0
        self._said: dict[int, Message] = {}
        # The names of the tools that run, by run and call.
        self._tools: dict[tuple[str, str], str] = {}
        # The last event of a run that failed, until it is known what the failure was.
        self._last: tuple[int, Json] | None = None
        self._prepared: list[tuple[int, Json]] | None = None

    def listen(self, session: Session) -> Callable[[], object]:
        """Tell from now on what the session stores and what the run says. Returns what ends that."""
        self._session = session
        self._run.hub.listen(self._overhear)
        return session.listen(self._take)

    def end(self, result: RunResult[Any]) -> None:  # Any: of every output type
        """What a failure was is known only now. If the end could not be stored, it is told all the same."""
        if self._mine:
            self._mine = False
            self._say_last(Ended.of(result, self._index, time.time()))
        if self._last is not None:
            place, event = self._last
            code, text = failure(result.error)
            self._feed.append(place, {**event, "errorCode": code, "errorMessage": text}, last=True)
        elif not self._feed.whole:
            code, why = failure(result.save_error or result.error)
            code = ABORTED if result.cancellation is not None else code
            self.abnormal(Abnormal(code, why, result.ledger))

    def prepare_end(self, ended: Ended, state: Mapping[str, Any]) -> None:  # Any: JSON values
        """Make what the end will tell, before it is stored: what it says of the state is stored with it."""
        self._prepared = self._end_events(ended, state)

    def abnormal(self, abnormal: Abnormal) -> None:
        """The end of a run that had no turn, or whose end could not be stored."""
        event = empty_event(self._feed.event_context, self._place, time.time())
        self._feed.append(self._place, abnormal_event(event, abnormal), last=True)

    def _take(self, facts: tuple[Fact, ...]) -> None:
        for fact in facts:
            match fact:
                case Opened(run_id=run_id) if run_id == self._run.id:
                    self._mine = True
                    self.state.begin(self._state_now)
                    self._index = fact.index
                    self._said = dict(enumerate(fact.messages, fact.index))
                    self._place = fact.index + len(fact.messages)
                    if self._again:
                        self._tell_again(fact)
                    self._on_begin()
                case Said(index, message, at) if self._mine:
                    self._say(index, message, at)
                case Ended() if self._mine and fact.run_id == self._run.id:
                    self._mine = False
                    self._say_last(fact)
                case _:
                    pass

    def _say(self, place: int, message: Message, at: float) -> None:
        if self._said.get(place) != message:
            self._said[place] = message
            self._place = place + 1
            event = message_event(self._feed.event_context, place, message, at)
            self._feed.append(place, self.state.on(event, self._state_now))

    @property
    def _state_now(self) -> Mapping[str, Any]:  # Any: JSON values
        """As it is stored, and what is shared as the run has it: that is stored with the end."""
        session = self._session
        assert session is not None
        shared = {name: value for name, value in session.state.items() if name.startswith(SHARED)}
        stored = session.stored_state
        if not shared and not any(name.startswith(SHARED) for name in stored):
            return stored  # the same object for as long as nobody has changed it
        return {**own(stored), **deepcopy(shared)}

    def _say_last(self, ended: Ended) -> None:
        """What the end adds, the last of it with how the run ended."""
        prepared, self._prepared = self._prepared, None
        events = prepared if prepared is not None else self._end_events(ended, self._state_now)
        for place, event in events[:-1]:
            self._feed.append(place, event)
        for place, event in events[-1:]:
            self._tell_last(place, event, ended)

    def _end_events(self, ended: Ended, state: Mapping[str, Any]) -> list[tuple[int, Json]]:  # Any: JSON values
        event_context, asked = self._feed.event_context, _questions(ended)
        spoken = list(enumerate(event_context.spoken(ended.messages), ended.index))
        calls = [call.id for message in ended.messages for call in message.tool_calls]
        events: list[tuple[int, Json]] = []
        for place, (speaker, message) in spoken:
            is_last, is_told = place == spoken[-1][0], self._said.get(place) == message
            if is_told and not is_last and not (asked and message.tool_calls):
                continue
            event = message_event(speaker, place, message, ended.at, questions=asked)
            self._said[place] = message
            if is_last:
                event = self.state.on(event, state)
                event = asking_event(event, asked, calls) if asked else event
                abnormal = abnormal_end(ended.stop_reason, message, ended.ledger)
                event = event if abnormal is None else abnormal_event(event, abnormal)
                events.append((place, with_usage(event, usage_json(ended.usage))))
            elif not is_told or event["longRunningToolIds"]:
                events.append((place, self.state.on(event, state)))
        return events

    def _tell_last(self, place: int, event: Json, ended: Ended) -> None:
        if ended.stop_reason is StopReason.ERROR:
            self._last = (place, event)
        else:
            self._feed.append(place, event, last=True)

    def _overhear(self, event: Event) -> None:
        """The words of the run itself, or of a child that speaks for it, and what tools tell, as they come."""
        match event:
            case ToolCallStarted(run_id=run_id, call=call):
                self._tools[run_id, call.id] = call.name
            case ToolOutputStreamed():
                self._tell_output(event)
            case ToolCallEnded(run_id=run_id, entry=entry):
                self._tools.pop((run_id, entry.call_id), None)
            case _:
                self._overhear_words(event)

    def _tell_output(self, event: ToolOutputStreamed) -> None:
        """Also of tools inside: then the path says where."""
        inside = event.run_id not in self._run.hub.speakers
        # Where agents hand one conversation on, the place is past the results as soon as the calls are known.
        place, name = (
            self._place - (self._feed.event_context.voice is not None),
            self._tools.get((event.run_id, event.call_id)),
        )
        told = Told(place, event.call_id, name or "", self._voice(event), event.path if inside else None)
        self._feed.tell_output(told, event.text, time.time())

    def _overhear_words(self, event: Event) -> None:
        if event.run_id not in self._run.hub.speakers:
            return
        if isinstance(event, ModelCallStarted):
            if event.run_id == self._run.id:
                self._tell_results()
            self._feed.begin()  # words of an attempt that failed are no part of the next
        elif isinstance(event, _WORDS):
            thought, voice = isinstance(event, ReasoningStreamed), self._voice(event)
            self._feed.append_partial(self._place, event.text, time.time(), thought=thought, voice=voice)
        elif isinstance(event, ModelCallEnded) and self._feed.event_context.voice is not None:
            # The children's messages are the conversation itself: a reply with calls, and then their results.
            self._place += 2 if event.message is not None and event.message.tool_calls else 0

    def _tell_results(self) -> None:
        """The results of calls are stored one by one; the message they make is stored with the next reply.

        It is told before that reply's first words, which would have its place otherwise.
        """
        record, now = self._run.record, time.time()
        messages = record.messages if record is not None and self._mine else []
        for place in range(self._place, len(messages)):
            self._say(place, messages[place], now)

    def _voice(self, event: Event) -> str | None:
        """Who speaks, where agents hand one conversation on: their node is named after them, with a number."""
        if self._feed.event_context.voice is None:
            return None
        below = event.path.removeprefix(f"{self._run.node.path}/").partition("/")[0]
        return below.rpartition("#")[0] or None

    def _tell_again(self, opened: Opened) -> None:
        """What the process before has told of this run, but for the message that it answers."""
        assert self._session is not None
        spoken = zip(self._said, self._feed.event_context.spoken(self._said.values()), strict=True)
        for place, (speaker, message) in list(spoken)[opened.messages[0].role == "user" :]:
            self._feed.append(place, message_event(speaker, place, message, self._session.times[place]))


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


def _questions(ended: Ended) -> tuple[Question, ...]:
    return ended.checkpoint.questions if ended.checkpoint is not None else ()

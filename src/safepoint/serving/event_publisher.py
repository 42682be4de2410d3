"""Publishes one run to its feed: turns what the run stores and streams into the events of `serving.events`.

A whole event is published after it is stored, and in the form in which it is stored: it is made from the facts that
the session has written. Text under way is published in between, as it comes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from typing import Any, TypeAlias

from msgspec.structs import replace

from safepoint.agent.events import (
    CancelRequested,
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
from safepoint.agent.result import RunResult, StopReason
from safepoint.agent.run import Run
from safepoint.history.parts import Message
from safepoint.serving.events import Failure, MessageEvent, PartialText, RunEnd, ToolOutput, waiting_calls
from safepoint.serving.feed import Feed
from safepoint.serving.shared_state import SHARED, difference, plain, session_part
from safepoint.sessions.session import Session

AnyRun: TypeAlias = Run[Any, Any]  # Any: runs of every agent


class StateDeltas:
    """What one run does to the state of its session. `deltas`: by the id of the event that tells it.

    The state is stored with the facts of the run, and is the same object until it is changed: a run that leaves it
    alone costs nothing here. The next event tells a change, once; the change is kept by that event's id, so it is there
    whenever the event is told again. A change by a client has an event of its own.
    """

    def __init__(self) -> None:
        self.deltas: dict[str, dict[str, Any]] = {}  # Any: JSON values
        self._seen: Mapping[str, Any] = {}  # Any: JSON values
        self._patched: dict[str, Any] = {}  # Any: JSON values

    def begin(self, state: Mapping[str, Any]) -> None:  # Any: JSON values
        """The state as the run finds it, which is none of its doing."""
        self._seen = state

    def patched(self, delta: Mapping[str, Any]) -> None:  # Any: JSON values
        """A client has changed the state."""
        self._patched |= delta

    def on(self, event: MessageEvent, state: Mapping[str, Any]) -> MessageEvent:  # Any: JSON values
        """The event with what has changed since the event before it, if anything has."""
        if state is self._seen and not self.deltas:
            return event
        if state is not self._seen:
            found = difference(self._seen, state)
            delta = {name: value for name, value in found.items() if self._patched.get(name, self) != value}
            self._seen = state
            if delta:
                self.deltas[event.id] = {**self.deltas.get(event.id, {}), **plain(delta)}
        stored = self.deltas.get(event.id) if self.deltas else None  # an id is a hash, and most runs need none here
        return event if stored is None else replace(event, state=stored)


class EventPublisher:
    """Of one run. `again`: another process has published the beginning, so that is published first.

    `on_begin` is called when the run's beginning is stored. `state`: what the run did to the session's state.
    """

    def __init__(self, run: AnyRun, feed: Feed, on_begin: Callable[[], object], *, again: bool) -> None:
        self.state = StateDeltas()
        self._run = run
        self._feed = feed
        self._turn = feed.turn
        self._on_begin = on_begin
        self._again = again
        self._session: Session | None = None
        # Between the run's beginning and its end the session's facts are about it.
        self._mine = False
        self._index = 0
        self._position = 0
        self._said: dict[int, Message] = {}
        # The names of the tools that run, by run and call.
        self._tools: dict[tuple[str, str], str] = {}
        # The last event of a run that failed, until it is known what the failure was.
        self._last: MessageEvent | None = None
        self._prepared: list[MessageEvent] | None = None
        # Told of asks, and of text that comes after one.
        self.on_ask: Callable[[Event], object] | None = None
        self._asked = False

    def listen(self, session: Session) -> Callable[[], object]:
        """Publish from now on what the session stores and what the run streams. Returns what ends that."""
        self._session = session
        self._run.hub.listen(self._overhear)
        return session.listen(self._take)

    def end(self, result: RunResult[Any]) -> None:  # Any: of every output type
        """What a failure was is known only now. An end that could not be stored is published all the same."""
        if self._mine:
            self._mine = False
            self._publish_last(Ended.of(result, self._index, time.time()))
        last = self._last
        if last is not None and last.end is not None:
            self._feed.append(replace(last, end=replace(last.end, failure=Failure.of(result.error))))
        elif not self._feed.whole:
            failure = Failure.of(result.save_error or result.error)
            if result.cancellation is not None:
                self.ended(RunEnd(str(StopReason.CANCELLED), failure.text, result.ledger))
            else:
                self.ended(RunEnd(str(StopReason.ERROR), failure.text, result.ledger, failure=failure))

    def prepare_end(self, ended: Ended, state: Mapping[str, Any]) -> None:  # Any: JSON values
        """Make the events of the end before it is stored: what they say of the state is stored with it."""
        self._prepared = self._end_events(ended, state)

    def ended(self, end: RunEnd) -> None:
        """The end of a run that had no turn, or whose end could not be stored."""
        self._feed.append(MessageEvent(self._turn, self._position, time.time(), speaker=self._turn.speaker, end=end))

    def _take(self, facts: tuple[Fact, ...]) -> None:
        for fact in facts:
            match fact:
                case Said(index, message, at) if self._mine:
                    self._say(index, message, at)
                case Opened(run_id=run_id) if run_id == self._run.id:
                    self._mine = True
                    self.state.begin(self._state_now)
                    self._index = fact.index
                    self._said = dict(enumerate(fact.messages, fact.index))
                    self._position = fact.index + len(fact.messages)
                    if self._again:
                        self._publish_again(fact)
                    self._on_begin()
                case Ended() if self._mine and fact.run_id == self._run.id:
                    self._mine = False
                    self._publish_last(fact)
                case _:
                    pass

    def _say(self, position: int, message: Message, at: float) -> None:
        if self._said.get(position) != message:
            self._said[position] = message
            self._position = position + 1
            event = MessageEvent(self._turn, position, at, message, self._turn.speaker, step_at(self._said.values()))
            self._feed.append(self.state.on(event, self._state_now))

    @property
    def _state_now(self) -> Mapping[str, Any]:  # Any: JSON values
        """As it is stored, and shared values as the run has them: they are stored with the end."""
        session = self._session
        assert session is not None
        shared = {name: value for name, value in session.state.items() if name.startswith(SHARED)}
        stored = session.stored_state
        if not shared and not any(name.startswith(SHARED) for name in stored):
            return stored  # the same object until the state is changed
        return {**session_part(stored), **deepcopy(shared)}

    def _publish_last(self, ended: Ended) -> None:
        """What the end adds, the last event with how the run ended."""
        prepared, self._prepared = self._prepared, None
        events = prepared if prepared is not None else self._end_events(ended, self._state_now)
        for event in events[:-1]:
            self._feed.append(event)
        if events and ended.stop_reason is StopReason.ERROR:
            self._last = events[-1]
        elif events:
            self._feed.append(events[-1])

    def _end_events(self, ended: Ended, state: Mapping[str, Any]) -> list[MessageEvent]:  # Any: JSON values
        asked = ended.checkpoint.questions if ended.checkpoint is not None else ()
        last = ended.index + len(ended.messages) - 1
        events: list[MessageEvent] = []
        step = 0
        for position, (speaker, message) in enumerate(self._turn.spoken(ended.messages), ended.index):
            step += message.role == "assistant"
            is_told = self._said.get(position) == message
            waiting = waiting_calls(message, asked) if asked else ()
            if position != last and is_told and not waiting:
                continue
            self._said[position] = message
            end = None
            if position == last:
                end = RunEnd.of(ended.stop_reason, ended.messages, ended.ledger, ended.usage, asked)
            event = MessageEvent(self._turn, position, ended.at, message, speaker, step, waiting, end=end)
            events.append(self.state.on(event, state))
        return events

    def _overhear(self, event: Event) -> None:
        """The text of the run itself, or of a child that speaks for it, and output of tools, as they come."""
        match event:
            case ToolCallStarted(run_id=run_id, call=call):
                self._tools[run_id, call.id] = call.name
            case ToolOutputStreamed():
                self._publish_output(event)
            case ToolCallEnded(run_id=run_id, entry=entry):
                self._tools.pop((run_id, entry.call_id), None)
            case CancelRequested():
                self._asked = True
                self._tell_asked(event)
            case TextStreamed() | ReasoningStreamed() | ModelCallStarted() | ModelCallEnded():
                if self._asked:
                    self._tell_asked(event)
                if event.run_id in self._run.hub.speakers:
                    self._publish_words(event)
            case _:
                pass

    def _tell_asked(self, event: Event) -> None:
        if self.on_ask is not None:
            self.on_ask(event)

    def _publish_output(self, event: ToolOutputStreamed) -> None:
        """Also of tools inside: then the path says where."""
        inside = event.run_id not in self._run.hub.speakers
        # Where agents hand one conversation on, the position is past the results as soon as the calls are known.
        position = self._position - (self._turn.speaker is not None)
        name, path = self._tools.get((event.run_id, event.call_id)) or "", event.path if inside else None
        speaker, now = self._speaker(event), time.time()
        self._feed.append_output(ToolOutput(self._turn, position, now, event.call_id, name, event.text, speaker, path))

    def _publish_words(self, event: TextStreamed | ReasoningStreamed | ModelCallStarted | ModelCallEnded) -> None:
        if isinstance(event, ModelCallStarted):
            if event.run_id == self._run.id:
                self._publish_results()
            self._feed.begin()  # text of an attempt that failed is no part of the next
        elif isinstance(event, ModelCallEnded):
            # The children's messages are the conversation itself: a reply with calls, and then their results.
            if self._turn.speaker is not None and event.message is not None and event.message.tool_calls:
                self._position += 2
        else:
            thought, speaker = isinstance(event, ReasoningStreamed), self._speaker(event)
            now = time.time()
            self._feed.append_partial(
                PartialText(self._turn, self._position, now, event.text, thought, speaker, event.step)
            )

    def _publish_results(self) -> None:
        """The results of calls are stored one by one; the message they make is stored with the next reply.

        It is published before that reply's first words, which would have its position otherwise.
        """
        record, now = self._run.record, time.time()
        messages = record.messages if record is not None and self._mine else []
        for position in range(self._position, len(messages)):
            self._say(position, messages[position], now)

    def _speaker(self, event: Event) -> str | None:
        """The agent that speaks, where agents hand one conversation on: its node has its name and a number."""
        if self._turn.speaker is None:
            return None
        below = event.path.removeprefix(f"{self._run.node.path}/").partition("/")[0]
        return below.rpartition("#")[0] or self._turn.speaker

    def _publish_again(self, opened: Opened) -> None:
        """What the process before has published of this run, without the message that it answers."""
        assert self._session is not None
        times, step = self._session.times, 0
        spoken = zip(self._said, self._turn.spoken(self._said.values()), strict=True)
        for number, (position, (speaker, message)) in enumerate(spoken):
            step += message.role == "assistant"
            if number or opened.messages[0].role != "user":
                self._feed.append(MessageEvent(self._turn, position, times[position], message, speaker, step))


def step_at(messages: Iterable[Message]) -> int:
    """How many replies of a model there are."""
    return sum(message.role == "assistant" for message in messages)

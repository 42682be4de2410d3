"""The events of a feed as parts that open, grow and close: what one client has been shown, and what comes next. Pure.

Front ends show a run as parts: steps, texts, thoughts, tool calls. Each has to be opened before it grows, and closed
before the run ends. A feed tells something else: pieces of text, and then the whole message that they belong to.
`PartMapper` turns the second into the first, and every encoder of a front end's protocol writes what it returns.

    feed                                 parts
    PartialText                          StepOpened, TextOpened, TextAdded
    MessageEvent of the assistant        what is missing of its text; TextClosed; CallOpened for each call
    ToolOutput                           CallOutput
    MessageEvent with results            CallClosed for each call
    MessageEvent of the user             UserSaid: words that joined the run while it was live
    the feed is closed (`close`)         whatever is still open is closed

A client appends what it gets and can take nothing back. So a text that was streamed is not sent again when its message
is whole: only what is missing. Words that came out differently, as after a second attempt of the model, are a new text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from safepoint.history.parts import (
    Attachment,
    File,
    Image,
    Message,
    Notice,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    UserPart,
)
from safepoint.history.states import LedgerState
from safepoint.serving.events import FeedEvent, MessageEvent, PartialText, ToolOutput

_UNKNOWN = "The run has ended. The outcome of this call is not known."


@dataclass(frozen=True, slots=True)
class StepOpened:
    """A reply of the model, and the calls that it makes. `number`: from 1, in this stream."""

    number: int


@dataclass(frozen=True, slots=True)
class StepClosed:
    number: int


@dataclass(frozen=True, slots=True)
class TextOpened:
    """`id`: of this text; `thought`: it is the model's reasoning. `speaker`: the agent, if not the root agent."""

    id: str
    thought: bool
    speaker: str | None = None


@dataclass(frozen=True, slots=True)
class TextAdded:
    id: str
    thought: bool
    text: str


@dataclass(frozen=True, slots=True)
class TextClosed:
    """`incomplete`: the model was cut before it had finished."""

    id: str
    thought: bool
    incomplete: bool = False


@dataclass(frozen=True, slots=True)
class CallOpened:
    """`id`: the client's name for the call. `message_id`: of the message that makes it."""

    id: str
    message_id: str
    call: ToolCall


@dataclass(frozen=True, slots=True)
class CallOutput:
    """`text`: what was told since the last time; `whole`: the end of all that was told."""

    id: str
    text: str
    whole: str


@dataclass(frozen=True, slots=True)
class CallClosed:
    """What became of a call, in the words of the conversation. `message_id`: of the message with its result."""

    id: str
    message_id: str
    result: ToolResult


@dataclass(frozen=True, slots=True)
class FileSaid:
    part: Attachment


@dataclass(frozen=True, slots=True)
class UserSaid:
    """A message of the user that joined the run."""

    message_id: str
    parts: tuple[UserPart, ...]


@dataclass(frozen=True, slots=True)
class StateChanged:
    """None for a value that is gone."""

    delta: Mapping[str, Any]  # Any: JSON values


PartEvent: TypeAlias = (
    StepOpened
    | StepClosed
    | TextOpened
    | TextAdded
    | TextClosed
    | CallOpened
    | CallOutput
    | CallClosed
    | FileSaid
    | UserSaid
    | StateChanged
)

_MOST_OUTPUT = 20_000


def wire_call_id(turn_id: str, call_id: str) -> str:
    """The client's name for a call: a model may give two calls of two turns the same id."""
    return f"{turn_id}:{call_id}"


def own_call_id(turn_id: str, id: str) -> str:
    """The inverse of `wire_call_id`; an id of another form stays as it is."""
    return id.removeprefix(f"{turn_id}:")


@dataclass(slots=True)
class _Message:
    """What was sent of the message under way. `sent`: its words and its thoughts. `texts`: how many were opened."""

    id: str
    sent: dict[bool, str] = field(default_factory=lambda: {False: "", True: ""})
    texts: int = 0


@dataclass(slots=True)
class _OpenCall:
    name: str
    call_id: str
    output: str = ""


class PartMapper:
    """Of one stream to one client."""

    def __init__(self) -> None:
        self._step = 0
        self._step_is_open = False
        self._message: _Message | None = None
        self._text: tuple[str, bool] | None = None
        # Messages of the assistant, and calls, that were shown: an event may be told again, in another form.
        self._seen: set[str] = set()
        self._calls: dict[str, _OpenCall] = {}
        self._closed: set[str] = set()
        # Calls that wait for a person: they stay open beyond the end of this run.
        self._waiting: set[str] = set()

    def map(self, event: FeedEvent) -> list[PartEvent]:
        match event:
            case PartialText(text=text, thought=thought):
                message = list(self._begin(event.id))
                return [*message, *self._add(text, thought=thought, speaker=event.speaker)]
            case ToolOutput(inner_path=None):
                return self._output(event)
            case ToolOutput():
                return []  # of a tool inside a sub-agent, which the client sees as one call
            case MessageEvent():
                found = list(self._whole(event)) if event.message is not None else []
                return [*found, StateChanged(event.state)] if event.state else found

    def close(self) -> list[PartEvent]:
        """Close everything. A call whose result never came has an outcome that is not known."""
        found: list[PartEvent] = [*self._close_text()]
        for id, call in self._calls.items():
            if id not in self._waiting:
                result = ToolResult(call.call_id, call.name, _UNKNOWN, str(LedgerState.CUT))
                found.append(CallClosed(id, f"{id}-result", result))
        self._calls.clear()
        return [*found, *self._close_step()]

    # -- text ----------------------------------------------------------------------------------------------------------

    def _begin(self, message_id: str) -> Iterator[PartEvent]:
        """A message of the assistant, if it is another one than before: a step."""
        if self._message is not None and self._message.id == message_id:
            return
        yield from self._close_text()
        yield from self._close_step()
        self._message = _Message(message_id)
        self._seen.add(message_id)
        self._step += 1
        self._step_is_open = True
        yield StepOpened(self._step)

    def _add(self, text: str, *, thought: bool, speaker: str | None) -> Iterator[PartEvent]:
        message = self._message
        assert message is not None
        if self._text is None or self._text[1] is not thought:
            yield from self._close_text()
            id = message.id if message.texts == 0 else f"{message.id}.{message.texts}"
            message.texts += 1
            self._text = (id, thought)
            yield TextOpened(id, thought, speaker)
        message.sent[thought] += text
        if text:
            yield TextAdded(self._text[0], thought, text)

    def _close_text(self, *, incomplete: bool = False) -> Iterator[PartEvent]:
        if self._text is not None:
            (id, thought), self._text = self._text, None
            yield TextClosed(id, thought, incomplete)

    def _close_step(self) -> Iterator[PartEvent]:
        if self._step_is_open:
            self._step_is_open = False
            yield StepClosed(self._step)

    # -- whole messages ------------------------------------------------------------------------------------------------

    def _whole(self, event: MessageEvent) -> Iterator[PartEvent]:
        message = event.message
        assert message is not None
        if message.role == "user":
            parts = tuple(part for part in message.parts if isinstance(part, Text | Image | File))
            if parts:
                yield UserSaid(event.id, parts)
        elif message.role == "assistant":
            yield from self._reply(event, message)
        else:
            for part in message.parts:
                if isinstance(part, ToolResult):
                    yield from self._result(event, part)

    def _reply(self, event: MessageEvent, message: Message) -> Iterator[PartEvent]:
        if event.id in self._seen and (self._message is None or self._message.id != event.id):
            for call in message.tool_calls:  # told again: now it is known which of them wait
                yield from self._open_call(event, call)
            return
        if all(isinstance(part, Notice) for part in message.parts):
            return  # the runtime's remark to the model
        yield from self._begin(event.id)
        texts = {False: "", True: ""}
        incomplete = False
        for part in message.parts:
            match part:
                case Text(text) | Reasoning(text):
                    thought = isinstance(part, Reasoning)
                    texts[thought] += text
                    incomplete = incomplete or (isinstance(part, Text) and part.incomplete)
                    yield from self._rest(texts[thought], thought=thought, speaker=event.speaker)
                case ToolCall():
                    yield from self._close_text(incomplete=incomplete)
                    yield from self._open_call(event, part)
                case Image() | File():
                    yield from self._close_text()
                    yield FileSaid(part)
                case Notice() | ToolResult():
                    pass
        yield from self._close_text(incomplete=incomplete)

    def _rest(self, text: str, *, thought: bool, speaker: str | None) -> Iterator[PartEvent]:
        """What was not sent yet of the message so far."""
        assert self._message is not None
        sent = self._message.sent[thought]
        if sent.startswith(text):
            return
        if text.startswith(sent):
            yield from self._add(text.removeprefix(sent), thought=thought, speaker=speaker)
            return
        yield from self._close_text()
        self._message.sent[thought] = ""
        yield from self._add(text, thought=thought, speaker=speaker)

    # -- calls ---------------------------------------------------------------------------------------------------------

    def _open_call(self, event: MessageEvent, call: ToolCall) -> Iterator[PartEvent]:
        id = wire_call_id(event.turn.run_id, call.id)
        if call.id in event.waiting_calls:
            self._waiting.add(id)
        if id not in self._calls and id not in self._closed:
            self._calls[id] = _OpenCall(call.name, call.id)
            yield from self._close_text()
            yield CallOpened(id, event.id, call)

    def _result(self, event: MessageEvent, result: ToolResult) -> Iterator[PartEvent]:
        """Also of a call that an earlier stream has opened: it waited for a person, and now goes on."""
        id = wire_call_id(event.turn.run_id, result.call_id)
        if result.state == LedgerState.WAITING:
            self._waiting.add(id)
            return
        if id in self._closed:
            return
        self._closed.add(id)
        self._calls.pop(id, None)
        self._waiting.discard(id)
        yield CallClosed(id, f"{event.id}-{result.call_id}", result)

    def _output(self, event: ToolOutput) -> list[PartEvent]:
        id = wire_call_id(event.turn.run_id, event.call_id)
        call = self._calls.get(id)
        if call is None:
            return []
        call.output = (call.output + event.text)[-_MOST_OUTPUT:]
        return [CallOutput(id, event.text, call.output)]

"""The events of a feed as `session/update`: what one client has been shown, and what it has to be shown next.

A client appends what it gets and can take nothing back. So a message that was streamed is not sent again when it is
whole: only what is missing of it. Every call that was shown is shown to its end, in the words of the conversation.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from acp import schema

from safepoint.agent.ledger import LedgerEntry
from safepoint.history.parts import File, Image, Message, Notice, Part, Reasoning, Text, ToolCall, ToolResult
from safepoint.history.states import LedgerState
from safepoint.serving.events import FeedEvent, MessageEvent, PartialText, ToolOutput
from safepoint.serving.shared_state import plain

Update: TypeAlias = (
    schema.UserMessageChunk
    | schema.AgentMessageChunk
    | schema.AgentThoughtChunk
    | schema.ToolCallStart
    | schema.ToolCallProgress
)
Status: TypeAlias = Literal["pending", "in_progress", "completed", "failed"]
Block: TypeAlias = schema.TextContentBlock | schema.ImageContentBlock | schema.ResourceContentBlock

META: Final = "safepoint"
_MOST_OUTPUT = 20_000
_UNKNOWN = "The run has ended. The outcome of this call is not known."
_NEVER_ANSWERED = "The run was stopped while this call waited for a person."
# The tools that come with Safepoint, by the kinds that editors have icons for.
_KINDS: Final[Mapping[str, Any]] = {  # Any: a literal of the protocol
    "shell": "execute",
    "read_file": "read",
    "list_files": "read",
    "write_file": "edit",
    "fetch": "fetch",
}


@dataclass(slots=True)
class _Shown:
    """A call as the client sees it now. `id`: the client's name for it; `call_id`: that of the conversation.

    `output`: the end of what it has told while it ran.
    """

    id: str
    call_id: str
    status: Status
    output: str = ""

    @property
    def is_over(self) -> bool:
        return self.status in ("completed", "failed")


class UpdateEncoder:
    """Of one turn, or of one conversation that is replayed. `user_words`: whether to send what the person said."""

    def __init__(self, *, user_words: bool) -> None:
        self._user_words = user_words
        # By the id of the message: the words, and the thoughts, that were sent of it.
        self._sent: dict[tuple[str, bool], str] = {}
        self._calls: dict[str, _Shown] = {}

    def encode(self, event: FeedEvent) -> list[Update]:
        match event:
            case PartialText(text=text, thought=thought):
                self._sent[event.id, thought] = self._sent.get((event.id, thought), "") + text
                return [chunk(text, event.id, thought=thought)]
            case ToolOutput(inner_path=None):
                return self._output(event)
            case ToolOutput():
                return []  # of a tool inside a sub-agent, which the client sees as one call
            case MessageEvent(message=None):
                return []
            case MessageEvent(message=message):
                assert message is not None
                return list(self._message(event, message))

    def started(self, turn_id: str, call: ToolCall) -> list[Update]:
        """A call runs. Its message may come later: then the call is shown now."""
        return self._show(turn_id, call, "in_progress")

    def ended(self, turn_id: str, entry: LedgerEntry) -> list[Update]:
        """A call has finished while others still run. What became of any other call its message says."""
        if entry.state is not LedgerState.FINISHED:
            return []
        updates = self._show(turn_id, ToolCall(entry.call_id, entry.name, entry.args), "in_progress")
        shown = self._calls[call_id(turn_id, entry.call_id)]
        if shown.is_over:
            return []
        blocks = [_text(entry.content or ""), *map(_attachment, entry.parts)]
        return [*updates, _progress(shown, "completed", blocks)]

    @property
    def has_open_calls(self) -> bool:
        """Is there a call that was shown and not shown to its end?"""
        return any(not shown.is_over for shown in self._calls.values())

    def finish(self, results: Mapping[str, ToolResult]) -> list[Update]:
        """Show every call to its end. `results`: what the conversation says of them."""
        return [_last_update(shown, results) for shown in self._calls.values() if not shown.is_over]

    def result(self, turn_id: str, result: ToolResult) -> list[Update]:
        """What the conversation says of a call; nothing new for a call that was shown to its end."""
        shown = self._calls.get(call_id(turn_id, result.call_id))
        if shown is None or shown.is_over or result.state == LedgerState.WAITING:
            return []
        return [_last_update(shown, {shown.call_id: result})]

    def _message(self, event: MessageEvent, message: Message) -> Iterator[Update]:
        if event.by_user:
            yield from self._said_by_user(event, message)
            return
        texts = {False: "", True: ""}
        for part in message.parts:
            match part:
                case Text(text) | Reasoning(text):
                    thought = isinstance(part, Reasoning)
                    texts[thought] += text
                    incomplete = isinstance(part, Text) and part.incomplete
                    yield from self._rest(event.id, texts[thought], thought=thought, incomplete=incomplete)
                case ToolCall():
                    yield from self._show(event.turn.run_id, part, "pending")
                case ToolResult():
                    yield from self.result(event.turn.run_id, part)
                case Image() | File():
                    yield schema.AgentMessageChunk(
                        session_update="agent_message_chunk", content=_attachment(part), message_id=event.id
                    )
                case Notice():
                    pass  # the runtime's remark to the model

    def _said_by_user(self, event: MessageEvent, message: Message) -> Iterator[Update]:
        if not self._user_words:
            return
        for part in message.parts:
            block = _user_block(part)
            if block is not None:
                yield schema.UserMessageChunk(session_update="user_message_chunk", content=block, message_id=event.id)

    def _rest(self, id: str, text: str, *, thought: bool, incomplete: bool) -> Iterator[Update]:
        """What was not sent yet of the message so far. Words that came out differently are sent once more, whole."""
        sent = self._sent.get((id, thought), "")
        if sent.startswith(text) and not incomplete:
            return
        rest = text.removeprefix(sent) if text.startswith(sent) else f"\n{text}"
        self._sent[id, thought] = text
        if rest or incomplete:
            yield chunk(rest, id, thought=thought, incomplete=incomplete)

    def _show(self, turn_id: str, call: ToolCall, status: Status) -> list[Update]:
        id = call_id(turn_id, call.id)
        shown = self._calls.get(id)
        if shown is None:
            self._calls[id] = _Shown(id, call.id, status)
            return [
                schema.ToolCallStart(
                    session_update="tool_call",
                    tool_call_id=id,
                    title=call.name,
                    kind=_KINDS.get(call.name, "other"),
                    status=status,
                    raw_input=plain(dict(call.args)),
                )
            ]
        if status == "pending" or shown.is_over or shown.status == status:
            return []
        shown.status = status
        return [schema.ToolCallProgress(session_update="tool_call_update", tool_call_id=id, status=status)]

    def _output(self, event: ToolOutput) -> list[Update]:
        """A client replaces the content of a call, so each update has all of it, or its end."""
        shown = self._calls.get(call_id(event.turn.run_id, event.call_id))
        if shown is None or shown.is_over:
            return []
        shown.output = (shown.output + event.text)[-_MOST_OUTPUT:]
        return [_progress(shown, "in_progress", [_text(shown.output)])]


def call_id(turn_id: str, call: str) -> str:
    """The name of a call in its session: a model may give two calls of two turns the same id."""
    return f"{turn_id}/{call}"


def _last_update(shown: _Shown, results: Mapping[str, ToolResult]) -> Update:
    result = results.get(shown.call_id)
    if result is None:
        return _progress(shown, "failed", [_text(_UNKNOWN)])
    if result.state == LedgerState.WAITING:
        return _progress(shown, "failed", [_text(_NEVER_ANSWERED)])
    blocks = [_text(result.content), *map(_attachment, result.parts)]
    return _progress(shown, "failed" if result.is_error else "completed", blocks)


def _progress(shown: _Shown, status: Status, blocks: list[Block]) -> Update:
    shown.status = status
    return schema.ToolCallProgress(
        session_update="tool_call_update",
        tool_call_id=shown.id,
        status=status,
        content=[schema.ContentToolCallContent(type="content", content=block) for block in blocks],
    )


def chunk(text: str, id: str | None, *, thought: bool = False, incomplete: bool = False) -> Update:
    meta = {META: {"incomplete": True}} if incomplete else None
    block = _text(text)
    if thought:
        return schema.AgentThoughtChunk(
            session_update="agent_thought_chunk", content=block, message_id=id, field_meta=meta
        )
    return schema.AgentMessageChunk(session_update="agent_message_chunk", content=block, message_id=id, field_meta=meta)


def _text(text: str) -> schema.TextContentBlock:
    return schema.TextContentBlock(type="text", text=text)


def _attachment(part: Image | File) -> Block:
    if isinstance(part, Image) and part.data is not None:
        data = base64.b64encode(part.data).decode()
        return schema.ImageContentBlock(type="image", data=data, mime_type=part.media_type)
    name = (part.name if isinstance(part, File) else None) or part.media_type
    if part.url is not None:
        return schema.ResourceContentBlock(type="resource_link", name=name, uri=part.url, mime_type=part.media_type)
    return _text(f"[{name}]")


def _user_block(part: Part) -> Block | None:
    match part:
        case Text(text):
            return _text(text)
        case Image() | File():
            return _attachment(part)
        case _:
            return None

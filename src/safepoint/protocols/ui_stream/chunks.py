"""A run as chunks of the UI message stream, version 1. A client drops a message for a type that its schema lacks.

One run is one message, whose id is that of its turn: a run that goes on after a question goes on with the message.

A stop is told so that the client sees it. `abort` alone is invisible to `useChat`: so every text and call is closed
first, then comes `data-safepoint` with the receipt, `abort` with the reason, and `finish` with `interrupted`.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from safepoint.agent.checkpoint import Question
from safepoint.history.parts import Attachment, Text, UserPart
from safepoint.protocols.endings import UI_STREAM, Ending
from safepoint.protocols.json_text import as_text
from safepoint.protocols.message_parts import (
    CallClosed,
    CallOpened,
    CallOutput,
    FileSaid,
    PartEvent,
    PartMapper,
    StateChanged,
    StepClosed,
    StepOpened,
    TextAdded,
    TextClosed,
    TextOpened,
    UserSaid,
    wire_call_id,
)
from safepoint.protocols.question_text import question_text
from safepoint.protocols.run_facts import RunFacts, facts_of
from safepoint.serving.events import Failure, call_of
from safepoint.serving.feed import Feed, Frame
from safepoint.serving.run_manager import RunManager
from safepoint.serving.shared_state import plain

Json: TypeAlias = dict[str, Any]  # Any: JSON values

HEADERS: Final = {"x-vercel-ai-ui-message-stream": "v1"}
QUESTION: Final = "question"  # the tool that stands for a question which no call of the conversation asks
_OURS = "safepoint"
_KINDS: Final = {False: "text", True: "reasoning"}
_DONE = "data: [DONE]\n\n"


@dataclass(slots=True)
class MessageStream:
    """A `StreamEncoder`. `message_id`: the id of the turn."""

    manager: RunManager
    run_id: str
    message_id: str
    _mapper: PartMapper = field(default_factory=PartMapper)

    def opening(self) -> str:
        return _written([{"type": "start", "messageId": self.message_id}])

    def frame(self, frame: Frame) -> str:
        return _written(chunk for part in self._mapper.map(frame.event) for chunk in _part(part))

    async def ending(self, feed: Feed, failure: Failure | None) -> str:
        """Cancellation: nothing is sent."""
        closing = [chunk for part in self._mapper.close() for chunk in _part(part)]
        if failure is not None and not feed.closed:
            return _written([*closing, {"type": "error", "errorText": failure.text}]) + _DONE
        facts = await facts_of(self.manager, self.run_id, feed)
        return _written([*closing, *_questions(facts), *_last(facts)]) + _DONE


def _last(facts: RunFacts) -> Iterator[Json]:
    yield {"type": "data-safepoint", "data": facts.receipt}
    word = UI_STREAM[facts.ending]
    if facts.ending is Ending.ERROR:
        yield {"type": "error", "errorText": facts.message}
        return
    if facts.ending in (Ending.CANCELLED_BY_CLIENT, Ending.CANCELLED_OTHERWISE):
        yield {"type": "abort", "reason": facts.message}
    yield {"type": "finish", "finishReason": word}


def _questions(facts: RunFacts) -> Iterator[Json]:
    if facts.ending is not Ending.INTERRUPTED:
        return
    for question in facts.questions:
        call = wire_call_id(facts.turn_id, call_of(question.id))
        if question in facts.inner_questions:
            call = question.id
            yield {"type": "tool-input-start", "toolCallId": call, "toolName": QUESTION, "dynamic": True}
            yield _input(call, QUESTION, plain({"payload": question.payload}))
        yield _approval(question, call)


def _approval(question: Question, call: str) -> Json:
    found: Json = {"type": "tool-approval-request", "approvalId": question.id, "toolCallId": call}
    return {**found, "reason": question_text(question)}


def _part(part: PartEvent) -> Iterator[Json]:
    match part:
        case StepOpened():
            yield {"type": "start-step"}
        case StepClosed():
            yield {"type": "finish-step"}
        case TextOpened(id, thought):
            yield {"type": f"{_KINDS[thought]}-start", "id": id}
        case TextAdded(id, thought, text):
            yield {"type": f"{_KINDS[thought]}-delta", "id": id, "delta": text}
        case TextClosed(id, thought, incomplete):
            closed: Json = {"type": f"{_KINDS[thought]}-end", "id": id}
            yield {**closed, "providerMetadata": {_OURS: {"incomplete": True}}} if incomplete else closed
        case CallOpened(id, _, call):
            yield {"type": "tool-input-start", "toolCallId": id, "toolName": call.name, "dynamic": True}
            yield _input(id, call.name, plain(dict(call.args)))
        case CallOutput(id, _, whole):
            yield {
                "type": "tool-output-available",
                "toolCallId": id,
                "output": whole,
                "preliminary": True,
                "dynamic": True,
            }
        case CallClosed(id, _, result):
            if result.is_error:
                yield {"type": "tool-output-error", "toolCallId": id, "errorText": result.content, "dynamic": True}
            else:
                yield {"type": "tool-output-available", "toolCallId": id, "output": result.content, "dynamic": True}
        case FileSaid(file):
            yield _file(file)
        case UserSaid(id, parts):
            yield {"type": "steering-message", "id": id, "parts": [_user_part(each) for each in parts]}
        case StateChanged():
            pass  # the state is no part of a message


def _input(id: str, name: str, args: Any) -> Json:  # Any: JSON
    return {"type": "tool-input-available", "toolCallId": id, "toolName": name, "input": args, "dynamic": True}


def _user_part(part: UserPart) -> Json:
    return {"type": "text", "text": part.text} if isinstance(part, Text) else _file(part)


def _file(part: Attachment) -> Json:
    url = part.url
    if url is None:
        url = f"data:{part.media_type};base64,{base64.b64encode(part.data or b'').decode()}"
    return {"type": "file", "mediaType": part.media_type, "url": url}


def _written(chunks: Iterable[Json]) -> str:
    return "".join(f"data: {as_text(chunk)}\n\n" for chunk in chunks)

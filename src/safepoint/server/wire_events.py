"""A conversation in the words of ADK's wire: pure, so that live events and stored ones can't differ.

One message is one event. Its id follows from the run and the message's place, so a piece of text that is streamed now
and the whole message that is stored later share it. Notices are not words of the model: they become `errorMessage`.

A composite is one agent to its clients: its conversation is what is told and stored, and its author is its name. Only
agents that hand one conversation on to each other are told apart: the run that has done it names the author of each
message (`Message.author`). Nothing that a message says decides that.
"""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from safepoint.agent.base import BaseAgent
from safepoint.agent.checkpoint import Question
from safepoint.agent.ledger import LedgerEntry
from safepoint.agent.usage import Usage
from safepoint.compose.handoff import Handoff
from safepoint.history.parts import File, Image, Message, Notice, Part, Reasoning, Text, ToolCall, ToolResult

Json: TypeAlias = dict[str, Any]  # Any: JSON

ABORTED = "INVOCATION_ABORTED"
# ADK's name for a question to a person that no tool call of the conversation stands for.
REQUEST_INPUT = "adk_request_input"
_NAMES = uuid.UUID("6a3d1c9e-5f0b-4a57-9a43-8d5f0c1b7e21")


@dataclass(frozen=True, slots=True)
class EventContext:
    """What every event of one run has in common. `voice`: who speaks, if that is not the root agent itself."""

    run_id: str
    agent: str
    metadata: Json | None = None
    voice: str | None = None

    @staticmethod
    def of(run_id: str, agent: BaseAgent[Any, Any], metadata: Json | None = None) -> EventContext:  # Any: every kind
        return EventContext(run_id, agent.name, metadata, first_author(agent))

    @property
    def invocation(self) -> str:
        return f"e-{self.run_id.removeprefix('run_')}"

    def event_id(self, place: int) -> str:
        return str(uuid.uuid5(_NAMES, f"{self.run_id}/{place}"))

    def spoken_by(self, voice: str | None) -> EventContext:
        return self if voice is None else replace(self, voice=voice)

    def spoken(self, messages: Iterable[Message]) -> Iterator[tuple[EventContext, Message]]:
        """Each message with its speaker. A remark of the runtime, which has none, is told under the one before it."""
        event_context = self
        for message in messages:
            event_context = event_context.spoken_by(message.author)
            yield event_context, message


@dataclass(frozen=True, slots=True)
class Abnormal:
    """How a run ended, if not with an answer: told on its last event."""

    code: str
    text: str
    ledger: tuple[LedgerEntry, ...] = ()


def first_author(agent: BaseAgent[Any, Any]) -> str | None:  # Any: agents of every kind
    """Who speaks first, where that can be told."""
    return next(iter(agent.members())).name if isinstance(agent, Handoff) else None


def message_event(
    event_context: EventContext, place: int, message: Message, at: float, *, questions: Sequence[Question] = ()
) -> Json:
    """The event of one whole message. `questions`: what the run waits for."""
    event = _event(event_context, place, at, by_user=message.role == "user")
    parts = [part for each in message.parts if (part := _part(each)) is not None]
    if parts:
        event["content"] = {"role": "model" if message.role == "assistant" else "user", "parts": parts}
    if message.tool_calls:
        asked = {call.id for call in message.tool_calls}
        event["longRunningToolIds"] = sorted(asked.intersection(call_of(question.id) for question in questions))
    if any(isinstance(part, Text) and part.incomplete for part in message.parts):
        event["interrupted"] = True
    return event


def asking_event(event: Json, questions: Sequence[Question], calls: Iterable[str]) -> Json:
    """The last event of a run that waits for a person, with what is asked.

    A question of a composite's child belongs to none of these calls: it becomes a call of its own, that ADK has for it.
    """
    known = set(calls)
    shown = [_question(each) for each in questions]
    event = {**event, "customMetadata": {**event.get("customMetadata", {}), "safepointQuestions": shown}}
    open_ones = [each for each in questions if call_of(each.id) not in known]
    if not open_ones:
        return event
    parts: list[Json] = [
        {"functionCall": {"id": each.id, "name": REQUEST_INPUT, "args": _question(each)}} for each in open_ones
    ]
    said: list[Json] = event.get("content", {}).get("parts", [])
    content = {"role": "model", "parts": [*said, *parts]}
    return {**event, "content": content, "longRunningToolIds": sorted(each.id for each in open_ones)}


def _question(question: Question) -> Json:
    return {"id": question.id, "tool": question.tool, "payload": plain(question.payload), "kind": question.kind}


def partial_event(event_context: EventContext, place: int, text: str, at: float, *, thought: bool = False) -> Json:
    """A piece of a message under way."""
    event = _event(event_context, place, at)
    part: Json = {"text": text, "thought": True} if thought else {"text": text}
    event |= {"content": {"role": "model", "parts": [part]}, "partial": True}
    return event


def tool_output_event(event_context: EventContext, place: int, *, call: tuple[str, str], text: str, at: float) -> Json:
    """What a running call, by id and name, tells: a response that will continue, as Gemini's API has it."""
    response: Json = {"id": call[0], "name": call[1], "response": {"output": text}, "willContinue": True}
    event = _event(event_context, place, at)
    event |= {"content": {"role": "user", "parts": [{"functionResponse": response}]}, "partial": True}
    return event


def abnormal_event(event: Json, abnormal: Abnormal) -> Json:
    """The same event, as the last of a run that was stopped or failed."""
    entries = [entry_json(entry) for entry in abnormal.ledger]
    metadata = {**event.get("customMetadata", {}), "safepointLedger": entries}
    return {**event, "errorCode": abnormal.code, "errorMessage": abnormal.text, "customMetadata": metadata}


def empty_event(event_context: EventContext, place: int, at: float) -> Json:
    """An event without words, for an end that has none."""
    return _event(event_context, place, at)


def patch_event(agent: str, at: float, patch: Mapping[str, Any]) -> Json:  # Any: JSON values
    """A change of state from outside any run, as ADK stores it."""
    event = _event(EventContext(patch["id"], agent), 0, at, by_user=True)
    event["invocationId"] = patch["id"]
    return with_state(event, patch["stateDelta"])


def with_state(event: Json, delta: Mapping[str, Any]) -> Json:  # Any: as above
    return {**event, "actions": {**event["actions"], "stateDelta": dict(delta)}}


def with_usage(event: Json, usage: Mapping[str, Any]) -> Json:  # Any: as `usage_json` makes it
    into, out = usage["inputTokens"], usage["outputTokens"]
    counts = {"promptTokenCount": into, "candidatesTokenCount": out, "totalTokenCount": into + out}
    return {**event, "usageMetadata": counts}


def usage_json(usage: Usage) -> Json:
    return {"inputTokens": usage.input_tokens, "outputTokens": usage.output_tokens, "estimated": usage.estimated}


def entry_json(entry: LedgerEntry) -> Json:
    found: Json = {"callId": entry.call_id, "name": entry.name, "state": str(entry.state), "effect": str(entry.effect)}
    if entry.still_running:
        found["stillRunning"] = True
    return found


def error_frame(kind: str, text: str, at: float) -> Json:
    """ADK's own last frame after a failure."""
    details = {"error_type": kind, "error_message": text, "timestamp": at}
    return {"error": f"{kind}: {text}", "error_details": details}


def notices(message: Message) -> str:
    return " ".join(part.text for part in message.parts if isinstance(part, Notice))


def plain(value: object) -> Any:  # Any: JSON
    """A value of the user's own, as JSON; what has no such form becomes its description."""
    try:
        return json.loads(json.dumps(value, allow_nan=False, default=str))
    except (TypeError, ValueError):
        return str(value)


def call_of(question_id: str) -> str:
    """The id of the call, of the run itself, in which a question was asked."""
    outer, slash, _ = question_id.partition("/")
    return outer if slash else outer.rpartition(":")[0]


def latest(events: Iterable[Json]) -> list[Json]:
    """Every event once, in its last form: one that was told again, as its run came to wait, has kept its id."""
    return list({event["id"]: event for event in events}.values())


def _event(event_context: EventContext, place: int, at: float, *, by_user: bool = False) -> Json:
    speaker = event_context.voice or event_context.agent
    event: Json = {
        "id": event_context.event_id(place),
        "invocationId": event_context.invocation,
        "author": "user" if by_user else speaker,
        "timestamp": at,
        "actions": {
            "stateDelta": {},
            "artifactDelta": {},
            "requestedAuthConfigs": {},
            "requestedToolConfirmations": {},
        },
        "nodeInfo": {
            "path": event_context.agent
            if by_user or event_context.voice is None
            else f"{event_context.agent}/{speaker}"
        },
    }
    if event_context.metadata:
        event["customMetadata"] = dict(event_context.metadata)
    return event


def _part(part: Part) -> Json | None:
    match part:
        case Text(text):
            return {"text": text}
        case Reasoning(text):
            return {"text": text, "thought": True}
        case ToolCall(id, name, args):
            return {"functionCall": {"id": id, "name": name, "args": dict(args)}}
        case ToolResult(call_id, name):
            return {"functionResponse": {"id": call_id, "name": name, "response": _response(part)}}
        case Image(data, media_type, url) | File(data, media_type, _, url):
            if data is None:
                return {"fileData": {"fileUri": url, "mimeType": media_type}}
            return {"inlineData": {"mimeType": media_type, "data": base64.b64encode(data).decode()}}
        case Notice():
            return None


def _response(result: ToolResult) -> Json:
    """What waits has not failed: ADK's word for that is pending."""
    if result.state == "waiting":
        return {"status": "pending", "state": result.state}
    return {"error" if result.is_error else "result": result.content, "state": result.state}

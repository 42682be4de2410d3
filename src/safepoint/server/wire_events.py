"""A conversation in the words of ADK's wire: pure, so that live events and stored ones can't differ.

One message is one event. Its id follows from the run and the message's place, so a piece of text that is streamed now
and the whole message that is stored later share it. Notices are not words of the model: they become `errorMessage`.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from safepoint.agent.ledger import LedgerEntry
from safepoint.agent.usage import Usage
from safepoint.history.parts import File, Image, Message, Notice, Part, Reasoning, Text, ToolCall, ToolResult

Json: TypeAlias = dict[str, Any]  # Any: JSON

ABORTED = "INVOCATION_ABORTED"
_NAMES = uuid.UUID("6a3d1c9e-5f0b-4a57-9a43-8d5f0c1b7e21")


@dataclass(frozen=True, slots=True)
class Scene:
    """What every event of one run has in common."""

    run_id: str
    agent: str
    metadata: Json | None = None

    @property
    def invocation(self) -> str:
        return f"e-{self.run_id.removeprefix('run_')}"

    def event_id(self, place: int) -> str:
        return str(uuid.uuid5(_NAMES, f"{self.run_id}/{place}"))


@dataclass(frozen=True, slots=True)
class Abnormal:
    """How a run ended, if not with an answer: told on its last event."""

    code: str
    text: str
    ledger: tuple[LedgerEntry, ...] = ()


def message_event(scene: Scene, place: int, message: Message, at: float, *, questions: Sequence[str] = ()) -> Json:
    """The event of one whole message. `questions`: ids of calls that wait for a person."""
    author = "user" if message.role == "user" else scene.agent
    event = _event(scene, place, author, at)
    parts = [part for each in message.parts if (part := _part(each)) is not None]
    if parts:
        event["content"] = {"role": "model" if message.role == "assistant" else "user", "parts": parts}
    if message.tool_calls:
        asked = {call.id for call in message.tool_calls}
        event["longRunningToolIds"] = sorted(asked.intersection(questions))
    if any(isinstance(part, Text) and part.incomplete for part in message.parts):
        event["interrupted"] = True
    return event


def partial_event(scene: Scene, place: int, text: str, at: float, *, thought: bool = False) -> Json:
    """A piece of a message under way."""
    event = _event(scene, place, scene.agent, at)
    part: Json = {"text": text, "thought": True} if thought else {"text": text}
    event |= {"content": {"role": "model", "parts": [part]}, "partial": True}
    return event


def abnormal_event(event: Json, abnormal: Abnormal) -> Json:
    """The same event, as the last of a run that was stopped or failed."""
    entries = [entry_json(entry) for entry in abnormal.ledger]
    metadata = {**event.get("customMetadata", {}), "safepointLedger": entries}
    return {**event, "errorCode": abnormal.code, "errorMessage": abnormal.text, "customMetadata": metadata}


def empty_event(scene: Scene, place: int, at: float) -> Json:
    """An event without words, for an end that has none."""
    return _event(scene, place, scene.agent, at)


def with_usage(event: Json, usage: Usage) -> Json:
    counts = {
        "promptTokenCount": usage.input_tokens,
        "candidatesTokenCount": usage.output_tokens,
        "totalTokenCount": usage.input_tokens + usage.output_tokens,
    }
    return {**event, "usageMetadata": counts}


def entry_json(entry: LedgerEntry) -> Json:
    found: Json = {"callId": entry.call_id, "name": entry.name, "state": str(entry.state), "effect": str(entry.effect)}
    if entry.still_running:
        found["stillRunning"] = True
    return found


def notices(message: Message) -> str:
    return " ".join(part.text for part in message.parts if isinstance(part, Notice))


def stored_events(
    scene: Scene, first: int, messages: Iterable[Message], at: float, *, questions: Sequence[str] = ()
) -> list[Json]:
    """The events of a run's part of a stored conversation."""
    return [
        message_event(scene, place, message, at, questions=questions) for place, message in enumerate(messages, first)
    ]


def _event(scene: Scene, place: int, author: str, at: float) -> Json:
    event: Json = {
        "id": scene.event_id(place),
        "invocationId": scene.invocation,
        "author": author,
        "timestamp": at,
        "actions": {
            "stateDelta": {},
            "artifactDelta": {},
            "requestedAuthConfigs": {},
            "requestedToolConfirmations": {},
        },
        "nodeInfo": {"path": scene.agent},
    }
    if scene.metadata:
        event["customMetadata"] = dict(scene.metadata)
    return event


def _part(part: Part) -> Json | None:
    match part:
        case Text(text):
            return {"text": text}
        case Reasoning(text):
            return {"text": text, "thought": True}
        case ToolCall(id, name, args):
            return {"functionCall": {"id": id, "name": name, "args": dict(args)}}
        case ToolResult(call_id, name, content):
            key = "error" if part.is_error else "result"
            return {"functionResponse": {"id": call_id, "name": name, "response": {key: content, "state": part.state}}}
        case Image(data, media_type, url) | File(data, media_type, _, url):
            if data is None:
                return {"fileData": {"fileUri": url, "mimeType": media_type}}
            return {"inlineData": {"mimeType": media_type, "data": base64.b64encode(data).decode()}}
        case Notice():
            return None

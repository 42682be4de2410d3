"""The events of a feed, and sessions, in ADK's JSON. Pure, so that live events and stored ones cannot differ.

One `MessageEvent` is one ADK event. Notices are not words of the model: they become `errorMessage`. What is Safepoint's
own goes into `customMetadata`, under names that begin with `safepoint`.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, TypeAlias

from safepoint.agent.checkpoint import Question
from safepoint.agent.ledger import LedgerEntry
from safepoint.agent.result import StopReason
from safepoint.history.parts import File, Image, Notice, Part, Reasoning, Text, ToolCall, ToolResult
from safepoint.protocols.json_text import as_text
from safepoint.serving.events import Failure, FeedEvent, MessageEvent, Origin, PartialText, RunEnd, ToolOutput, Turn
from safepoint.serving.run_lookup import SessionView
from safepoint.serving.shared_state import plain

Json: TypeAlias = dict[str, Any]  # Any: JSON

ABORTED = "INVOCATION_ABORTED"
# ADK's name for a question to a person that no tool call of the conversation stands for.
REQUEST_INPUT = "adk_request_input"


def encode(event: FeedEvent) -> str:
    """One event, as text for a stream. An `Encoder`: see `Frame.encoded`."""
    return as_text(event_json(event))


def encode_live(event: FeedEvent) -> str:
    """As `encode`, for a socket that stays open: the last event of a run says that the turn is complete."""
    found = event_json(event)
    if isinstance(event, MessageEvent) and event.end is not None:
        found["turnComplete"] = True
    return as_text(found)


def event_json(event: FeedEvent) -> Json:
    found = _envelope(event)
    match event:
        case MessageEvent():
            _add_message(found, event)
        case PartialText(text=text, thought=thought):
            part: Json = {"text": text, "thought": True} if thought else {"text": text}
            found |= {"content": {"role": "model", "parts": [part]}, "partial": True}
        case ToolOutput(call_id=call_id, tool=tool, text=text):
            # A response that will continue, as Gemini's API has it.
            response: Json = {"id": call_id, "name": tool, "response": {"output": text}, "willContinue": True}
            found |= {"content": {"role": "user", "parts": [{"functionResponse": response}]}, "partial": True}
    return found


def invocation_of(turn: Turn) -> str:
    """ADK's name for a turn. A change of state by a client belongs to no run, and keeps its own id."""
    return turn.run_id if turn.origin is Origin.CLIENT else f"e-{turn.run_id.removeprefix('run_')}"


def run_of(invocation: str) -> str:
    """The run that began the turn of that invocation."""
    return f"run_{invocation.removeprefix('e-')}"


def failure_json(failure: Failure) -> Json:
    """ADK's own last frame after a failure."""
    details = {"error_type": failure.kind, "error_message": failure.text, "timestamp": failure.at}
    return {"error": f"{failure.kind}: {failure.text}", "error_details": details}


def encode_failure(failure: Failure) -> str:
    return as_text(failure_json(failure))


def entry_json(entry: LedgerEntry) -> Json:
    found: Json = {"callId": entry.call_id, "name": entry.name, "state": str(entry.state), "effect": str(entry.effect)}
    if entry.still_running:
        found["stillRunning"] = True
    return found


def _envelope(event: FeedEvent) -> Json:
    turn = event.turn
    found: Json = {
        "id": event.id,
        "invocationId": invocation_of(turn),
        "author": event.author,
        "timestamp": event.at,
        "actions": {
            "stateDelta": {},
            "artifactDelta": {},
            "requestedAuthConfigs": {},
            "requestedToolConfirmations": {},
        },
        "nodeInfo": {"path": event.path},
    }
    if turn.metadata:
        found["customMetadata"] = dict(turn.metadata)
    elif turn.origin is Origin.IMPORT:
        found["customMetadata"] = {"safepointImported": True}
    return found


def _add_message(found: Json, event: MessageEvent) -> None:
    if event.state:
        found["actions"]["stateDelta"] = dict(event.state)
    message = event.message
    if message is not None:
        parts = [part for each in message.parts if (part := _part(each)) is not None]
        if parts:
            found["content"] = {"role": "model" if message.role == "assistant" else "user", "parts": parts}
        if message.tool_calls:
            found["longRunningToolIds"] = list(event.waiting_calls)
        if any(isinstance(part, Text) and part.incomplete for part in message.parts):
            found["interrupted"] = True
    if event.end is not None:
        _add_end(found, event.end)


def _add_end(found: Json, end: RunEnd) -> None:
    metadata: Json = {}
    if end.questions:
        metadata["safepointQuestions"] = [_question(each) for each in end.questions]
        if end.inner_questions:
            _add_inner_questions(found, end.inner_questions)
    if not end.is_answer or end.failure is not None:
        cancelled = end.stop_reason == StopReason.CANCELLED
        code, text = ABORTED if cancelled else end.stop_reason.upper(), end.text
        if end.failure is not None:
            code, text = end.failure.kind, end.failure.text
        found |= {"errorCode": code, "errorMessage": text}
        metadata["safepointLedger"] = [entry_json(entry) for entry in end.ledger]
    if metadata:
        found["customMetadata"] = found.get("customMetadata", {}) | metadata
    if end.usage is not None:
        into, out = end.usage.input_tokens, end.usage.output_tokens
        found["usageMetadata"] = {
            "promptTokenCount": into,
            "candidatesTokenCount": out,
            "totalTokenCount": into + out,
        }


def _add_inner_questions(found: Json, questions: Sequence[Question]) -> None:
    """A question of a run inside belongs to no call of the conversation: it becomes the call that ADK has for it."""
    asked: list[Json] = [
        {"functionCall": {"id": each.id, "name": REQUEST_INPUT, "args": _question(each)}} for each in questions
    ]
    said: list[Json] = found.get("content", {}).get("parts", [])
    found["content"] = {"role": "model", "parts": [*said, *asked]}
    found["longRunningToolIds"] = sorted(each.id for each in questions)


def _question(question: Question) -> Json:
    return {"id": question.id, "tool": question.tool, "payload": plain(question.payload), "kind": question.kind}


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
    """A call that waits has not failed: ADK's word for it is pending."""
    if result.state == "waiting":
        return {"status": "pending", "state": result.state}
    return {"error" if result.is_error else "result": result.content, "state": result.state}


def session_json(view: SessionView) -> Json:
    return {
        "id": view.key.session,
        "appName": view.key.app,
        "userId": view.key.user,
        "state": dict(view.state),
        "events": [event_json(event) for event in view.events],
        "lastUpdateTime": view.updated_at,
    }

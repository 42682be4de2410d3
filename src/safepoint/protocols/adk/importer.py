"""Imports a conversation: ADK's events that a client sends with a new session, checked, as messages. Pure.

An import brings words and nothing more: no ledger, no checkpoint, nothing that could go on. Events that claim more
(actions, calls that wait, ADK's own calls) are refused, and so is a conversation that no provider would accept.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from safepoint.errors import HistoryError
from safepoint.history.check import check_history, part_rank
from safepoint.history.parts import Message, Part, Reasoning, Role, Text, ToolCall, ToolResult
from safepoint.protocols.adk.requests import ImportedEvent, WirePart

_RESERVED = "adk_request_"


class BadImport(ValueError):
    """Answered with 400: an event that can't be part of a new session."""


def imported_messages(events: Iterable[Mapping[str, Any]]) -> list[Message]:  # Any: JSON
    """Raises `BadImport`."""
    messages: list[Message] = []
    for number, given in enumerate(events):
        message = _message(number, given)
        if message is not None:
            _add(messages, message)
    try:
        check_history(messages)
    except HistoryError as error:
        raise BadImport(f"Session initialization events are no conversation: {error}") from error
    return messages


def _message(number: int, given: Mapping[str, Any]) -> Message | None:  # Any: JSON
    try:
        event = ImportedEvent.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(each) for each in first["loc"])
        raise BadImport(f"Session initialization event {number} can't be read: {where}: {first['msg']}") from error
    if event.long_running_tool_ids:
        raise _refused(number, "long-running tool IDs")
    if any(event.actions.values()):
        raise _refused(number, "event actions")
    if event.partial:
        raise _refused(number, "a partial message")
    content = event.content
    if content is None or not content.parts:
        return None
    if any(name.startswith(_RESERVED) for part in content.parts for name in part.names):
        raise _refused(number, "ADK protocol function calls")
    role = _role(number, content.role or ("user" if event.author == "user" else "model"), content.parts)
    parts = [part for each in content.parts if (part := _part(number, each, role)) is not None]
    if role == "assistant":
        parts.sort(key=part_rank)
    return Message(role, tuple(parts)) if parts else None


def _refused(number: int, what: str) -> BadImport:
    return BadImport(f"Session initialization event {number} cannot include {what}.")


def _role(number: int, role: str, parts: Sequence[WirePart]) -> Role:
    if role not in ("user", "model"):
        raise BadImport(f"Session initialization event {number} has the role {role[:40]!r}: write 'user' or 'model'.")
    results = [part.function_response is not None for part in parts]
    if any(results) and not all(results):
        raise _refused(number, "function responses together with other parts")
    if any(results):
        return "tool"
    return "user" if role == "user" else "assistant"


def _part(number: int, part: WirePart, role: Role) -> Part | None:
    if part.function_response is not None:
        given = part.function_response
        if given.name is None:
            raise BadImport(f"Session initialization event {number} has a function response without a name.")
        return ToolResult(
            given.id, given.name, _response_text(given.response), "failed" if _is_error(given.response) else "finished"
        )
    if part.function_call is not None:
        if role == "user":
            raise _refused(number, "a function call of the user")
        call = part.function_call
        return ToolCall(call.id, call.name, call.args or {})
    if part.text is not None:
        return Reasoning(part.text) if part.thought else Text(part.text)
    blob = part.inline_data or part.file_data
    if blob is not None and role == "assistant":
        raise _refused(number, "data from the model")
    return None if blob is None else blob.to_part()


def _is_error(response: object) -> bool:
    return isinstance(response, Mapping) and "error" in response


def _response_text(response: object) -> str:
    """Never blank, because no provider takes a blank result."""
    match response:
        case {"result": str(text)} | {"error": str(text)} if text.strip():
            return text
        case _:
            return json.dumps(response)


def _add(messages: list[Message], message: Message) -> None:
    """Two in a row by one speaker become one, as providers want it."""
    before = messages[-1] if messages else None
    if before is None or before.role != message.role or before.role == "tool" or before.tool_calls:
        messages.append(message)
        return
    parts = [*before.parts, *message.parts]
    messages[-1] = Message(message.role, tuple(sorted(parts, key=part_rank) if message.role == "assistant" else parts))

"""Messages on spans, in the form of OpenTelemetry's conventions. Off by default.

`OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT` switches it on, with `span_only`, `span_and_event` or `true`. Long
texts are cut, and of a long conversation the newest messages are kept: a span has to fit through an exporter.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias, cast

from safepoint.agent.model import ModelRequest
from safepoint.history.parts import File, Image, Message, Part, Reasoning, ToolCall, ToolResult

CAPTURE: Final = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
LONGEST_TEXT: Final = 4_096
"""Characters of one part that are kept."""
LONGEST_ATTRIBUTE: Final = 65_536
"""Characters of one attribute that are kept, in whole messages."""

Json: TypeAlias = dict[str, Any]  # Any: JSON


def is_captured(environment: Mapping[str, str]) -> bool:
    return environment.get(CAPTURE, "").strip().lower() in ("span_only", "span_and_event", "true")


def request_content(request: ModelRequest) -> dict[str, str]:
    """The attributes for the request to the model."""
    attributes = {"gen_ai.input.messages": messages_json(request.messages)}
    if request.instructions:
        attributes["gen_ai.system_instructions"] = _dumps([{"type": "text", "content": cut(request.instructions)}])
    if request.tools:
        tools = [
            {
                "type": "function",
                "name": tool.name,
                "description": cut(tool.description),
                "parameters": _plain(tool.parameters),
            }
            for tool in request.tools
        ]
        attributes["gen_ai.tool.definitions"] = _dumps(tools)
    return attributes


def messages_json(messages: Sequence[Message]) -> str:
    """The newest messages that fit, oldest first."""
    kept: list[str] = []
    room = LONGEST_ATTRIBUTE
    for message in reversed(messages):
        parts = [_part(part) for part in message.parts]
        written = _dumps({"role": message.role, "parts": parts})
        room -= len(written)
        if room < 0 and kept:
            break
        kept.append(written)
    return f"[{','.join(reversed(kept))}]"


def _part(part: Part) -> Json:
    match part:
        case ToolCall():
            return {"type": "tool_call", "id": part.id, "name": part.name, "arguments": _plain(part.args)}
        case ToolResult():
            return {"type": "tool_call_response", "id": part.call_id, "response": cut(part.content)}
        case Image() | File():
            about: Json = {"mime_type": part.media_type, "modality": "image" if part.kind == "image" else "document"}
            # Bytes are left out: they would be most of the span.
            return {"type": "uri", **about, "uri": part.url} if part.url is not None else {"type": "blob", **about}
        case Reasoning():
            return {"type": "reasoning", "content": cut(part.text)}
        case _:
            return {"type": "text", "content": cut(part.text)}


def arguments_json(args: Mapping[str, Any]) -> str:  # Any: decoded JSON
    return cut(_dumps(_plain(args)))


def cut(text: str) -> str:
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}…"


def _plain(value: object) -> Any:  # Any: JSON
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in cast("Mapping[object, object]", value).items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in cast("list[object]", value)]
    return cut(value) if isinstance(value, str) else value


def _dumps(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=repr)

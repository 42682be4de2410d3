"""Messages and values as JSON and back, field by field: the form in which stores and checkpoints keep them.

Reading is strict: an unknown kind or a missing field raises. Writing is lenient in one place only: a value of the
user's own that has no JSON form is replaced by `Lost`, with its description. Text is kept whole, also lone surrogates.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from safepoint.history.parts import (
    Attachment,
    File,
    Image,
    Message,
    Notice,
    Part,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
)
from safepoint.history.rendering import render_result

Json: TypeAlias = dict[str, Any]  # Any: decoded JSON

_BYTES, _LOST = "$bytes", "$lost"
_DEEPEST = 60
_LONGEST_INT = 4096  # bits; longer ones are more digits than the interpreter reads back


@dataclass(frozen=True, slots=True)
class Lost:
    """Stands for a value that could not be encoded."""

    description: str


def encode_value(value: object) -> Any:  # Any: JSON
    """The value in JSON. Tuples come back as lists; what has no JSON form comes back as `Lost`, and costs only itself.

    A key that begins like one of our own marks gets one more `$`, so that it can't be taken for one.
    """
    return _encode(value, ())


def encode_values(values: Mapping[str, Any]) -> Json:  # Any: values of the user's own
    """A mapping whose keys are kept whatever its values are."""
    return {_escaped(str(key)): encode_value(value) for key, value in dict(values).items()}


def _encode(value: object, above: tuple[int, ...]) -> Any:  # Any: JSON
    """`above`: the containers around it, so that one inside itself is found."""
    original = value  # matching narrows `value` to types that say less
    try:
        match value:
            case None | bool() | str():
                return value
            case int() if value.bit_length() <= _LONGEST_INT:
                return value
            case float() if math.isfinite(value):
                return value
            case bytes():
                return {_BYTES: base64.b64encode(value).decode()}
            case Lost(description):
                return {_LOST: description}
            case list() | tuple() | dict() if id(original) not in above and len(above) < _DEEPEST:
                return _encode_items(original, (*above, id(original)))
            case _:
                pass
    except Exception:  # a container of the user's own may raise anything
        pass
    return {_LOST: render_result(original).text[:500]}


def _encode_items(value: object, above: tuple[int, ...]) -> Any:  # Any: JSON
    if not isinstance(value, dict):
        return [_encode(item, above) for item in cast("list[object]", value)]
    items = cast("dict[object, object]", value)
    if any(not isinstance(key, str) for key in items):
        raise TypeError("a key is no str")
    return {_escaped(str(key)): _encode(item, above) for key, item in items.items()}


def _escaped(key: str) -> str:
    return f"${key}" if key.startswith("$") else key


def decode_value(value: Any) -> Any:  # Any: JSON
    if isinstance(value, list):
        return [decode_value(item) for item in value]  # pyright: ignore[reportUnknownVariableType]  # decoded JSON
    if isinstance(value, dict):
        items = cast("Json", value)
        if _BYTES in items:
            return base64.b64decode(items[_BYTES], validate=True)
        if _LOST in items:
            return Lost(str(items[_LOST]))
        return {key[1:] if key.startswith("$") else key: decode_value(item) for key, item in items.items()}
    return value


def encode_message(message: Message) -> Json:
    said: Json = {"role": message.role, "parts": [_part(part) for part in message.parts]}
    return said if message.author is None else {**said, "author": message.author}


def decode_message(data: Json) -> Message:
    role = data["role"]
    if role not in ("user", "assistant", "tool"):
        raise ValueError(f"no role {role!r}")
    author = data.get("author")
    if not (author is None or isinstance(author, str)):
        raise ValueError(f"no author {author!r}")
    return Message(role, tuple(_read_part(part) for part in data["parts"]), author)


def encode_attachments(parts: Sequence[Attachment]) -> Json:
    """For the JSON of what has them: a key of their own, or none."""
    return {"parts": [_part(part) for part in parts]} if parts else {}


def decode_attachments(data: Json) -> tuple[Attachment, ...]:
    """From the JSON of what may have them."""
    parts = tuple(_read_part(part) for part in data.get("parts", ()))
    if not all(isinstance(part, Image | File) for part in parts):
        raise ValueError("a result's parts are pictures and files")
    return cast("tuple[Attachment, ...]", parts)


def _part(part: Part) -> Json:
    match part:
        case Text(text, incomplete):
            return {"kind": "text", "text": text, "incomplete": incomplete}
        case Image(data, media_type, url):
            return {"kind": "image", "data": encode_value(data), "media_type": media_type, "url": url}
        case File(data, media_type, name, url):
            return {"kind": "file", "data": encode_value(data), "media_type": media_type, "name": name, "url": url}
        case Reasoning(text, signature):
            return {"kind": "reasoning", "text": text, "signature": signature}
        case ToolCall(id, name, args, invalid):
            return {"kind": "tool_call", "id": id, "name": name, "args": encode_values(args), "invalid": invalid}
        case ToolResult(call_id, name, content, state, parts):
            told = {"kind": "tool_result", "call_id": call_id, "name": name, "content": content, "state": state}
            return told | encode_attachments(parts)
        case Notice(text):
            return {"kind": "notice", "text": text}


def _read_part(data: Json) -> Part:
    match data["kind"]:
        case "text":
            return Text(data["text"], data["incomplete"])
        case "image":
            return Image(decode_value(data["data"]), data["media_type"], data["url"])
        case "file":
            return File(decode_value(data["data"]), data["media_type"], data["name"], data["url"])
        case "reasoning":
            return Reasoning(data["text"], data["signature"])
        case "tool_call":
            return ToolCall(data["id"], data["name"], decode_value(data["args"]), data["invalid"])
        case "tool_result":
            return ToolResult(data["call_id"], data["name"], data["content"], data["state"], decode_attachments(data))
        case "notice":
            return Notice(data["text"])
        case kind:
            raise ValueError(f"no part of the kind {kind!r}")

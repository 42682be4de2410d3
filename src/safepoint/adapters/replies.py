"""A model's reply in the words of Safepoint, made from what any framework has of it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

from safepoint.history.check import TOOL_NAME
from safepoint.history.parts import Message, Notice, Part, Reasoning, Text, ToolCall
from safepoint.history.wellformed import well_formed
from safepoint.tools.json_args import decode_arguments

_ILLEGAL = re.compile(r"[^A-Za-z0-9_-]")


def reply(text: str, calls: Iterable[ToolCall] = (), reasoning: Iterable[Reasoning] = ()) -> Message | None:
    """The message; None if there is nothing in it that a conversation can hold."""
    words = (Text(well_formed(text)),) if text.strip() else ()
    spoken: tuple[Part, ...] = (*words, *calls)
    return Message("assistant", (*reasoning, *spoken)) if spoken else None


def call(id: str, name: str, args: object) -> ToolCall:
    """A call whose arguments are JSON, or decoded already."""
    given: Mapping[str, Any] = {}  # Any: decoded JSON
    invalid: str | None = None
    if isinstance(args, Mapping):
        given, invalid = decode_arguments(json.dumps(args, default=str))
    elif isinstance(args, str) or args is None:
        given, invalid = decode_arguments(args or "")
    else:
        invalid = f"its arguments are no JSON object: {args!r}"
    if not TOOL_NAME.fullmatch(name):
        name = _ILLEGAL.sub("_", name)[:64] or "_"
    return ToolCall(id, name, given, invalid)


def spoken(message: Message) -> str:
    """The words of an assistant message with its notices, for a framework that has no notices."""
    notices = [part.text for part in message.parts if isinstance(part, Notice)]
    return "\n\n".join(filter(None, [message.text, *notices]))


def as_dict(value: object) -> dict[str, Any]:  # Any: a framework's own
    """The value, if it is a dict; otherwise an empty one."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def as_list(value: object) -> list[Any]:  # Any: as above
    """The value, if it is a list; otherwise an empty one."""
    return list[Any](value) if isinstance(value, list) else []  # pyright: ignore[reportUnknownArgumentType]  # of Any

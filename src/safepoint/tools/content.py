"""A tool's return value in the form of a result: text, and the images and files that belong to it.

A tool returns an `Image`, a `File`, or a list of these and text. The text names each image and file where it stood, so
that the order is kept even if a provider takes them in another place. Any other value becomes text alone, as
`render_result` describes. A part that no conversation may hold (no bytes, no media type, too large) is described in its
place and left out: the tool has run, and one bad part must not spoil the conversation.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from safepoint._values import Value
from safepoint.history.check import part_fault
from safepoint.history.parts import Attachment, File, Image, Text
from safepoint.history.plain_text import clean
from safepoint.history.rendering import render_result

MAX_PART_BYTES = 20_000_000
"""The limit for all parts of one result together: no provider takes more in one request."""

_KINDS = (Text, Image, File)


class Content(Value, frozen=True):
    """`text` is never blank. `parts` are the images and files that it names, in their order."""

    text: str
    parts: tuple[Attachment, ...] = ()


def content_of(value: object) -> Content:
    """The content of a result. A tool may also return a `Content` itself."""
    # `isinstance` would read the value's `__class__`, which may raise.
    if issubclass(type(value), Content):
        return cast("Content", value)
    given = _listed(value)
    if given is None:
        return Content(render_result(value).text)
    parts: list[Attachment] = []
    room = MAX_PART_BYTES
    words: list[str] = []
    for part in given:
        if isinstance(part, str | Text):
            words.append(part if isinstance(part, str) else part.text)
            continue
        size = len(part.data or b"")
        fault = part_fault(part) or (f"it is larger than {MAX_PART_BYTES:,} bytes" if size > room else None)
        words.append(named(part, len(parts) + 1) if fault is None else f"[{part.kind} left out: {fault}]")
        if fault is None:
            room -= size
            parts.append(part)
    return Content(render_result("\n".join(words)).text, tuple(parts))


def named(part: Attachment, number: int) -> str:
    """The text that stands for the part of that number."""
    title = f"{part.name}, " if isinstance(part, File) and part.name else ""
    where = part.url if part.url is not None else f"{len(part.data or b''):,} bytes"
    return clean(f"[{part.kind} {number}: {title}{part.media_type}, {where}]")


def _listed(value: object) -> list[str | Text | Attachment] | None:
    """The parts, if it is one, or a list of them and text; None for any other value."""
    if issubclass(type(value), _KINDS):
        return [cast("Text | Attachment", value)]
    if type(value) not in (list, tuple):
        return None
    items = cast("list[object]", value)
    if not all(issubclass(type(item), (str, *_KINDS)) for item in items) or not any(_are_parts(items)):
        return None
    return cast("list[str | Text | Attachment]", list(items))


def _are_parts(items: list[object]) -> Iterator[bool]:
    return (issubclass(type(item), _KINDS) for item in items)

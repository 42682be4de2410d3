"""Reading JSON from outside: a value that does not have the expected type counts as missing.

A provider's stream is outside data. Its readers use these functions, so that garbage ends in `ModelMisbehaved` or is
ignored, and never raises an error that looks like a bug in Safepoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias, cast

from safepoint.errors import ModelMisbehaved

Loose: TypeAlias = Mapping[str, object]


def event_of(value: object) -> Loose:
    """An event of a stream, which is an object or nonsense."""
    if not isinstance(value, Mapping):
        raise ModelMisbehaved(f"the stream holds {value!r:.200}, which is no event")
    return cast("Loose", value)


def mapping(value: object) -> Loose:
    return cast("Loose", value) if isinstance(value, Mapping) else {}


def items(value: object) -> list[object]:
    return cast("list[object]", value) if isinstance(value, list) else []


def text(value: object) -> str:
    return value if isinstance(value, str) else ""


def number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None

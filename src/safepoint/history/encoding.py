"""The user's own values as JSON and back: arguments, state, the saved state of tools, people's answers.

Nothing is refused and nothing else is lost: a value that has no JSON form is replaced by `Lost`, with its description.
Bytes come back as bytes, and text is kept whole, also lone surrogates.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from safepoint.history.rendering import render_result

Json: TypeAlias = dict[str, Any]  # Any: decoded JSON

_BYTES, _LOST = "$bytes", "$lost"
_AS_THEY_ARE = frozenset({str, bool, type(None)})
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
    # Most arguments are these, and `match` takes ten times as long.
    return value if type(value) in _AS_THEY_ARE else _encode(value, ())


def encode_values(values: Mapping[str, Any]) -> Json:  # Any: values of the user's own
    """A mapping with all its keys, and each value encoded."""
    return {escape_key(str(key)): encode_value(value) for key, value in dict(values).items()}


def _encode(value: object, above: tuple[int, ...]) -> Any:  # Any: JSON
    """`above`: the containers around it, so that a cycle is found."""
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
    except Exception:  # a user's container may raise anything
        pass
    return {_LOST: render_result(original).text[:500]}


def _encode_items(value: object, above: tuple[int, ...]) -> Any:  # Any: JSON
    if not isinstance(value, dict):
        return [_encode(item, above) for item in cast("list[object]", value)]
    items = cast("dict[object, object]", value)
    if any(not isinstance(key, str) for key in items):
        raise TypeError("a key is no str")
    return {escape_key(str(key)): _encode(item, above) for key, item in items.items()}


def escape_key(key: str) -> str:
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

"""One JSON form for every event: an object with its `kind` and its fields, as `agent/events.py` declares them.

Two types have a form of their own. A safe point is the list of its places, with the names of `SafePoint`'s constants.
An error is the name of its type and its message; it is read back as a `RecordedError` with both, because a class is
never looked up by a name that came from outside. All other fields are read back as they were.
"""

from __future__ import annotations

from typing import Any, Final, cast

from safepoint._core.points import AFTER_STEP, Level, SafePoint
from safepoint.agent.events import Event
from safepoint.errors import RecordedError
from safepoint.history.json_codec import Codec
from safepoint.history.plain_text import clean

_AT_ONCE: Final = {"now": SafePoint.NOW, "force": SafePoint.FORCE}


def to_json(event: Event) -> str:
    """The event as a JSON object. `from_json` reads it."""
    return EVENT.encode(event).decode()


def from_json(data: str | bytes) -> Event:
    """The event that `to_json` wrote. Raises ValueError for anything else."""
    try:
        return EVENT.decode(data)
    except RecursionError:
        raise ValueError("this is no event: it nests too deeply") from None


def _encode(value: Any) -> Any:  # Any: JSON, of any value that a field may hold
    if isinstance(value, SafePoint):
        return sorted(map(str, value.places))
    if isinstance(value, RecordedError):
        return {"type": value.type, "message": value.message}
    if isinstance(value, BaseException):
        return {"type": type(value).__name__, "message": _message(value)}
    raise ValueError(f"an event with {value!r} has no JSON form")


def _message(error: BaseException) -> str:
    try:
        return clean(str.__str__(str(error)))
    except Exception as failure:  # a user's error may raise in `__str__`
        return f"(its message could not be read: {type(failure).__name__})"


def _decode(kind: type, data: Any) -> Any:
    if kind is SafePoint:
        return _safe_point(data)
    if kind is BaseException:
        if not (isinstance(data, dict) and isinstance(data.get("type"), str) and isinstance(data.get("message"), str)):  # pyright: ignore[reportUnknownMemberType]  # decoded JSON
            raise ValueError("an error is an object with a type and a message")
        return RecordedError(data["type"], data["message"])  # pyright: ignore[reportUnknownArgumentType]  # as above
    raise ValueError(f"no event has a {kind.__name__}")


def _safe_point(data: Any) -> SafePoint:
    if not (isinstance(data, list) and data and all(isinstance(place, str) for place in data)):  # pyright: ignore[reportUnknownVariableType]  # decoded JSON
        raise ValueError("a safe point is a list of places")
    places = cast("list[str]", data)
    if places[0] in _AT_ONCE:
        return _AT_ONCE[places[0]]
    # The test of `SafePoint.when` stays where it was written: what is read back has its name.
    return SafePoint(Level.SAFE, frozenset([each for place in places for each in _read_place(place)]))


def _read_place(place: str) -> frozenset[str]:
    return SafePoint.parse(place).places if place.startswith(AFTER_STEP) else frozenset({place})


def _schema(kind: type) -> dict[str, Any]:  # Any: JSON Schema
    if kind is SafePoint:
        return {"type": "array", "items": {"type": "string"}, "minItems": 1}
    text = {"type": "string"}
    return {"type": "object", "properties": {"type": text, "message": text}, "required": ["type", "message"]}


EVENT: Final[Codec[Event]] = Codec(Event, enc_hook=_encode, dec_hook=_decode, schema_hook=_schema)

"""What a tool returned or raised, as text for the model: true, bounded, never empty, always encodable.

A result is what the tool really gave back. So nothing is dropped in silence: text that was cut says so at its end,
and a value without a JSON form is described where it stands. Rendering never raises for an `Exception`: the tool has
already run, and losing its result because it cannot be shown would be a lie about what happened.

Cost: bounded by `MAX_RESULT_CHARS`, not by the size of the value. Measured on two quiet cores: 45 ms for a list of
ten million ints, 110 ms for a million small dicts. `bounded_json` names the exceptions: a pydantic model that holds
ten million ints took 340 ms.
"""

from __future__ import annotations

from collections.abc import Sized
from types import CoroutineType
from typing import cast

from safepoint._values import Value
from safepoint.history.plain_text import clean, cut

MAX_RESULT_CHARS = 200_000
MAX_ERROR_CHARS = 4_000

NO_RESULT = "done, no result"
EMPTY_RESULT = "(empty result)"

_TAIL_CHARS = 300
_GROUP_SHOWN = 5
_GROUP_DEPTH = 3


class Rendered(Value, frozen=True):
    """`text` goes to the model. `truncated`: it was cut. `note`: what in it is a description and not the value."""

    text: str
    truncated: bool = False
    note: str | None = None


def render_result(value: object) -> Rendered:
    """The text for what a tool returned. JSON for data, a string as it is, a description where neither is possible."""
    if value is None:
        return Rendered(NO_RESULT)
    try:
        if issubclass(type(value), str):  # isinstance would ask the value for its class, and it may raise
            text = str.__str__(cast(str, value))
            return _finish(cut(text, MAX_RESULT_CHARS), truncated=len(text) > MAX_RESULT_CHARS)
        return _render_json(value)
    except Exception as error:
        name, failure = type(value).__name__[:100], type(error).__name__[:100]
        return Rendered(
            clean(f"<{name}: the tool returned it, but it could not be shown: {failure}>"),
            note=clean(f"{name} could not be rendered: {failure}"),
        )


def refuse_coroutine(value: object) -> object:
    """Return the value; refuse a coroutine, which is a call that was never made and no result."""
    if not issubclass(type(value), CoroutineType):  # as above
        return value
    coroutine = cast("CoroutineType[object, object, object]", value)
    coroutine.close()
    raise TypeError(
        f"the tool returned {coroutine.__qualname__}() without awaiting it: write `return await …`; or, if that is the "
        "tool itself behind a decorator, write `async def` in the decorator too"
    )


def render_error(error: BaseException) -> str:
    """Type and message. The parts of an exception group are listed, since its own message names none of them."""
    return cut(_error_text(error, 0), MAX_ERROR_CHARS)


def _render_json(value: object) -> Rendered:
    # It knows paths and addresses, whose modules pydantic loads with the first tool.
    from safepoint.history.bounded_json import BoundedJson

    writer = BoundedJson(MAX_RESULT_CHARS)
    writer.write(value)
    text = writer.text
    note = None if writer.note is None else clean(writer.note)
    if writer.length <= MAX_RESULT_CHARS:
        return _finish(clean(text), truncated=False, note=note)
    room = MAX_RESULT_CHARS - _TAIL_CHARS
    more = "" if writer.complete else "at least "
    tail = f"\n[cut here: {more}{writer.length - room} more characters of this {_what(value)} were left out]"
    return _finish(clean(text[:room] + tail), truncated=True, note=note)


def _what(value: object) -> str:
    name = type(value).__name__[:100]
    if isinstance(value, list | tuple | dict | set | frozenset):
        return f"{name} of {len(cast(Sized, value))} items"
    return name


def _finish(text: str, *, truncated: bool, note: str | None = None) -> Rendered:
    return Rendered(text if text.strip() else EMPTY_RESULT, truncated, note)


def _error_text(error: BaseException, depth: int) -> str:
    name = type(error).__name__[:100] or "Exception"
    try:
        message = str.__str__(str(error)).strip()
    except BaseException as failure:  # errors are rendered where no exception may be raised
        message = f"(its message could not be read: {type(failure).__name__[:100]})"
    text = f"{name}: {message}" if message else name
    if not isinstance(error, BaseExceptionGroup) or depth == _GROUP_DEPTH:
        return text
    parts = cast("BaseExceptionGroup[BaseException]", error).exceptions
    shown = [_error_text(part, depth + 1) for part in parts[:_GROUP_SHOWN]]
    more = [f"and {len(parts) - len(shown)} more"] if len(parts) > len(shown) else []
    return f"{text}: {'; '.join(shown + more)}"

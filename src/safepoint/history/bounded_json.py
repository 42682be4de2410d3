"""Any Python value as JSON text of at most so many characters, without reading more of the value than that.

A list of ten million items costs no more than the part of it that is written and counted: beyond `limit` the text is
only counted, and at twice the limit the writer stops. What has no JSON form is described in its place and noted once
per kind: bytes, iterators (which are never consumed), references back to a container that is still open, nesting
beyond the limit, values that raise while they are read. NaN and Infinity become strings, never null.

A pydantic model is written by its own JSON serialiser. The serialiser, like a `__repr__`, does its whole work before
the limit applies: neither is bounded here. It never gets an iterator, which may be endless.
"""

from __future__ import annotations

import dataclasses
import json
from collections import UserString
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, MappingView, Sequence, Set
from enum import Enum
from math import isfinite, log10
from pathlib import PurePath
from typing import Any, TypeAlias, cast

from safepoint._values import Value

MAX_DEPTH = 64
MAX_REPR_CHARS = 20_000
MAX_NOTES = 5

_MAX_SUBSTITUTIONS = 8
_MAX_INT_BITS = 10_000  # about 3,000 digits: below the interpreter's own limit, and no number a model can use

_PLAIN_INT = 10**18
_CONSTANTS = {None: "null", True: "true", False: "false"}

_encode_string = json.JSONEncoder(ensure_ascii=False).encode


class _Words(Value, frozen=True):
    """A string to be written, or a description in place of a value."""

    text: str


class _Literal(Value, frozen=True):
    """JSON that is already encoded: a number."""

    text: str


class _Array(Value, frozen=True):
    items: Iterator[Any]  # Any: items of the user's container


class _Object(Value, frozen=True):
    pairs: Iterator[tuple[Any, Any]]


class _Instead(Value, frozen=True):
    """Another value that says the same: an enum's value, a model's dump."""

    value: Any


_Shape: TypeAlias = _Words | _Literal | _Array | _Object | _Instead


class _Enough(Exception):
    """Internal: stop counting."""


class BoundedJson:
    """Writes one value, once. A value that is itself a string stands there bare; inside a container it is quoted."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._pieces: list[str] = []
        # Characters written so far, of which only the first `limit` are kept.
        self._length = 0
        # The containers between the root and the value being written; a child that is one of them is a cycle.
        self._open: set[int] = set()
        self._notes: dict[str, None] = {}
        self._complete = True

    @property
    def text(self) -> str:
        return "".join(self._pieces)[: self._limit]

    @property
    def length(self) -> int:
        """How long the whole text would be; at least that, unless `complete`."""
        return self._length

    @property
    def complete(self) -> bool:
        """All of the value was seen, whether or not all of it was kept."""
        return self._complete

    @property
    def note(self) -> str | None:
        return "; ".join(self._notes) or None

    def write(self, value: object) -> None:
        try:
            self._write(value, 0)
        except _Enough:
            self._complete = False

    def _write(self, value: Any, depth: int, before: str = "") -> None:  # Any: a tool may return anything
        """Write `before` and the value: the plain types directly, since large results consist of them."""
        kind = type(cast(object, value))
        if kind is str and depth:
            self._put(before + self._quoted(value))
        elif value is None or kind is bool:
            self._put(before + _CONSTANTS[value])
        elif (kind is int and -_PLAIN_INT < value < _PLAIN_INT) or (kind is float and isfinite(value)):
            self._put(before + repr(value))
        elif kind is list or kind is tuple:
            self._write_container(value, _Array(iter(value)), depth, before)
        elif kind is dict:
            self._write_container(value, _Object(iter(value.items())), depth, before)
        else:
            self._write_shape(value, self._shape_of(value), depth, before)

    def _write_shape(self, value: object, shape: _Shape, depth: int, before: str) -> None:
        match self._resolve(shape):
            case _Words(text):
                self._put(before + (self._quoted(text) if depth else text))
            case _Literal(text):
                self._put(before + text)
            case _Instead():
                self._put(before + self._quoted(self._describe(value)))
            case (_Array() | _Object()) as container:
                self._write_container(value, container, depth, before)

    def _write_container(self, value: object, shape: _Array | _Object, depth: int, before: str) -> None:
        if id(value) in self._open:
            self._note("a reference back to a container it is in was not followed")
            self._put(before + self._quoted(f"<the same {_type_name(value)} again>"))
            return
        if depth >= MAX_DEPTH:
            self._note(f"what is nested more than {MAX_DEPTH} levels deep was left out")
            self._put(before + self._quoted(f"<{_type_name(value)}: nested too deeply>"))
            return
        self._open.add(id(value))
        if isinstance(shape, _Array):
            self._put(before + "[")
            self._write_items(shape.items, depth + 1)
            self._put("]")
        else:
            self._put(before + "{")
            self._write_pairs(shape.pairs, depth + 1)
            self._put("}")
        self._open.discard(id(value))

    def _write_items(self, items: Iterator[Any], depth: int) -> None:  # Any: see _Array
        comma = ""
        while True:
            try:
                item = next(items)
            except StopIteration:
                return
            except Exception as error:
                self._put(comma + self._quoted(self._unreadable("the rest", error)))
                return
            self._write(item, depth, comma)
            comma = ","

    def _write_pairs(self, pairs: Iterator[tuple[Any, Any]], depth: int) -> None:  # Any: see _Object
        comma = ""
        while True:
            try:
                key, value = next(pairs)
            except StopIteration:
                return
            except Exception as error:
                self._put(f'{comma}"...":{self._quoted(self._unreadable("the rest", error))}')
                return
            self._write(value, depth, f"{comma}{self._quoted(self._key_text(key))}:")
            comma = ","

    def _quoted(self, text: str) -> str:
        countable = 2 * self._limit - self._length
        return _encode_string(text if len(text) <= countable else text[: countable + 1])

    def _put(self, piece: str) -> None:
        if self._length < self._limit:
            self._pieces.append(piece)
        self._length += len(piece)
        if self._length > 2 * self._limit:
            raise _Enough

    def _key_text(self, key: object) -> str:
        if type(key) is str:
            return key
        shape = self._resolve(self._shape_of(key))
        return shape.text if isinstance(shape, _Words | _Literal) else self._describe(key)

    def _resolve(self, shape: _Shape) -> _Shape:
        for _ in range(_MAX_SUBSTITUTIONS):
            if not isinstance(shape, _Instead):
                break
            shape = self._shape_of(shape.value)
        return shape

    def _shape_of(self, value: Any) -> _Shape:  # Any: a tool may return anything
        try:
            return self._scalar(value) or self._container(value) or self._special(value)
        except Exception:
            return _Words(self._describe(value))

    def _scalar(self, value: Any) -> _Shape | None:
        if isinstance(value, Enum):
            return _Instead(value.value)
        if isinstance(value, str):
            return _Words(str.__str__(value))
        if value is None or isinstance(value, bool):
            return _Literal(_CONSTANTS[value])
        if isinstance(value, int):
            bits = int.bit_length(value)
            if bits <= _MAX_INT_BITS:
                return _Literal(int.__repr__(value))
            self._note("a number with too many digits was described")
            return _Words(f"<a whole number with about {int(bits * log10(2))} digits>")
        if isinstance(value, float):
            digits = float.__repr__(value)
            return _Literal(digits) if isfinite(value) else _Words(_NOT_FINITE[digits])
        if isinstance(value, bytes | bytearray | memoryview):
            self._note("bytes were described, not shown")
            size = memoryview(cast(bytes, value)).nbytes
            return _Words(f"<{_type_name(cast(object, value))}: {size} bytes, not shown>")
        return None

    def _container(self, value: Any) -> _Shape | None:
        serializer = getattr(type(cast(object, value)), "__pydantic_serializer__", None)
        if serializer is not None:
            return _Instead(self._dump(value, serializer))
        if isinstance(value, Mapping):
            return _Object(iter(cast("dict[Any, Any]", value).items()))
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return _Object((field.name, getattr(value, field.name)) for field in dataclasses.fields(value))
        if isinstance(value, tuple) and hasattr(cast(object, value), "_asdict"):
            return _Object(iter(cast(Any, value)._asdict().items()))  # Any: a named tuple has no common base
        if isinstance(value, UserString | PurePath):
            return _Words(str(value))
        if isinstance(value, Sequence | Set | MappingView):
            return _Array(iter(cast("Set[Any]", value)))
        return None

    def _special(self, value: Any) -> _Shape:
        if isinstance(value, Iterator | AsyncIterator | Coroutine):
            return _Words(self._not_consumed(cast(object, value)))
        from pydantic_core import to_jsonable_python  # loaded for values of unusual types, and not with the package

        try:
            plain: Any = to_jsonable_python(value)  # Any: some JSON
        except Exception:
            return _Words(self._describe(value))
        return _Instead(plain)

    def _not_consumed(self, value: object) -> str:
        self._note("an iterator or coroutine was described, not consumed; return a list instead")
        return f"<{_type_name(value)}: not consumed>"

    def _dump(self, value: Any, serializer: Any) -> Any:  # Any: pydantic's serialiser is found by its name
        """Use only the model's own serialiser: it may hide what the attributes and the repr would show."""
        try:
            if not _holds_an_iterator(value, set()):
                return serializer.to_python(value, mode="json", warnings=False, fallback=self._describe)
        except Exception:
            pass
        return self._dump_by_field(value, serializer)

    def _dump_by_field(self, value: Any, serializer: Any) -> dict[str, Any]:
        """Write field by field, so that one bad field, such as non-UTF-8 bytes or an iterator, keeps the others."""
        kind = cast(Any, type(cast(object, value)))  # Any: models and pydantic dataclasses have no common base
        shown: dict[str, Any] = {}  # Any: some JSON
        for name in (*kind.__pydantic_fields__, *kind.__pydantic_decorators__.computed_fields):
            try:
                if _holds_an_iterator(getattr(value, name), set()):
                    if name not in kind.__pydantic_fields__ or not kind.__pydantic_fields__[name].exclude:
                        shown[name] = self._not_consumed(getattr(value, name))
                    continue
                part = serializer.to_python(value, mode="json", include={name}, warnings=False, fallback=self._describe)
                shown.update(part)
            except Exception as error:
                shown[name] = self._unreadable(f"this {_type_name(getattr(value, name, None))}", error)
        return shown

    def _describe(self, value: object) -> str:
        """The value's own repr, bounded; or, if that raises, its type."""
        name = _type_name(value)
        try:
            text = repr(value)
            if type(text) is not str:
                text = str.__str__(text)
        except Exception as error:
            return self._unreadable(name, error)
        self._note(f"{name} has no JSON form and is shown as its repr")
        if len(text) <= MAX_REPR_CHARS:
            return text
        self._note(f"the repr of {name} was cut")
        return f"{text[:MAX_REPR_CHARS]}... <{len(text) - MAX_REPR_CHARS} more characters of this repr were left out>"

    def _unreadable(self, what: str, error: Exception) -> str:
        self._note(f"{what} could not be read: it raised {_type_name(error)}")
        return f"<{what} could not be read: it raised {_type_name(error)}>"

    def _note(self, note: str) -> None:
        if len(self._notes) < MAX_NOTES:
            self._notes[note[:200]] = None


def _holds_an_iterator(value: Any, seen: set[int]) -> bool:  # Any: a tool may return anything
    """Whether a serialiser would come across one: in the value itself, its items, or the fields of a model."""
    if id(value) in seen or isinstance(value, str | bytes | bytearray | int | float | None):
        return False
    seen.add(id(value))
    if isinstance(value, Iterator | AsyncIterator | Coroutine):
        return True
    inner: Any = ()
    if isinstance(value, Enum):
        inner = (value.value,)
    elif isinstance(value, dict):
        inner = value.values()  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]  # as above
    elif isinstance(value, list | tuple | set | frozenset):
        inner = cast("list[Any]", value)
    elif dataclasses.is_dataclass(value) or hasattr(cast(object, value), "__pydantic_serializer__"):
        inner = vars(value).values() if hasattr(value, "__dict__") else ()
    return any(_holds_an_iterator(each, seen) for each in inner)


_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def _type_name(value: object) -> str:
    return type(value).__name__[:100]

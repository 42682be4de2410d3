"""How an item is written: by the user's own functions, by pydantic, or as plain JSON.

The types that have a codec are known when an item is pushed. Whether one value can be written is known only after
trying, which happens off the event loop unless it is certain to be quick.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast, get_origin

from pydantic import TypeAdapter

from safepoint.errors import StoreError
from safepoint.history.rendering import render_error

T = TypeVar("T")
KindT = TypeVar("KindT")

# Types that JSON restores unchanged if it restores their content. A tuple would come back as a list.
_JSON = (str, int, float, list, dict, type(None))
_SHORT = 2_000


@dataclass(frozen=True, slots=True)
class ItemCodec(Generic[T]):
    """How items are written: `ItemCodec(encode, decode)` with functions to and from str, or `ItemCodec.of(Order)`.

    `kind`: the types that it can write, if known; an item of another type is refused when it is pushed.
    """

    encode: Callable[[T], str]
    decode: Callable[[str], T]
    kind: type | tuple[type, ...] | None = None

    @staticmethod
    def of(kind: type[KindT]) -> ItemCodec[KindT]:
        """For a pydantic model, a dataclass, or any other type that pydantic can write and read."""
        adapter = TypeAdapter(kind)
        given: object = kind  # pydantic also takes `list[int]` and the like, which `isinstance` does not
        known = cast("type", given) if inspect.isclass(given) and get_origin(given) is None else None
        return ItemCodec(lambda item: adapter.dump_json(item, warnings="error").decode(), adapter.validate_json, known)

    @staticmethod
    def plain() -> ItemCodec[Any]:  # Any: values that JSON restores
        """For text, and for values that JSON restores unchanged."""
        return ItemCodec(_to_json, json.loads, _JSON)

    def refusal(self, value: object) -> StoreError | None:
        """Why an item of that type cannot be stored; None if it can, or if only trying tells."""
        if self.kind is None or isinstance(value, self.kind):
            return None
        name = type(value).__name__
        return StoreError(f"an item of type {name} has no codec, so it can't be stored: {_hint(self, name)}")

    def is_quick(self, value: object) -> bool:
        """Whether writing this value is certain to take only microseconds."""
        if self.encode is not _to_json:
            return False
        return isinstance(value, int | float | None) or (isinstance(value, str) and len(value) <= _SHORT)

    def is_quick_to_read(self, text: str) -> bool:
        """As `is_quick`, of reading this text."""
        return self.decode is json.loads and len(text) <= _SHORT


def _hint(codec: ItemCodec[Any], name: str) -> str:  # Any: of items of any type
    if codec.encode is _to_json:
        return f"write TurnLoop(…, codec=ItemCodec.of({name}))"
    return "push what the codec of the loop was made for, or give the loop another codec"


def write_item(codec: ItemCodec[T], value: T) -> str:
    """The text of an item. Raises `StoreError`."""
    try:
        text = codec.encode(value)
        if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # untyped callers
            raise TypeError(f"encode returned {type(text).__name__}, not str")
    except Exception as error:  # the user's codec may raise anything
        raise StoreError(f"the item {value!r} can't be saved: {render_error(error)}") from error
    return text


def _to_json(value: object) -> str:
    try:
        text = json.dumps(value, allow_nan=False)
        same: bool = isinstance(value, str) or json.loads(text) == value
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{error}: write TurnLoop(…, codec=ItemCodec.of(…))") from error
    if not same:
        raise ValueError("JSON does not give it back as it was: write TurnLoop(…, codec=ItemCodec.of(…))")
    return text

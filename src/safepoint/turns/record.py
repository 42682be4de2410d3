"""A loop's record as bytes: one line that names format, version and digest, then JSON. No pickle.

The record is the truth about a loop at one moment: the items that wait or are being dealt with, the turn that can go
on, the conversation so far. Reading is strict: damaged bytes, a later version or an item that its codec refuses is a
`StoreCorrupt`, and the bytes stay what they are. Writing loses nothing but an item that has no form: it is left out and
named in the error, and the rest is kept.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter

from safepoint.agent.checkpoint import Checkpoint
from safepoint.agent.codec import digest
from safepoint.errors import StoreCorrupt, StoreError
from safepoint.history.encoding import Json, decode_message, encode_message
from safepoint.history.parts import Message
from safepoint.tools.rendering import render_error
from safepoint.turns.items import Item

T = TypeVar("T")
KindT = TypeVar("KindT")

MAGIC = "safepoint-turns"
VERSION = 1


@dataclass(frozen=True, slots=True)
class ItemCodec(Generic[T]):
    """How items are written: `ItemCodec(encode, decode)` with functions to and from str, or `ItemCodec.of(Order)`."""

    encode: Callable[[T], str]
    decode: Callable[[str], T]

    @staticmethod
    def of(kind: type[KindT]) -> ItemCodec[KindT]:
        """For a pydantic model, a dataclass, or whatever else pydantic knows how to write and read."""
        adapter = TypeAdapter(kind)
        return ItemCodec(lambda item: adapter.dump_json(item, warnings="error").decode(), adapter.validate_json)

    @staticmethod
    def plain() -> ItemCodec[Any]:  # Any: whatever JSON gives back
        """For text, and for values that JSON gives back as they were."""
        return ItemCodec(_to_json, json.loads)


def _to_json(value: object) -> str:
    try:
        text = json.dumps(value, allow_nan=False)
        same: bool = json.loads(text) == value
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{error}: write TurnLoop(…, codec=ItemCodec.of(…))") from error
    if not same:
        raise ValueError("JSON does not give it back as it was: write TurnLoop(…, codec=ItemCodec.of(…))")
    return text


@dataclass(frozen=True, slots=True)
class LoopRecord(Generic[T]):
    """What is kept. `interrupted` are the items of the turn that `checkpoint` continues."""

    unhandled: Sequence[Item[T]] = ()
    interrupted: Sequence[Item[T]] = ()
    checkpoint: Checkpoint | None = None
    history: Sequence[Message] = ()

    @property
    def empty(self) -> bool:
        return not (self.unhandled or self.interrupted or self.checkpoint or self.history)


@dataclass(frozen=True, slots=True)
class LoadedRecord(Generic[T]):
    """What was kept."""

    unhandled: list[T]
    interrupted: list[T]
    checkpoint: Checkpoint | None
    history: list[Message]


def encode(record: LoopRecord[T], codec: ItemCodec[T]) -> tuple[bytes, dict[int, StoreError]]:
    """The bytes, and the items that are not in them, by number."""
    lost: dict[int, StoreError] = {}

    def written(items: Sequence[Item[T]]) -> list[str]:
        texts: list[str] = []
        for item in items:
            try:
                texts.append(_checked(codec.encode(item.value)))
            except Exception as error:  # the codec is the user's own
                failed = StoreError(f"the item {item.value!r} can't be saved: {render_error(error)}")
                failed.__cause__ = error
                lost[item.number] = failed
        return texts

    body = json.dumps(
        {
            "unhandled": written(record.unhandled),
            "interrupted": written(record.interrupted),
            "checkpoint": None if record.checkpoint is None else record.checkpoint.to_bytes().decode("ascii"),
            "history": [encode_message(message) for message in record.history],
        },
        allow_nan=False,
        separators=(",", ":"),
    ).encode()
    return f"{MAGIC} {VERSION} {digest(body)}\n".encode() + body, lost


def _checked(text: object) -> str:
    if not isinstance(text, str):
        raise TypeError(f"encode returned {type(text).__name__}, not str")
    return text


def decode(data: bytes, codec: ItemCodec[T]) -> LoadedRecord[T]:
    """Raises `StoreCorrupt`."""
    head, newline, body = data.partition(b"\n")
    words = head.decode("ascii", "replace").split(" ")
    if not newline or len(words) != 3 or words[0] != MAGIC:
        raise StoreCorrupt("these bytes are not the record of a loop; they were left as they are")
    if words[1] != str(VERSION):
        raise StoreCorrupt(f"the loop's record has version {words[1][:20]}, this Safepoint reads {VERSION}")
    if words[2] != digest(body):
        raise StoreCorrupt("the loop's record is damaged: its digest does not fit; it was left as it is")
    try:
        return _read(json.loads(body), codec)
    except Exception as error:  # the codec is the user's own
        raise StoreCorrupt(f"the loop's record can't be read: {error!r}; it was left as it is") from error


def _read(data: Json, codec: ItemCodec[T]) -> LoadedRecord[T]:
    kept: Any = data["checkpoint"]  # Any: decoded JSON
    return LoadedRecord(
        [codec.decode(text) for text in data["unhandled"]],
        [codec.decode(text) for text in data["interrupted"]],
        None if kept is None else Checkpoint.from_bytes(kept.encode("ascii")),
        [decode_message(message) for message in data["history"]],
    )

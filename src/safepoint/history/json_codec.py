"""The JSON of declared types: the annotations of a struct or dataclass are its format.

msgspec writes and reads everything that Safepoint itself declares. Values that its C encoder would change in silence or
refuse are kept away from it, by the declared type of their field:

    Any, Mapping[str, Any]   a value of the user's own      ─▶ `encode_value`
    bytes                    data of pictures and files     ─▶ {"$bytes": "…"}
    float                    NaN would become null          ─▶ refused with ValueError
    str                      half a surrogate pair          ─▶ written by Python's own encoder, as an escape

Reading is strict: an unknown kind, a missing field or a wrong type raises ValueError.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Generic, TypeVar, cast

import msgspec
from msgspec import inspect

from safepoint.history.encoding import Json, decode_value, encode_value, encode_values, escape_key
from safepoint.history.parts import Attachment, Message

T = TypeVar("T")
# Any, in all of this module: a field may have any declared type, and its JSON form may be any JSON.
Prepare = Callable[[Any], Any]
EncodeHook = Callable[[Any], Any]
DecodeHook = Callable[[type, Any], Any]
SchemaHook = Callable[[type], dict[str, Any]]


class Codec(Generic[T]):
    """Writes and reads one declared type. Its tables are made on first use.

    The hooks are msgspec's: for types that are neither JSON nor declared field by field.
    """

    def __init__(
        self,
        kind: Any,
        *,
        enc_hook: EncodeHook | None = None,
        dec_hook: DecodeHook | None = None,
        schema_hook: SchemaHook | None = None,
    ) -> None:
        self._kind = kind
        self._enc_hook = enc_hook
        self._dec_hook = dec_hook
        self._schema_hook = schema_hook

    @cached_property
    def _prepare(self) -> Prepare:
        return _prepare(inspect.type_info(self._kind), {}) or _unchanged

    @cached_property
    def _encoder(self) -> msgspec.json.Encoder:
        return msgspec.json.Encoder(enc_hook=self._hook)

    @cached_property
    def _decoder(self) -> msgspec.json.Decoder[Any]:
        return msgspec.json.Decoder(self._kind, dec_hook=self._dec_hook)

    def _hook(self, value: Any) -> Any:
        """The C encoder knows exact types only: an untyped caller may have passed a subclass of one."""
        if isinstance(value, str):
            return str.__str__(value)
        if isinstance(value, int | float):
            return int(value) if isinstance(value, int) else float(value)
        if self._enc_hook is None:
            raise ValueError(f"a value of type {type(value).__name__} has no JSON form here: {value!r}")
        return self._enc_hook(value)

    def encode(self, value: T) -> bytes:
        prepared = self._prepare(value)
        try:
            return self._encoder.encode(prepared)
        except UnicodeEncodeError:  # half a surrogate pair has no UTF-8 form, and an escape in ASCII
            return _ascii_encoder.encode(msgspec.to_builtins(prepared, enc_hook=self._hook)).encode()

    def decode(self, data: bytes | str) -> T:
        """Raises ValueError, or RecursionError for data that nests too deeply."""
        data = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
        if b'"$' not in data:  # no mark of ours: nothing to put back
            try:
                return cast("T", self._decoder.decode(data))
            except msgspec.DecodeError:
                pass  # an escaped half of a surrogate pair, which only Python's reads; or it is damaged
        return self.from_plain(json.loads(data))

    def to_plain(self, value: T) -> Any:
        """The JSON form as dicts, lists and scalars."""
        return msgspec.to_builtins(self._prepare(value), enc_hook=self._hook)

    def from_plain(self, data: Any) -> T:
        """Read the JSON form. Raises ValueError."""
        whole = decode_value(data)
        try:
            return cast("T", msgspec.convert(whole, self._kind, dec_hook=self._dec_hook))
        except msgspec.ValidationError as strict:
            try:  # an untyped caller may have written 1 for True
                return cast("T", msgspec.convert(whole, self._kind, strict=False, dec_hook=self._dec_hook))
            except msgspec.ValidationError:
                raise ValueError(str(strict)) from None

    def schema(self) -> dict[str, Any]:
        """The JSON Schema of what `encode` writes."""
        schema: dict[str, Any] = _as_written(msgspec.json.schema(self._kind, schema_hook=self._schema_hook))
        return schema


_ascii_encoder = json.JSONEncoder(allow_nan=False, separators=(",", ":"))


def _as_written(schema: Any) -> Any:
    """msgspec's schema has bytes as a string; Safepoint writes them as a mark."""
    if isinstance(schema, list):
        return [_as_written(each) for each in schema]  # pyright: ignore[reportUnknownVariableType]  # a JSON Schema
    if not isinstance(schema, dict):
        return schema
    schema = cast("dict[str, Any]", schema)
    if schema.get("contentEncoding") == "base64":
        return {"type": "object", "properties": {"$bytes": schema}, "required": ["$bytes"]}
    return {key: _as_written(value) for key, value in schema.items()}


def _unchanged(value: Any) -> Any:
    return value


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value!r} has no JSON form")
    return value


def _prepare(info: inspect.Type, known: dict[type, Prepare | None]) -> Prepare | None:
    """The preparation that a value of that type needs before the C encoder takes it; None if it needs none."""
    match info:
        case inspect.AnyType() | inspect.BytesType():
            return encode_value
        case inspect.FloatType():
            return _finite
        case inspect.DictType(value_type=inspect.AnyType()):
            return encode_values
        case inspect.DictType(value_type=value_type):
            return _of_mapping(_prepare(value_type, known) or _unchanged)
        case inspect.VarTupleType(item_type=item_type) | inspect.ListType(item_type=item_type):
            item = _prepare(item_type, known)
            return None if item is None else lambda items: [item(each) for each in items]
        case inspect.UnionType(types=types):
            return _of_union(types, known)
        case inspect.StructType() | inspect.DataclassType():
            return _of_object(info, known)
        case _:
            return None


def _of_mapping(prepare: Prepare) -> Prepare:
    return lambda values: {escape_key(str(key)): prepare(value) for key, value in values.items()}


def _of_union(types: Sequence[inspect.Type], known: dict[type, Prepare | None]) -> Prepare | None:
    """Objects are told apart by their class; of other types, at most one needs anything."""
    objects: dict[type, Prepare] = {}
    fallback: Prepare = _unchanged
    for each in types:
        prepare = _prepare(each, known)
        if prepare is None:
            continue
        if isinstance(each, inspect.StructType | inspect.DataclassType):
            objects[each.cls] = prepare
        else:
            fallback = prepare
    if not objects and fallback is _unchanged:
        return None

    def prepare_one(value: object) -> Any:
        return value if value is None else objects.get(type(value), fallback)(value)

    return prepare_one


def _of_object(info: inspect.StructType | inspect.DataclassType, known: dict[type, Prepare | None]) -> Prepare | None:
    """As a dict of its prepared fields. A type inside itself is found in `known` while its own fields are looked at."""
    kind = info.cls
    if kind in known:
        return known[kind]
    prepared: dict[str, Prepare] = {}
    read, tag = _reader(info)

    def prepare(value: Any) -> dict[str, Any]:
        made = {**tag, **read(value)}
        for name, encode in prepared.items():
            made[name] = encode(made[name])
        return made

    known[kind] = prepare
    for field in info.fields:
        needed = _prepare(field.type, known)
        if needed is not None:
            prepared[field.name] = needed
    if not prepared:
        known[kind] = None
    return known[kind]


def _reader(info: inspect.StructType | inspect.DataclassType) -> tuple[Prepare, dict[str, Any]]:
    """How all fields of such an object are read at once, and its tag."""
    if isinstance(info, inspect.StructType):
        return msgspec.structs.asdict, {} if info.tag_field is None else {info.tag_field: info.tag}
    names = [field.name for field in info.fields]
    return lambda value: {name: getattr(value, name) for name in names}, {}


MESSAGE: Codec[Message] = Codec(Message)
MESSAGES: Codec[Sequence[Message]] = Codec(list[Message])
_ATTACHMENTS: Codec[Sequence[Attachment]] = Codec(tuple[Attachment, ...])


def messages_to_json(messages: Sequence[Message]) -> str:
    """A conversation as a JSON array of messages. `messages_from_json` reads it."""
    return MESSAGES.encode(messages).decode()


def messages_from_json(data: str | bytes) -> list[Message]:
    """The conversation that `messages_to_json` wrote. Raises ValueError for anything else."""
    try:
        return list(MESSAGES.decode(data))
    except RecursionError:
        raise ValueError("this is no conversation: it nests too deeply") from None


def encode_message(message: Message) -> Json:
    plain: Json = MESSAGE.to_plain(message)
    return plain


def decode_message(data: Json) -> Message:
    return MESSAGE.from_plain(data)


def encode_attachments(parts: Sequence[Attachment]) -> Json:
    """For the JSON of what has them: a key of their own, or none."""
    return {"parts": _ATTACHMENTS.to_plain(parts)} if parts else {}


def decode_attachments(data: Mapping[str, Any]) -> tuple[Attachment, ...]:
    """From the JSON of what may have them."""
    return tuple(_ATTACHMENTS.from_plain(data.get("parts", [])))

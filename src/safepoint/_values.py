"""The base of Safepoint's frozen values: asks, reasons, steps, messages, ledger entries, events, facts, records.

A value is a msgspec struct: made in a tenth of the time that a frozen dataclass takes, and its annotations declare its
JSON (`history/json_codec.py`). To programs that use one it is the dataclass that it was before: `dataclasses.fields`,
`asdict` and `replace` work on it, and so do pydantic and FastAPI. They need a real dataclass with the same fields, its
twin, which is made when one of them first asks for it.

No value is declared with `gc=False`: an argument or an error may lead back to the value, and such a cycle would never
be collected.
"""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import TYPE_CHECKING, Any, get_type_hints

import msgspec

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler
    from pydantic_core import CoreSchema

# Any: a field may be of any type.
Fields = dict[str, dataclasses.Field[Any]]


class _FieldsOfTwin:
    """Stands for `__dataclass_fields__`, by which `dataclasses`, pydantic and FastAPI know a dataclass."""

    def __get__(self, value: object, kind: type[msgspec.Struct]) -> Fields:
        fields: Fields = twin_of(kind).__dataclass_fields__
        return fields


class Value(msgspec.Struct, frozen=True):
    """Frozen, compared by its fields, hashable if they are. Change a copy: `msgspec.structs.replace`."""

    if not TYPE_CHECKING:  # type checkers know it of every struct
        __dataclass_fields__ = _FieldsOfTwin()

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Validated and written as the dataclass that it was; an instance is taken as it is."""
        from pydantic_core import core_schema

        twin = twin_of(cls)

        def validate(value: object, inner: core_schema.ValidatorFunctionWrapHandler) -> object:
            return value if isinstance(value, cls) else cls(**_fields_of(cls, inner(value)))

        def serialize(value: object, inner: core_schema.SerializerFunctionWrapHandler) -> object:
            return inner(twin(**_fields_of(cls, value)))

        validate.__name__ = validate.__qualname__ = cls.__name__  # pydantic's errors name it
        inner = handler.generate_schema(twin)
        serialization = core_schema.wrap_serializer_function_ser_schema(serialize, schema=inner)
        return core_schema.no_info_wrap_validator_function(validate, inner, serialization=serialization)


def _fields_of(kind: type[msgspec.Struct], value: object) -> dict[str, Any]:  # Any: of every type
    return {name: getattr(value, name) for name in kind.__struct_fields__}


@cache
def twin_of(kind: type[msgspec.Struct]) -> Any:  # Any: a class that is made here
    """A dataclass of the same name with the same fields; a tag that the values show comes last, as one of them."""
    hints = get_type_hints(kind, include_extras=True)
    fields = [(field.name, hints[field.name], _dataclass_field(field)) for field in msgspec.structs.fields(kind)]
    tag = kind.__struct_config__.tag_field
    if tag is not None and hasattr(kind, tag):
        fields.append((tag, hints[tag].__args__[0], dataclasses.field(default=getattr(kind, tag), init=False)))
    twin = dataclasses.make_dataclass(kind.__name__, fields, frozen=True, kw_only=not kind.__match_args__)
    twin.__module__, twin.__qualname__, twin.__doc__ = kind.__module__, kind.__qualname__, kind.__doc__
    return twin


def _dataclass_field(field: msgspec.structs.FieldInfo) -> Any:  # Any: what `dataclasses.field` returns
    if field.default is not msgspec.NODEFAULT:
        return dataclasses.field(default=field.default)
    if field.default_factory is not msgspec.NODEFAULT:
        return dataclasses.field(default_factory=field.default_factory)
    return dataclasses.field()

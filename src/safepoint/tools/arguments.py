"""The parameters of a tool as one pydantic model: one schema describes the tool and checks its arguments.

Each parameter is a field with a neutral name and the parameter's own name as alias, so any Python name is possible
(`schema`, `model_config`, `_hidden`). Arguments are checked as JSON, leniently: "5" is an int, a list fills a set.
A default stays the function's own: an omitted argument is not passed, so no default is copied, validated or converted.

Refused where the tool is defined: types that pydantic cannot put into a schema, and types that no JSON could ever
satisfy or that would fail only inside the tool.
"""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticInvalidForJsonSchema
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue, JsonSchemaWarningKind
from pydantic_core import core_schema, from_json, to_json

from safepoint._values import Value
from safepoint.errors import ToolDefinitionError
from safepoint.history.rendering import render_error
from safepoint.tools.bad_arguments import explain, one_problem

# The strictest rule among the providers (Anthropic's) for the names of a schema's properties.
_WIRE_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_WORKS = "str, int, float, bool, list, dict, Literal, Enum, a dataclass, a TypedDict or a pydantic model"


class Parameter(Value, frozen=True):
    """One parameter that the model fills. `meaning` is the docstring's; metadata in the annotation wins over it."""

    name: str
    annotation: Any  # Any: an annotation may be any object
    default: Any = inspect.Parameter.empty  # Any: so may a default
    meaning: str | None = None


class _Field(Value, frozen=True):
    name: str
    wire_name: str
    definition: tuple[Any, Any]  # Any: annotation and default, as create_model wants them
    default_is_pydantics: bool


class Arguments:
    """`schema` goes to the model; `validate` makes the keyword arguments of the call."""

    def __init__(self, function: str, parameters: Sequence[Parameter]) -> None:
        self._fields = {f"p{number}": _field(function, each) for number, each in enumerate(parameters)}
        _check_wire_names(function, list(self._fields.values()))
        try:
            self._model = _build(self._fields)
            self.schema = _schema(self._model)
        except Exception as error:
            raise _blame(function, self._fields, error) from error

    def validate(self, args: Mapping[str, Any]) -> dict[str, Any]:  # Any: JSON in, typed values out
        try:
            data = to_json(dict(args), inf_nan_mode="constants")
        except Exception as error:
            raise one_problem(f"arguments: cannot be written as JSON: {render_error(error)}") from error
        try:
            values = self._model.model_validate_json(data)
        except ValidationError as error:
            raise explain(error.errors(include_url=False), from_json(data), self.schema) from error
        except Exception as error:  # raised by a user's validator
            raise one_problem(f"arguments: could not be checked: {render_error(error)}") from error
        return {
            field.name: getattr(values, key)
            for key, field in self._fields.items()
            if key in values.model_fields_set or field.default_is_pydantics
        }


class _Schema(GenerateJsonSchema):
    """Pydantic's generator without its invented titles, and stricter: a part that it would skip is an error here."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # Any: pydantic's own private union
        return False

    def emit_warning(self, kind: JsonSchemaWarningKind, detail: str) -> None:
        if kind == "skipped-choice":
            raise PydanticInvalidForJsonSchema(f"one choice of the union has no JSON schema: {detail}")
        if kind != "non-serializable-default":  # that warning only means that the schema omits the default
            super().emit_warning(kind, detail)

    def generator_schema(self, schema: core_schema.GeneratorSchema) -> JsonSchemaValue:
        raise PydanticInvalidForJsonSchema("an Iterable is read only once and checked too late; write list[...]")

    def is_subclass_schema(self, schema: core_schema.IsSubclassSchema) -> JsonSchemaValue:
        raise PydanticInvalidForJsonSchema("a class cannot come from JSON; write Literal['a', 'b']")

    def literal_schema(self, schema: core_schema.LiteralSchema) -> JsonSchemaValue:
        for choice in schema["expected"]:
            if isinstance(choice, Enum) and not isinstance(choice, str | int):
                raise PydanticInvalidForJsonSchema(
                    f"Literal[{choice}] never matches JSON; write Literal[{choice.value!r}], or make "
                    f"{type(choice).__name__} a StrEnum"
                )
        return super().literal_schema(schema)


def _field(function: str, parameter: Parameter) -> _Field:
    default = parameter.default
    has_default = default is not inspect.Parameter.empty
    try:
        if has_default:
            info = FieldInfo.from_annotated_attribute(parameter.annotation, default)
        else:
            info = FieldInfo.from_annotation(parameter.annotation)
    except Exception as error:
        raise _refusal(function, parameter.name, error) from error
    if info.validation_alias is not None and not isinstance(info.validation_alias, str):
        raise ToolDefinitionError(
            f"{function}: parameter '{parameter.name}' has {info.validation_alias!r}, and the model needs one name; "
            "write Field(alias='name')"
        )
    wire_name = info.validation_alias or info.alias or parameter.name
    words = next((each for each in info.metadata if isinstance(each, str)), None)
    extra = Field(
        alias=wire_name, validation_alias=wire_name, description=info.description or words or parameter.meaning
    )
    return _Field(
        name=parameter.name,
        wire_name=wire_name,
        definition=(Annotated[parameter.annotation, extra], default if has_default else ...),
        default_is_pydantics=not has_default or isinstance(default, FieldInfo),
    )


def _build(fields: Mapping[str, _Field]) -> type[BaseModel]:
    definitions: dict[str, Any] = {key: field.definition for key, field in fields.items()}  # Any: see _Field
    model: type[BaseModel] = create_model("arguments", __config__=ConfigDict(extra="forbid"), **definitions)
    for key, field in fields.items():
        if key not in model.model_fields:
            raise TypeError(f"{field.definition[0]} is not the type of a parameter")
    return model


def _schema(model: type[BaseModel]) -> dict[str, Any]:  # Any: a JSON schema
    schema = model.model_json_schema(schema_generator=_Schema)
    schema.pop("title", None)
    return schema


def _check_wire_names(function: str, fields: Sequence[_Field]) -> None:
    counts = Counter(field.wire_name for field in fields)
    for field in fields:
        if not _WIRE_NAME.fullmatch(field.wire_name):
            raise ToolDefinitionError(
                f"{function}: parameter '{field.wire_name}' has a name that providers refuse; use 1 to 64 of the "
                "characters A-Z a-z 0-9 _ . - or write Annotated[..., Field(alias='name')]"
            )
        if counts[field.wire_name] > 1:
            raise ToolDefinitionError(f"{function}: two parameters have the name '{field.wire_name}'; change an alias")


def _blame(function: str, fields: Mapping[str, _Field], error: Exception) -> ToolDefinitionError:
    """The refusal, which names the parameter that also fails alone."""
    for key, field in fields.items():
        try:
            _schema(_build({key: field}))
        except Exception as raised:
            return _refusal(function, field.name, raised)
    return ToolDefinitionError(f"{function}: pydantic cannot make a schema of its parameters: {_reason(error)}")


def _refusal(function: str, parameter: str, error: Exception) -> ToolDefinitionError:
    return ToolDefinitionError(
        f"{function}: parameter '{parameter}' cannot be described to a model: {_reason(error)} "
        f"Types that work: {_WORKS}."
    )


def _reason(error: Exception) -> str:
    """Pydantic's own words, without its advice for models and its links."""
    text = str(error).split("For further information", 1)[0].split(" Set `arbitrary_types_allowed", 1)[0]
    text = " ".join(text.split()).rstrip(".")
    return f"{text or type(error).__name__}."

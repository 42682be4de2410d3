"""Structured output: the answer as a typed value.

The model gets one more tool, `final_answer`, whose parameters are the type's schema; the arguments of its call are the
answer. Plain text that is valid JSON for the type counts as well. For anything else the model gets an error and may try
again a few times, either way. Only a complete, validated value becomes the output.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from safepoint._core.ladder import CUT_AT_ONCE, StopPolicy
from safepoint.errors import ToolDefinitionError
from safepoint.tools.bad_arguments import BadArguments
from safepoint.tools.base import BaseTool, ToolSpec
from safepoint.tools.context import CallContext
from safepoint.tools.options import Effect, ToolOptions

if TYPE_CHECKING:
    from pydantic import TypeAdapter
    from pydantic_core import ValidationError

T = TypeVar("T")

OUTPUT_TOOL = "final_answer"
OUTPUT_TRIES = 3


class OutputTool(BaseTool, Generic[T]):
    """The tool through which a model gives its typed answer."""

    def __init__(self, output: type[T]) -> None:
        self._adapter, schema = _read(output)
        self.schema: Mapping[str, Any] = schema  # Any: a JSON schema, of the type itself
        # Models take objects only; a type that is not an object travels in a field of its own.
        self._wrapped = schema.get("type") != "object"
        parameters = _wrap(schema) if self._wrapped else schema
        self.options = ToolOptions(effect=Effect.PURE, final=True)
        self.spec = ToolSpec(
            OUTPUT_TOOL, "Give the final answer. Call this exactly once, when you are done.", parameters
        )

    @property
    def stop_policy(self) -> StopPolicy:
        return CUT_AT_ONCE

    def validate(self, args: Mapping[str, Any]) -> dict[str, Any]:  # Any: decoded JSON
        if self._wrapped and set(args) != {"value"}:
            raise BadArguments('write {"value": …} and nothing else')
        from pydantic_core import ValidationError  # as below

        try:
            value = self._adapter.validate_python(args["value"] if self._wrapped else dict(args))
        except ValidationError as error:
            raise BadArguments(_problems(error)) from error
        return {"value": value}

    async def body(self, context: CallContext[Any], args: dict[str, Any]) -> object:  # Any: the typed value
        """The value as JSON."""
        return self._adapter.dump_json(args["value"], by_alias=True, round_trip=True).decode()

    def read(self, text: str) -> T:
        """The typed value of an answer. Raises `BadArguments` with a message for the model."""
        from pydantic_core import ValidationError  # as below

        try:
            return self._adapter.validate_json(text)
        except ValidationError as error:
            raise BadArguments(_problems(error)) from error


def _read(output: type[T]) -> tuple[TypeAdapter[T], dict[str, Any]]:  # Any: a JSON schema
    from pydantic import TypeAdapter  # loaded for a typed output, and not for every agent

    try:
        adapter = TypeAdapter(output)
        return adapter, adapter.json_schema()
    except Exception as error:
        raise ToolDefinitionError(
            f"output={output!r} is no type with a JSON schema: use a pydantic model or a dataclass"
        ) from error


def _wrap(schema: dict[str, Any]) -> dict[str, Any]:  # Any: a JSON schema
    inner = {key: value for key, value in schema.items() if key != "$defs"}
    wrapped: dict[str, Any] = {"type": "object", "properties": {"value": inner}, "required": ["value"]}
    return {**wrapped, "$defs": schema["$defs"]} if "$defs" in schema else wrapped


def _problems(error: ValidationError) -> str:
    found = error.errors(include_url=False, include_context=False)
    return "\n".join(f"{'.'.join(map(str, item['loc'])) or 'value'}: {item['msg']}" for item in found[:10])


def asks_again(problem: str) -> str:
    """The message to the model when its answer does not fit."""
    return f"Your answer does not fit the required form:\n{problem}\nCall the tool {OUTPUT_TOOL} with the answer."

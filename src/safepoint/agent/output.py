"""Structured output: the answer as a typed value.

The model is given one more tool, `final_answer`, whose parameters are the type's schema; what it passes there is the
answer. A plain text that is valid JSON for the type counts as well. Anything else is told to the model, which may try
again a few times, one way or the other. Only a complete, validated value ever becomes the output.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from safepoint._core.ladder import CUT_AT_ONCE, StopPolicy
from safepoint.errors import ToolDefinitionError
from safepoint.tools.bad_arguments import BadArguments
from safepoint.tools.base import BaseTool, ToolSpec
from safepoint.tools.context import CallContext
from safepoint.tools.options import Effect, ToolOptions

T = TypeVar("T")

OUTPUT_TOOL = "final_answer"
OUTPUT_TRIES = 3


class OutputTool(BaseTool, Generic[T]):
    """The tool through which a model gives its typed answer."""

    def __init__(self, output: type[T]) -> None:
        self._adapter, schema = _read(output)
        # Models take objects only; a type that is none travels in a field of its own.
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
        try:
            value = self._adapter.validate_python(args["value"] if self._wrapped else dict(args))
        except ValidationError as error:
            raise BadArguments(_problems(error)) from error
        return {"value": value}

    async def body(self, context: CallContext[Any], args: dict[str, Any]) -> object:  # Any: the typed value
        """The value as JSON. Cancellation: there is nothing to wait for."""
        return self._adapter.dump_json(args["value"], by_alias=True, round_trip=True).decode()

    def read(self, text: str) -> T:
        """The typed value of an answer. Raises `BadArguments`, in words for the model."""
        try:
            return self._adapter.validate_json(text)
        except ValidationError as error:
            raise BadArguments(_problems(error)) from error


def _read(output: type[T]) -> tuple[TypeAdapter[T], dict[str, Any]]:  # Any: a JSON schema
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
    """What the model is told when its answer does not fit."""
    return f"Your answer does not fit the required form:\n{problem}\nCall the tool {OUTPUT_TOOL} with the answer."

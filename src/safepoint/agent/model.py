"""What a run needs of a model: a stream of typed chunks, whose upstream is closed on exit.

The runtime never asks a model to stop. It cancels the task that reads the stream; leaving the context manager
must then close the provider's connection. A complete reply ends with exactly one `Finish`; a stream that ends
without one was cut by the provider and is an error.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from types import UnionType
from typing import Any, Literal, Protocol, TypeAlias, cast, runtime_checkable

from msgspec import field

from safepoint._core.asks import is_seconds
from safepoint._values import Value
from safepoint.agent.tool_choice import check_tool_choice
from safepoint.history.parts import Message
from safepoint.tools.base import ToolSpec

FinishReason: TypeAlias = Literal["end_turn", "tool_calls", "max_tokens", "refused"]


class TextDelta(Value, frozen=True):
    """More words of the answer."""

    text: str


class ReasoningDelta(Value, frozen=True):
    """More thinking. A `signature` closes the block; without one the thinking is dropped when cut."""

    text: str
    signature: str | None = None


class CallDelta(Value, frozen=True):
    """A piece of tool call number `index` of this reply: its id and name once, its JSON arguments in pieces."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


class Finish(Value, frozen=True):
    """The reply is complete. Token counts are the provider's own; None where it gives none.

    `cached_tokens` is the part of the input that the provider had in its cache, `reasoning_tokens` the part of the
    output that was thinking; both are included in the totals. `response_id` is the provider's id of the reply, and
    `response_model` the name of the model that answered; spans carry both.
    """

    reason: FinishReason
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    response_id: str | None = None
    response_model: str | None = None


Chunk: TypeAlias = TextDelta | ReasoningDelta | CallDelta | Finish


class ModelSettings(Value, frozen=True):
    """How the model is to answer. `extra` goes to the provider unchanged.

    `tool_choice`: `auto`, `none`, `required`, or the name of the tool that the model must call.
    """

    temperature: float | None = None
    max_tokens: int | None = None
    tool_choice: str | None = None
    stop: tuple[str, ...] = ()
    timeout_first_token: float | None = None
    timeout_idle: float | None = None
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])  # Any: the provider's own options

    def __post_init__(self) -> None:
        for option, right, fits in (
            ("temperature", "a number from 0 up", _is_number(self.temperature)),
            ("max_tokens", "a whole number from 1 up", _is_number(self.max_tokens, int) and self.max_tokens != 0),
            ("tool_choice", "'auto', 'none', 'required' or the name of a tool", _is_word(self.tool_choice)),
            ("stop", "a list of str", _is_list_of_words(self.stop)),
            ("extra", "a dict", isinstance(self.extra, Mapping)),  # pyright: ignore[reportUnnecessaryIsInstance]  # untyped callers
        ):
            if not fits:
                raise ValueError(f"{option}={getattr(self, option)!r}: write {right}, or leave it out")
        for option in ("timeout_first_token", "timeout_idle"):
            seconds: object = getattr(self, option)
            if seconds is not None and not is_seconds(seconds):
                raise ValueError(f"{option}={seconds!r}: write a number of seconds above 0, or leave it out")


def _is_number(value: object, kinds: type[object] | UnionType = int | float) -> bool:
    number = isinstance(value, kinds) and not isinstance(value, bool)
    return value is None or (number and 0 <= cast("float", value) < math.inf)


def _is_word(value: object) -> bool:
    return value is None or (isinstance(value, str) and bool(value))


def _is_list_of_words(value: object) -> bool:
    """A str is refused: it is a list of letters, and each letter would stop the answer."""
    return isinstance(value, list | tuple) and all(
        isinstance(each, str) and each for each in cast("list[object]", value)
    )


class ModelRequest(Value, frozen=True):
    """One model call: the conversation so far and everything around it."""

    messages: tuple[Message, ...]
    instructions: str | None = None
    tools: tuple[ToolSpec, ...] = ()
    settings: ModelSettings = ModelSettings()

    def __post_init__(self) -> None:
        if self.settings.tool_choice is not None:
            check_tool_choice(self.settings.tool_choice, [tool.name for tool in self.tools])


@runtime_checkable
class Model(Protocol):
    """The protocol of a model. `stream` is a context manager, so that the upstream is always closed.

    A model may also have `model_name` and `provider_name`, the names that its provider and price tables use, and
    `server_url`, where it sends its requests: spans carry them.
    """

    @property
    def name(self) -> str: ...

    def stream(self, request: ModelRequest, /) -> AbstractAsyncContextManager[AsyncIterator[Chunk]]: ...


def provider_names(model: Model) -> tuple[str | None, str | None]:
    """The provider's name for the model, and the provider's own name; None where the model does not say."""
    names = (getattr(model, "model_name", None), getattr(model, "provider_name", None))
    return names[0] if isinstance(names[0], str) else None, names[1] if isinstance(names[1], str) else None

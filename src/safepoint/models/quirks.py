"""Where servers depart from OpenAI's chat completions, as data. Pure: no SDK, no network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from msgspec.structs import replace

from safepoint.agent.model import ModelRequest
from safepoint.models.wire_id import short_id, wire_id

ToolChoiceKind: TypeAlias = Literal["auto", "none", "required", "name"]
_BRIDGE: Final = "[No reply: the next message came first.]"
_LONGEST_ID: Final = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Quirks:
    """`limit` names the option for the most tokens.

    `tool_choices` are the kinds of `tool_choice` that the server obeys; `name` is one tool by its name. `usage_option`:
    it takes `stream_options`, and sends token counts only then. `short_ids`: an id of a call is nine letters or digits.
    `user_after_tool`: a user message may follow a result of a tool directly.
    """

    limit: str = "max_tokens"
    tool_choices: tuple[ToolChoiceKind, ...] = ("auto", "none", "required", "name")
    usage_option: bool = True
    short_ids: bool = False
    user_after_tool: bool = True

    def call_id(self, id: str) -> str:
        return short_id(id) if self.short_ids else wire_id(id, longest=_LONGEST_ID)


OPENAI_QUIRKS: Final = Quirks(limit="max_completion_tokens")


def obeyed(request: ModelRequest, quirks: Quirks, server: str) -> ModelRequest:
    """The request with a `tool_choice` that the server obeys and that means the same; `ValueError` if there is none."""
    choice = request.settings.tool_choice
    kind = choice if choice in ("auto", "none", "required") else "name"
    if choice is None or kind in quirks.tool_choices:
        return request
    match kind:
        case "auto":
            return _with(request, request.tools, None)
        case "none":
            return _with(request, (), None)
        case "name" if "required" in quirks.tool_choices:
            return _with(request, tuple(tool for tool in request.tools if tool.name == choice), "required")
        case _:
            raise ValueError(
                f"tool_choice={choice!r}: {server} can't be made to call a tool; "
                "write 'auto' or 'none', or leave it out"
            )


def _with(request: ModelRequest, tools: tuple[Any, ...], choice: str | None) -> ModelRequest:  # Any: ToolSpec
    return replace(request, tools=tools, settings=replace(request.settings, tool_choice=choice))


def bridged(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:  # Any: JSON
    """The messages with a short assistant message wherever a user message would follow a result directly.

    A run that was stopped or steered after its tools has exactly that order, and it is the truth: the model has not
    replied. The servers that refuse it take no empty message either, so the message says so.
    """
    sent: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] == "user" and sent and sent[-1]["role"] == "tool":
            sent.append({"role": "assistant", "content": _BRIDGE})
        sent.append(message)
    return sent

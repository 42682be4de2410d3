"""Guided calls, for a model whose chat template knows no tools, as that of SmolLM2. Pure: no SDK, no network.

These are crutches for the smallest of models, and `LocalModel` uses them for nothing else: weights whose template knows
tools get llama.cpp's own calls, see `to_native_payload`. What the model can't do by itself is done around it:

- Results of tools are told in plain words, and calls are left out: it would only repeat them.
- A call is made by grammar: its answer is bound to the schema of the tools, so that it always is a valid call. That is
  done for a new message only; once there are results, it answers.
- Whether a tool is needed is beyond it. With `tool_choice="required"`, or the name of a tool, a call is made. Otherwise
  the words decide: a tool is offered if its name or description has a longer word in common with the message.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

from safepoint.agent.model import CallDelta, Chunk, Finish, ModelRequest, TextDelta
from safepoint.agent.output import OUTPUT_TOOL
from safepoint.history.parts import Attachment, File, Message, ToolResult
from safepoint.models.attached import not_shown
from safepoint.models.openai_wire import Reader as PlainReader
from safepoint.models.openai_wire import assistant_text, file_text, to_messages
from safepoint.models.openai_wire import to_payload as to_plain_payload
from safepoint.models.plain_json import plain
from safepoint.models.providers import LLAMACPP
from safepoint.tools.base import ToolSpec

Payload: TypeAlias = dict[str, Any]  # Any: JSON

MAX_TOKENS: Final = 512
"""SmolLM2 may ramble on for ever; so much is enough for an answer."""
TEMPERATURE: Final = 0.2
"""Its arguments are invented if it is left to chance."""
SAMPLING: Final[Payload] = {"repeat_penalty": 1.15, "dry_multiplier": 0.8, "dry_allowed_length": 2}
"""Without these SmolLM2 repeats itself: of the trigrams in two answers of 300 tokens, 42 % and 72 % were distinct; with
them, 84 % and 100 %. They are left out of calls, whose JSON has to repeat itself."""
# With this the server writes after each batch of the prompt, and so notices a closed connection at once.
_PROGRESS: Final[Payload] = {"return_progress": True}
_WORD: Final = re.compile(r"[a-z]{4,}")


def to_payload(request: ModelRequest, *, smallest: bool = True) -> Payload:
    """The body of the request to llama.cpp's server. `smallest`: with the limits that SmolLM2 needs."""
    settings = request.settings
    payload: Payload = {
        "messages": _messages(request),
        "stream": True,
        "stream_options": {"include_usage": True},
        **_PROGRESS,
    }
    if (most := settings.max_tokens or (MAX_TOKENS if smallest else None)) is not None:
        payload["max_tokens"] = most
    temperature = TEMPERATURE if settings.temperature is None and smallest else settings.temperature
    if temperature is not None:
        payload["temperature"] = temperature
    if settings.stop:
        payload["stop"] = list(settings.stop)
    tools = offered(request)
    if smallest and not tools:
        payload |= SAMPLING
    if tools:
        schema = {"anyOf": [_call_schema(tool) for tool in tools]}
        payload["response_format"] = {"type": "json_schema", "json_schema": {"name": "call", "schema": schema}}
    return payload | dict(settings.extra)


def offered(request: ModelRequest) -> Sequence[ToolSpec]:
    """The tools of which one is to be called now; none if it is to answer."""
    last, choice = request.messages[-1], request.settings.tool_choice
    typed = tuple(tool for tool in request.tools if tool.name == OUTPUT_TOOL)
    if last.role != "user" or choice == "none":
        return typed
    match choice:
        case "required":
            return request.tools
        case None | "auto":
            words = set(_WORD.findall(last.text.lower()))
            related = tuple(tool for tool in request.tools if words & _words_of(tool))
            return related or typed
        case name:
            return tuple(tool for tool in request.tools if tool.name == name)


def _words_of(tool: ToolSpec) -> set[str]:
    description = "" if tool.name == OUTPUT_TOOL else tool.description
    return set[str](_WORD.findall(f"{tool.name.replace('_', ' ')} {description}".lower()))


def _call_schema(tool: ToolSpec) -> Payload:
    properties = {"name": {"const": tool.name}, "arguments": plain(tool.parameters)}
    return {"type": "object", "properties": properties, "required": ["name", "arguments"]}


def _messages(request: ModelRequest) -> list[Payload]:
    instructions = request.instructions or ""
    if tools := offered(request):
        listed = "\n".join(f"{tool.name}: {tool.description}" for tool in tools)
        instructions = f"{instructions}\n\nAnswer with a call of one of these tools, in JSON:\n{listed}".strip()
    sent: list[Payload] = [{"role": "system", "content": instructions}] if instructions else []
    for message in request.messages:
        match message.role:
            case "user":
                sent += to_messages([message])
            case "assistant":
                if words := assistant_text(message):
                    sent.append({"role": "assistant", "content": words})
            case "tool":
                sent.append({"role": "user", "content": _results(message)})
    return sent


def _results(message: Message) -> str:
    results: list[str] = []
    for result in message.parts:
        if isinstance(result, ToolResult):
            results.append(f"The tool {result.name} says: {result.content}")
            results += [_shown(part) for part in result.parts]
    return "\n".join([*results, "Now answer me."])


def _shown(part: Attachment) -> str:
    if isinstance(part, File) and part.data is not None and part.media_type.startswith("text/"):
        return file_text(part)
    return not_shown(part, "this model reads text only")


class Reader:
    """Makes chunks of a stream. An answer that is `bound` to be a call becomes one, once it is whole."""

    def __init__(self, *, bound: bool) -> None:
        self._plain = PlainReader()
        self._bound = bound
        self._words: list[str] = []

    def read(self, event: object, /) -> list[Chunk]:
        chunks: list[Chunk] = list(self._plain.read(event))
        if not self._bound:
            return chunks
        self._words += [chunk.text for chunk in chunks if isinstance(chunk, TextDelta)]
        finish = self._plain.finish()
        if finish is None or finish.reason != "end_turn" or not self._words:
            return []
        words = "".join(self._words)
        self._words.clear()
        try:
            call = json.loads(words)
            return [CallDelta(0, None, str(call["name"]), json.dumps(call["arguments"]))]
        except (ValueError, KeyError, TypeError):
            return [TextDelta(words)]

    def finish(self) -> Finish | None:
        return self._plain.finish()


def to_native_payload(model: str, request: ModelRequest, *, server: str) -> Payload:
    """The body of a request with llama.cpp's own tool calls: its server knows the model's chat template."""
    payload = to_plain_payload(model, request, quirks=LLAMACPP, server=server, name="llama.cpp's server")
    ours: Payload = {**_PROGRESS, "reasoning_format": "auto"}
    return ours | payload

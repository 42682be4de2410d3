"""Conversations as OpenAI's Responses API takes them, and its streams as chunks. Pure: no SDK, no network.

The rules, from the API reference and from what the service refuses:

- The input is a flat list of items. A `function_call` is answered by one `function_call_output` with its `call_id`, and
  no output stands without its call.
- With `store: false` the service keeps nothing, so its thinking comes as an encrypted item and goes back as it came:
  ahead of the message or the calls of the same reply, and never as the last item of one.
- The service can't decrypt what another one has encrypted: the seal on a thought names its server.
- An id of a call is at most 64 characters long. There are no stop sequences.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias, assert_never, cast

from safepoint.agent.model import CallDelta, Chunk, Finish, FinishReason, ModelRequest, ReasoningDelta, TextDelta
from safepoint.errors import HistoryError
from safepoint.history.parts import File, Image, Message, Reasoning, Text, ToolResult
from safepoint.models.openai_wire import assistant_text, data_url, file_text
from safepoint.models.plain_json import plain
from safepoint.models.provider_errors import refusal
from safepoint.models.signatures import seal, unseal
from safepoint.models.thinking_back import OPENAI
from safepoint.models.untrusted_json import Loose, event_of, mapping, number, text
from safepoint.models.wire_id import wire_id

Payload: TypeAlias = dict[str, Any]  # Any: JSON

LONGEST_ID: Final = 64
ENCRYPTED: Final = "reasoning.encrypted_content"
_WIRE: Final = "responses"
_MERGED: Final = ("tools", "include")
"""Lists to which `extra` adds: tools that the provider runs itself stand beside the agent's own."""


def to_payload(model: str, request: ModelRequest, *, server: str = OPENAI, background: bool = False) -> Payload:
    """The request's body. `background`: the service goes on without a connection, and so has to store the reply."""
    settings = request.settings
    if settings.stop:
        raise ValueError("stop=…: the Responses API takes no stop sequences; leave it out, or use OpenAIModel")
    payload: Payload = {
        "model": model,
        "input": to_items(request.messages, server=server),
        "stream": True,
        "store": background,
        "include": [ENCRYPTED],
    }
    if background:
        payload["background"] = True
    if request.instructions:
        payload["instructions"] = request.instructions
    if request.tools:
        payload["tools"] = [
            {
                "type": "function",
                "name": tool.name,
                "description": tool.description,
                "parameters": plain(tool.parameters),
                "strict": False,
            }
            for tool in request.tools
        ]
        if (choice := settings.tool_choice) is not None:
            named = choice not in ("auto", "none", "required")
            payload["tool_choice"] = {"type": "function", "name": choice} if named else choice
    if settings.temperature is not None:
        payload["temperature"] = settings.temperature
    if settings.max_tokens is not None:
        payload["max_output_tokens"] = settings.max_tokens
    return _with_extra(payload, settings.extra)


def _with_extra(payload: Payload, extra: Mapping[str, Any]) -> Payload:  # Any: the provider's own
    added = {name: [*payload.get(name, []), *extra[name]] for name in _MERGED if name in extra}
    return payload | dict(extra) | added


def to_items(messages: Sequence[Message], *, server: str = OPENAI) -> list[Payload]:
    """The conversation alone."""
    sent: list[Payload] = []
    for message in messages:
        match message.role:
            case "user":
                content = [_user_part(part) for part in message.parts if isinstance(part, Text | Image | File)]
                sent.append({"type": "message", "role": "user", "content": content})
            case "assistant":
                sent += _assistant(message, server)
            case "tool":
                sent += [_output(part) for part in message.parts if isinstance(part, ToolResult)]
            case _:
                assert_never(message.role)
    return sent


def _assistant(message: Message, server: str) -> list[Payload]:
    """Thoughts, words, calls. A thought that nothing follows is refused, so it stays out."""
    said: list[Payload] = []
    if words := assistant_text(message):
        content = [{"type": "output_text", "text": words}]
        said.append({"type": "message", "role": "assistant", "content": content})
    for call in message.tool_calls:
        arguments = json.dumps(plain(call.args), ensure_ascii=False)
        id = wire_id(call.id, longest=LONGEST_ID)
        said.append({"type": "function_call", "call_id": id, "name": call.name, "arguments": arguments})
    thoughts = [part for part in message.parts if isinstance(part, Reasoning)]
    return [*_thoughts(thoughts, server), *said] if said else []


def _thoughts(thoughts: Sequence[Reasoning], server: str) -> list[Payload]:
    sent: list[Payload] = []
    for thought in thoughts:
        kind, item = unseal(_WIRE, thought) or ("", "")
        if kind == _kind(server):
            id, _, encrypted = item.partition(" ")
            summary = [{"type": "summary_text", "text": thought.text}] if thought.text else []
            sent.append({"type": "reasoning", "id": id, "summary": summary, "encrypted_content": encrypted})
    return sent


def _kind(server: str) -> str:
    """The server's name inside a seal, where a colon ends it."""
    return server.replace(":", "_")


def _user_part(part: Text | Image | File) -> Payload:
    match part:
        case Text():
            return {"type": "input_text", "text": part.text}
        case Image():
            url = part.url if part.url is not None else data_url(part.data, part.media_type)
            return {"type": "input_image", "image_url": url, "detail": "auto"}
        case File() if part.url is not None:
            return {"type": "input_file", "file_url": part.url}
        case File() if part.media_type.startswith("text/"):
            return {"type": "input_text", "text": file_text(part)}
        case File():
            data = data_url(part.data, part.media_type)
            return {"type": "input_file", "filename": part.name or "file", "file_data": data}
        case _:
            assert_never(part)


def _output(result: ToolResult) -> Payload:
    id = wire_id(result.call_id, longest=LONGEST_ID)
    attached = [_user_part(part) for part in result.parts]
    output = [{"type": "input_text", "text": result.content}, *attached] if attached else result.content
    return {"type": "function_call_output", "call_id": id, "output": output}


# -- the provider's rules ----------------------------------------------------------------------------------------------


def check_payload(payload: Mapping[str, Any]) -> None:  # Any: JSON
    """Raise `HistoryError` at the first rule of the service that the payload breaks."""
    sent: list[Payload] = payload["input"]
    if not sent:
        raise HistoryError("input: the service wants at least one item")
    if payload.get("store") is False and ENCRYPTED not in payload.get("include", []):
        raise HistoryError("include: without encrypted thinking, nothing is left of it where nothing is stored")
    waiting: list[str] = []
    used_ids: set[str] = set()
    for index, item in enumerate(sent):
        where = f"input[{index}] ({item['type']})"
        following = sent[index + 1] if index + 1 < len(sent) else None
        _check_item(where, item, following)
        if item["type"] == "function_call":
            if item["call_id"] in used_ids:
                raise HistoryError(f"{where}: an id of a call is taken")
            used_ids.add(item["call_id"])
            waiting.append(item["call_id"])
        elif item["type"] == "function_call_output":
            if item["call_id"] not in waiting:
                raise HistoryError(f"{where}: no call has this output")
            waiting.remove(item["call_id"])
        elif waiting and item["type"] == "message":
            raise HistoryError(f"{where}: the calls {waiting} must be answered first")
    if waiting:
        raise HistoryError(f"input: the calls {waiting} are never answered")


def _check_item(where: str, item: Payload, following: Payload | None) -> None:
    match item["type"]:
        case "message":
            content = cast("list[Payload]", item["content"])
            if not content or any("text" in part and not part["text"].strip() for part in content):
                raise HistoryError(f"{where}: it has no content, or a blank text")
        case "reasoning":
            is_followed = following is not None and (
                following["type"] in ("reasoning", "function_call") or following.get("role") == "assistant"
            )
            if not is_followed:
                raise HistoryError(f"{where}: it stands without the item that must follow it")
            if not item["encrypted_content"] or not item["id"]:
                raise HistoryError(f"{where}: it has no id or nothing encrypted")
        case "function_call":
            if not 0 < len(item["call_id"]) <= LONGEST_ID or not isinstance(json.loads(item["arguments"]), dict):
                raise HistoryError(f"{where}: its id is too long, or its arguments are no object")
        case "function_call_output":
            if not item["output"]:
                raise HistoryError(f"{where}: it has no output")
        case _:
            raise HistoryError(f"{where}: no such item is sent")


# -- the stream --------------------------------------------------------------------------------------------------------


class Reader:
    """Makes chunks of the events of one streamed response. `name` is the model's, for errors."""

    def __init__(self, server: str = OPENAI, name: str = "the model") -> None:
        self._server = server
        self._name = name
        self._reason: FinishReason | None = None
        self._over = False
        self._model: str | None = None
        self._refused = False
        self._usage: Loose = {}
        # The place of each call among the calls, by its place in the output; and which of them have sent arguments.
        self._calls: dict[int, int] = {}
        self._argued: set[int] = set()
        self.response_id: str | None = None
        self.sequence: int | None = None
        """The last event that was read: a stream of a background response can be taken up after it."""

    def read(self, event: object, /) -> list[Chunk]:
        sent_event = event_of(event)
        self.sequence = number(sent_event.get("sequence_number")) if "sequence_number" in sent_event else self.sequence
        kind, delta = text(sent_event.get("type")), text(sent_event.get("delta"))
        match kind:
            case "response.created":
                self.response_id = text(mapping(sent_event.get("response")).get("id")) or None
                self._model = text(mapping(sent_event.get("response")).get("model")) or None
            case "response.output_text.delta":
                return [TextDelta(delta)] if delta else []
            case "response.refusal.delta":
                self._refused = True
                return [TextDelta(delta)] if delta else []
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                return [ReasoningDelta(delta)] if delta else []
            case "response.reasoning_summary_part.added" if number(sent_event.get("summary_index")):
                return [ReasoningDelta("\n\n")]
            case "response.output_item.added" | "response.output_item.done":
                return self._item(sent_event, whole=kind.endswith("done"))
            case "response.function_call_arguments.delta":
                return self._arguments(number(sent_event.get("output_index")), delta)
            case "response.completed" | "response.incomplete" | "response.failed" | "response.cancelled" | "error":
                self._end(kind, sent_event)
            case _:
                pass
        return []

    def _item(self, sent_event: Loose, *, whole: bool) -> list[Chunk]:
        item, place = mapping(sent_event.get("item")), number(sent_event.get("output_index"))
        kind, encrypted = text(item.get("type")), text(item.get("encrypted_content"))
        if kind == "reasoning" and whole and encrypted and text(item.get("id")):
            # Only now: half of an encrypted thought would be refused.
            sealed = seal(_WIRE, _kind(self._server), f"{text(item.get('id'))} {encrypted}")
            return [ReasoningDelta("", sealed)]
        if kind != "function_call" or place is None:
            return []
        if place in self._calls:
            return self._arguments(place, text(item.get("arguments"))) if place not in self._argued else []
        self._calls[place] = len(self._calls)
        arguments = text(item.get("arguments"))
        if arguments:
            self._argued.add(place)
        id, name = text(item.get("call_id")) or None, text(item.get("name")) or None
        return [CallDelta(self._calls[place], id, name, arguments)]

    def _arguments(self, place: int | None, delta: str) -> list[Chunk]:
        if place is None or place not in self._calls or not delta:
            return []
        self._argued.add(place)
        return [CallDelta(self._calls[place], arguments=delta)]

    @property
    def is_over(self) -> bool:
        """Whether the provider computes no more."""
        return self._over

    def _end(self, kind: str, sent_event: Loose) -> None:
        self._over = True
        response = mapping(sent_event.get("response"))
        self._usage = mapping(response.get("usage")) or self._usage
        match kind:
            case "response.completed":
                self._reason = "tool_calls" if self._calls else "refused" if self._refused else "end_turn"
            case "response.incomplete":
                why = text(mapping(response.get("incomplete_details")).get("reason"))
                self._reason = "refused" if why == "content_filter" else "max_tokens"
            case _:
                error = mapping(response.get("error")) or sent_event
                message = text(error.get("message")) or kind
                raise refusal(self._name, message, status=None, kind=text(error.get("code")))

    def finish(self) -> Finish | None:
        if self._reason is None:
            return None
        usage = self._usage
        return Finish(
            self._reason,
            number(usage.get("input_tokens")),
            number(usage.get("output_tokens")),
            number(mapping(usage.get("input_tokens_details")).get("cached_tokens")),
            number(mapping(usage.get("output_tokens_details")).get("reasoning_tokens")),
            self.response_id,
            self._model,
        )

"""Conversations as OpenAI's chat completions take them, and their streams as chunks. Pure: no SDK, no network.

The rules, from the API reference and from what the service refuses:

- An assistant message with `tool_calls` is followed at once by one `tool` message per call; a `tool` message stands
  nowhere else.
- A message has content; an assistant's may be missing if it has calls. No empty text, no empty list.
- An id is at most 40 characters long. Arguments are a str of JSON. A function's name is 1 to 64 of `A-Z a-z 0-9 _ -`.
- Thinking goes back only to a server that has sent it as `reasoning_content`: see `thinking_back`.
- A `tool` message holds words alone: pictures and files of results come in a `user` message after all of them.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias, assert_never

from safepoint.agent.model import CallDelta, Chunk, Finish, FinishReason, ModelRequest, ReasoningDelta, TextDelta
from safepoint.errors import HistoryError, ModelError, ModelUnavailable
from safepoint.history.parts import Attachment, File, Image, Message, Notice, Text, ToolCall, ToolResult
from safepoint.models.attached import not_shown, whose
from safepoint.models.plain_json import plain
from safepoint.models.quirks import OPENAI_QUIRKS, Quirks, bridged, obeyed
from safepoint.models.thinking_back import FIELD, OPENAI, ThinkingReader, thinking_for
from safepoint.models.untrusted_json import event_of, items, mapping, number, text

Payload: TypeAlias = dict[str, Any]  # Any: JSON

LONGEST_ID: Final = 40
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_ROLES: Final = ("system", "developer", "user", "assistant", "tool")
_REASONS: Final[dict[str, FinishReason]] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "model_length": "max_tokens",  # Mistral
    "model_context_window_exceeded": "max_tokens",  # Z.ai
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "refused",
    "sensitive": "refused",  # Z.ai
}
_BROKE_OFF: Final = frozenset({"error", "network_error", "insufficient_system_resource", "abort"})
"""Reasons that are failures of the server: OpenRouter and Mistral, Z.ai, DeepSeek, vLLM."""


def to_payload(
    model: str, request: ModelRequest, *, quirks: Quirks = OPENAI_QUIRKS, server: str = OPENAI, name: str = "the server"
) -> Payload:
    """The request's body for that server, which is called `name` in errors."""
    request = obeyed(request, quirks, name)
    settings = request.settings
    payload: Payload = {
        "model": model,
        "messages": to_messages(request.messages, request.instructions, server=server, quirks=quirks),
        "stream": True,
    }
    if quirks.usage_option:
        payload["stream_options"] = {"include_usage": True}
    if request.tools:
        payload["tools"] = [
            {
                "type": "function",
                "function": {"name": tool.name, "description": tool.description, "parameters": plain(tool.parameters)},
            }
            for tool in request.tools
        ]
        if settings.tool_choice is not None:
            payload["tool_choice"] = _tool_choice(settings.tool_choice)
    if settings.temperature is not None:
        payload["temperature"] = settings.temperature
    if settings.max_tokens is not None:
        payload[quirks.limit] = settings.max_tokens
    if settings.stop:
        payload["stop"] = list(settings.stop)
    return payload | dict(settings.extra)


def to_messages(
    messages: Sequence[Message],
    instructions: str | None = None,
    *,
    server: str = OPENAI,
    quirks: Quirks = OPENAI_QUIRKS,
) -> list[Payload]:
    """The conversation alone."""
    sent: list[Payload] = [{"role": "system", "content": instructions}] if instructions else []
    attached: list[Payload] = []
    for message, thinking in zip(messages, thinking_for(messages, server), strict=True):
        match message.role:
            case "user":
                content = [*attached, *_parts(message)] if attached else _user_content(message)
                sent.append({"role": "user", "content": content})
            case "assistant":
                sent += _from_tools(attached)
                sent.append(_assistant(message, thinking, quirks))
            case "tool":
                sent += [_result(part, quirks) for part in message.parts if isinstance(part, ToolResult)]
            case _:
                assert_never(message.role)
        attached = attached_parts(message)
    sent += _from_tools(attached)
    return sent if quirks.user_after_tool else bridged(sent)


def _from_tools(attached: list[Payload]) -> list[Payload]:
    return [{"role": "user", "content": attached}] if attached else []


def attached_parts(message: Message) -> list[Payload]:
    """The pictures and files of a message's results, each under the name of its tool."""
    found: list[Payload] = []
    for result in message.parts:
        if isinstance(result, ToolResult) and result.parts:
            found.append({"type": "text", "text": whose(result)})
            found += [_attached(part) for part in result.parts]
    return found


def _attached(part: Attachment) -> Payload:
    """The tool can't know which kinds are taken: what is not is said instead."""
    try:
        return _user_part(part)
    except ModelError as error:
        return {"type": "text", "text": not_shown(part, error)}


def _tool_choice(choice: str) -> object:
    if choice in ("auto", "none", "required"):
        return choice
    return {"type": "function", "function": {"name": choice}}


def _user_content(message: Message) -> object:
    if len(message.parts) == 1 and isinstance(message.parts[0], Text):
        return message.parts[0].text
    return _parts(message)


def _parts(message: Message) -> list[Payload]:
    return [_user_part(part) for part in message.parts if isinstance(part, Text | Image | File)]


def _user_part(part: Text | Image | File) -> Payload:
    match part:
        case Text():
            return {"type": "text", "text": part.text}
        case Image():
            url = part.url if part.url is not None else data_url(part.data, part.media_type)
            return {"type": "image_url", "image_url": {"url": url}}
        case File():
            return _file(part)
        case _:
            assert_never(part)


def _file(part: File) -> Payload:
    if part.data is None:
        raise ModelError(f"chat completions take no file by address ({part.url}): send its bytes, File(data=…)")
    if part.media_type.startswith("text/"):
        return {"type": "text", "text": file_text(part)}
    return {
        "type": "file",
        "file": {"filename": part.name or "file", "file_data": data_url(part.data, part.media_type)},
    }


def file_text(part: File) -> str:
    """A plain text file as words, under its name."""
    words = (part.data or b"").decode("utf-8", "replace")
    return f"{part.name or 'file'}:\n{words}"


def data_url(data: bytes | None, media_type: str) -> str:
    return f"data:{media_type};base64,{base64.b64encode(data or b'').decode()}"


def _assistant(message: Message, thinking: str | None, quirks: Quirks) -> Payload:
    sent: Payload = {"role": "assistant"}
    if words := assistant_text(message):
        sent["content"] = words
    if thinking is not None:
        sent.setdefault("content", "")  # such servers want a str here, where others want nothing
        sent[FIELD] = thinking
    if message.tool_calls:
        sent["tool_calls"] = [_call(call, quirks) for call in message.tool_calls]
    return sent


def assistant_text(message: Message) -> str:
    """What the assistant said, and below it what Safepoint remarked."""
    notices = [part.text for part in message.parts if isinstance(part, Notice)]
    return "\n\n".join([*([message.text] if message.text else []), *notices])


def _call(call: ToolCall, quirks: Quirks) -> Payload:
    arguments = json.dumps(plain(call.args), ensure_ascii=False)
    return {
        "id": quirks.call_id(call.id),
        "type": "function",
        "function": {"name": call.name, "arguments": arguments},
    }


def _result(result: ToolResult, quirks: Quirks) -> Payload:
    return {"role": "tool", "tool_call_id": quirks.call_id(result.call_id), "content": result.content}


# -- the provider's rules ----------------------------------------------------------------------------------------------


def check_payload(payload: Mapping[str, Any]) -> None:  # Any: JSON
    """Raise `HistoryError` at the first rule of the service that the payload breaks."""
    messages: list[Payload] = payload["messages"]
    if not messages:
        raise HistoryError("messages: the service wants at least one")
    waiting: list[str] = []
    for index, message in enumerate(messages):
        where = f"messages[{index}] ({message['role']})"
        if message["role"] not in _ROLES:
            raise HistoryError(f"{where}: no such role")
        if message["role"] == "tool":
            if message["tool_call_id"] not in waiting:
                raise HistoryError(f"{where}: it answers no call of the message before it")
            waiting.remove(message["tool_call_id"])
        elif waiting:
            raise HistoryError(f"{where}: the calls {waiting} must be answered first")
        _check_content(where, message)
        waiting += [_checked_call(where, call) for call in message.get("tool_calls", [])]
        if len(set(waiting)) < len(waiting):
            raise HistoryError(f"{where}: two calls have the same id")
    if waiting:
        raise HistoryError(f"messages: the calls {waiting} are never answered")


def _check_content(where: str, message: Payload) -> None:
    if message.get("tool_calls") == []:
        raise HistoryError(f"{where}: tool_calls is an empty list")
    content: Any = message.get("content")  # Any: a str or a list of parts
    if "tool_calls" in message and (content is None or (content == "" and FIELD in message)):
        return
    if not content or (isinstance(content, str) and not content.strip()):
        raise HistoryError(f"{where}: it has no content")
    parts: list[Payload] = [] if isinstance(content, str) else content
    if message["role"] == "tool" and any(part["type"] != "text" for part in parts):
        raise HistoryError(f"{where}: a result holds text alone")
    for part in parts:
        if part["type"] == "text" and not part["text"].strip():
            raise HistoryError(f"{where}: it has an empty text")


def _checked_call(where: str, call: Payload) -> str:
    id, function = call["id"], call["function"]
    if not 0 < len(id) <= LONGEST_ID:
        raise HistoryError(f"{where}: the id {id!r} is longer than {LONGEST_ID} characters, or empty")
    if not _NAME.fullmatch(function["name"]):
        raise HistoryError(f"{where}: {function['name']!r} is no function's name")
    if not isinstance(json.loads(function["arguments"]), dict):
        raise HistoryError(f"{where}: the arguments are no object")
    return str(id)


# -- the stream --------------------------------------------------------------------------------------------------------


class Reader:
    """Makes chunks of the events of one streamed completion."""

    def __init__(self, server: str = OPENAI) -> None:
        self._reason: FinishReason | None = None
        self._thinking = ThinkingReader(server)
        self._refused = False
        self._usage: Mapping[str, object] = {}
        self._id = self._model = ""
        # The ids met so far, by the index under which the call is passed on; and which call the server's index means.
        self._ids: list[str] = []
        self._places: dict[int, int] = {}

    def read(self, event: object, /) -> list[Chunk]:
        completion = event_of(event)
        self._usage = mapping(completion.get("usage")) or self._usage
        self._id = self._id or text(completion.get("id"))
        self._model = self._model or text(completion.get("model"))
        choices = items(completion.get("choices"))
        if not choices:
            return []
        choice = mapping(choices[0])
        chunks = self._delta(mapping(choice.get("delta")))
        self._usage = self._usage or mapping(choice.get("usage"))  # Moonshot has it here
        if (reason := text(choice.get("finish_reason"))) in _BROKE_OFF:
            raise ModelUnavailable(f"the server broke off its answer: {reason}")
        if reason:
            self._reason = _REASONS.get(reason, "end_turn")
        return chunks

    def _delta(self, delta: Mapping[str, object]) -> list[Chunk]:
        chunks: list[Chunk] = list(self._thinking.read(delta))
        calls, words = items(delta.get("tool_calls")), text(delta.get("content"))
        for piece in items(delta.get("content")):  # a thinking model of Mistral answers in a list of pieces
            words += text(mapping(piece).get("text"))
            thoughts = [text(mapping(each).get("text")) for each in items(mapping(piece).get("thinking"))]
            chunks += [ReasoningDelta(thought) for thought in thoughts if thought]
        if calls or words or text(delta.get("refusal")):
            chunks += self._thinking.end(calls=bool(calls))
        if words:
            chunks.append(TextDelta(words))
        if refusal := text(delta.get("refusal")):
            self._refused = True
            chunks.append(TextDelta(refusal))
        chunks += [self._call(mapping(call)) for call in calls]
        return chunks

    def _call(self, call: Mapping[str, object]) -> CallDelta:
        function, id, index = mapping(call.get("function")), text(call.get("id")), number(call.get("index"))
        place = self._place(index, id)
        self._ids[place] = id or self._ids[place]
        if index is not None:
            self._places[index] = place
        # Some servers send the arguments as an object: to take that for none would run the tool with its defaults.
        whole = mapping(function.get("arguments"))
        arguments = json.dumps(plain(whole)) if whole else text(function.get("arguments"))
        return CallDelta(place, id or None, text(function.get("name")) or None, arguments)

    def _place(self, index: int | None, id: str) -> int:
        """Some servers give no index, or the same one to every call: then a new id is a new call."""
        last = len(self._ids) - 1
        place = self._places.get(index, -1) if index is not None else last
        if place >= 0 and id and self._ids[place] not in ("", id):
            place = self._ids.index(id) if id in self._ids else -1
        if place < 0:
            self._ids.append("")
            return last + 1
        return place

    def finish(self) -> Finish | None:
        if self._reason is None:
            return None
        usage = self._usage
        return Finish(
            "refused" if self._refused else self._reason,
            number(usage.get("prompt_tokens")),
            number(usage.get("completion_tokens")),
            _cached(usage),
            number(mapping(usage.get("completion_tokens_details")).get("reasoning_tokens")),
            self._id or None,
            self._model or None,
        )


def _cached(usage: Mapping[str, object]) -> int | None:
    """Where OpenAI says it, DeepSeek, or Moonshot."""
    details = mapping(usage.get("prompt_tokens_details"))
    counts = (details.get("cached_tokens"), usage.get("prompt_cache_hit_tokens"), usage.get("cached_tokens"))
    return next((count for each in counts if (count := number(each)) is not None), None)

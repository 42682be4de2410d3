"""Conversations as Anthropic's messages take them, and their streams as chunks. Pure: no SDK, no network.

The rules, from the API reference and from what the service refuses:

- `user` and `assistant` take turns; the first and the last message are the user's. Results of tools are the user's.
- A message with `tool_use` blocks is followed by one whose first blocks are its `tool_result`s, one for each.
- No block of text is empty or blank. An id is made of `A-Z a-z 0-9 _ -`.
- Thinking is sent back as it was signed, ahead of everything else in its message. While thinking is on, a message whose
  tools have just run must begin with it.
- If there are calls in the conversation, tools must be defined. At most four places are marked for the cache, and
  thinking cannot be marked.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias, assert_never, cast

from safepoint.agent.model import CallDelta, Chunk, Finish, FinishReason, ModelRequest, ReasoningDelta, TextDelta
from safepoint.errors import HistoryError, ModelError
from safepoint.history.parts import File, Image, Message, Notice, Part, Reasoning, Text, ToolCall, ToolResult
from safepoint.models.attached import not_shown
from safepoint.models.plain_json import plain
from safepoint.models.signatures import seal, unseal
from safepoint.models.untrusted_json import Loose, event_of, mapping, number, text
from safepoint.models.wire_id import LEGAL, wire_id

Payload: TypeAlias = dict[str, Any]  # Any: JSON

MAX_TOKENS: Final = 8192
"""The service wants a limit. Every current model can answer so much."""
LONGEST_ID: Final = 64
PICTURES: Final = ("image/jpeg", "image/png", "image/gif", "image/webp")
MARKS: Final = 4
_MARK: Final = {"type": "ephemeral"}
_THINKING: Final = ("thinking", "redacted_thinking")
_REASONS: Final[dict[str, FinishReason]] = {
    "end_turn": "end_turn",
    "stop_sequence": "end_turn",
    "max_tokens": "max_tokens",
    "model_context_window_exceeded": "max_tokens",
    "tool_use": "tool_calls",
    "refusal": "refused",
}


def to_payload(model: str, request: ModelRequest, *, cache: bool = True) -> Payload:
    """The request's body. With `cache`, what will be sent again is marked for the provider's prompt cache."""
    settings = request.settings
    messages = to_messages(request.messages)
    payload: Payload = {
        "model": model,
        "max_tokens": settings.max_tokens or MAX_TOKENS,
        "messages": messages,
        "stream": True,
    }
    if request.instructions:
        payload["system"] = [{"type": "text", "text": request.instructions}]
    tools = _tools(request)
    if tools:
        payload["tools"] = tools
        if settings.tool_choice is not None and request.tools:
            payload["tool_choice"] = _tool_choice(settings.tool_choice)
    if settings.temperature is not None:
        payload["temperature"] = settings.temperature
    if settings.stop:
        payload["stop_sequences"] = list(settings.stop)
    payload |= dict(settings.extra)
    if _thinks(payload) and _unthought(messages):
        del payload["thinking"]  # the step was begun by another provider, or without thinking: it ends so too
    if cache:
        _mark(payload)
    return payload


def _tools(request: ModelRequest) -> list[Payload]:
    if request.tools:
        return [
            {"name": tool.name, "description": tool.description, "input_schema": plain(tool.parameters)}
            for tool in request.tools
        ]
    called = dict.fromkeys(call.name for message in request.messages for call in message.tool_calls)
    gone = "No longer available: do not call it."
    return [{"name": name, "description": gone, "input_schema": {"type": "object"}} for name in called]


def _tool_choice(choice: str) -> Payload:
    match choice:
        case "auto" | "none":
            return {"type": choice}
        case "required":
            return {"type": "any"}
        case name:
            return {"type": "tool", "name": name}


def _thinks(payload: Mapping[str, Any]) -> bool:  # Any: JSON
    return mapping(payload.get("thinking")).get("type") == "enabled"


def _unthought(messages: list[Payload]) -> bool:
    """Whether the step that goes on was begun without a thought."""
    if len(messages) < 2 or messages[-1]["content"][0]["type"] != "tool_result":
        return False
    return messages[-2]["content"][0]["type"] not in _THINKING


def _mark(payload: Payload) -> None:
    """The tools and the instructions stay the same from step to step, and the conversation only grows."""
    last: Payload = payload["messages"][-1]
    for holder, name in ((payload, "tools"), (payload, "system"), (last, "content")):
        blocks: Any = holder.get(name)  # Any: `extra` may have put anything there
        if blocks and isinstance(blocks, list):
            *before, end = cast("list[Payload]", blocks)
            holder[name] = [*before, {**end, "cache_control": _MARK}]


def to_messages(messages: Sequence[Message]) -> list[Payload]:
    """The conversation alone."""
    sent: list[Payload] = []
    for message in messages:
        role = "assistant" if message.role == "assistant" else "user"
        blocks = _assistant(message) if message.role == "assistant" else [_block(part) for part in message.parts]
        if sent and sent[-1]["role"] == role:
            sent[-1]["content"] += blocks
        else:
            sent.append({"role": role, "content": blocks})
    return sent


def _assistant(message: Message) -> list[Payload]:
    """Thoughts, words, remarks, and last the calls: what answers them is in the next message."""
    parts = [part for part in message.parts if not isinstance(part, Reasoning) or unseal("anthropic", part)]
    return [_block(part) for part in sorted(parts, key=lambda part: isinstance(part, ToolCall))]


def _block(part: Part) -> Payload:
    match part:
        case Text() | Notice():
            return {"type": "text", "text": part.text}
        case Reasoning():
            return _thought(part)
        case ToolCall():
            id = wire_id(part.id, longest=LONGEST_ID)
            return {"type": "tool_use", "id": id, "name": part.name, "input": plain(part.args)}
        case ToolResult():
            id = wire_id(part.call_id, longest=LONGEST_ID)
            content = [{"type": "text", "text": part.content}, *_attached(part)] if part.parts else part.content
            return {"type": "tool_result", "tool_use_id": id, "content": content, "is_error": part.is_error}
        case Image():
            return {"type": "image", "source": _picture(part)}
        case File():
            return _document(part)
        case _:
            assert_never(part)


def _thought(part: Reasoning) -> Payload:
    kind, signature = unseal("anthropic", part) or ("", "")
    if kind == "redacted":
        return {"type": "redacted_thinking", "data": signature}
    return {"type": "thinking", "thinking": part.text, "signature": signature}


def _attached(result: ToolResult) -> list[Payload]:
    """A result takes pictures and documents. The tool can't know which kinds: what is not taken is said instead."""
    blocks: list[Payload] = []
    for part in result.parts:
        try:
            blocks.append(_block(part))
        except ModelError as error:
            blocks.append({"type": "text", "text": not_shown(part, error)})
    return blocks


def _picture(part: Image) -> Payload:
    if part.url is not None:
        return {"type": "url", "url": part.url}
    if part.media_type.lower() not in PICTURES:
        raise ModelError(f"Anthropic takes no picture of type {part.media_type}: send one of {', '.join(PICTURES)}")
    return {"type": "base64", "media_type": part.media_type.lower(), "data": _base64(part.data)}


def _document(part: File) -> Payload:
    source: Payload
    if part.url is not None:
        source = {"type": "url", "url": part.url}
    elif part.media_type == "application/pdf":
        source = {"type": "base64", "media_type": "application/pdf", "data": _base64(part.data)}
    elif part.media_type.startswith("text/"):
        words = (part.data or b"").decode("utf-8", "replace")
        source = {"type": "text", "media_type": "text/plain", "data": words}
    else:
        raise ModelError(f"Anthropic takes no file of type {part.media_type}: send application/pdf or text")
    return {"type": "document", "source": source} | ({"title": part.name} if part.name else {})


def _base64(data: bytes | None) -> str:
    return base64.b64encode(data or b"").decode()


# -- the provider's rules ----------------------------------------------------------------------------------------------


def check_payload(payload: Mapping[str, Any]) -> None:  # Any: JSON
    """Raise `HistoryError` at the first rule of the service that the payload breaks."""
    messages: list[Payload] = payload["messages"]
    if not messages or messages[0]["role"] != "user" or messages[-1]["role"] != "user":
        raise HistoryError("messages: the first and the last must be the user's")
    used_ids: set[str] = set()
    waiting: list[str] = []
    for index, message in enumerate(messages):
        where = f"messages[{index}] ({message['role']})"
        if message["role"] != ("user", "assistant")[index % 2]:
            raise HistoryError(f"{where}: user and assistant must take turns")
        if not message["content"]:
            raise HistoryError(f"{where}: it has no content")
        for block in message["content"]:
            _check_block(where, block)
        _check_results(where, message, waiting)
        waiting = [block["id"] for block in message["content"] if block["type"] == "tool_use"]
        if len({*waiting} - used_ids) < len(waiting):
            raise HistoryError(f"{where}: an id of a call is taken")
        used_ids.update(waiting)
    _check_thinking(payload)
    if used_ids and not payload.get("tools"):
        raise HistoryError("tools: they must be defined if there are calls")
    _check_marks(payload)


def _check_results(where: str, message: Payload, waiting: list[str]) -> None:
    results = [block["tool_use_id"] for block in message["content"] if block["type"] == "tool_result"]
    first = [block.get("tool_use_id") for block in message["content"][: len(waiting)]]
    if results != waiting or first != waiting:
        raise HistoryError(f"{where}: it must begin with the results of {waiting}, and has those of {results}")


def _check_block(where: str, block: Payload) -> None:
    match block["type"]:
        case "text":
            if not block["text"].strip():
                raise HistoryError(f"{where}: a text is blank")
        case "tool_use":
            if not LEGAL.fullmatch(block["id"]) or not isinstance(block["input"], dict):
                raise HistoryError(f"{where}: the id or the input of a call is not as it should be")
        case "tool_result":
            content: Any = block["content"]  # Any: a str or a list of blocks
            if not content or (isinstance(content, str) and not content.strip()):
                raise HistoryError(f"{where}: a result is blank")
            for inner in [] if isinstance(content, str) else cast("list[Payload]", content):
                if inner["type"] not in ("text", "image", "document"):
                    raise HistoryError(f"{where}: a result holds {inner['type']}")
                _check_block(where, inner)
        case "thinking":
            if not block["signature"]:
                raise HistoryError(f"{where}: a thought has no signature")
        case _:
            pass


def _check_thinking(payload: Mapping[str, Any]) -> None:  # Any: JSON
    for index, message in enumerate(payload["messages"]):
        thoughts = [block["type"] in _THINKING for block in message["content"]]
        if sorted(thoughts, reverse=True) != thoughts or (any(thoughts) and message["role"] == "user"):
            raise HistoryError(f"messages[{index}]: thinking comes first, and is the assistant's")
    if _thinks(payload) and _unthought(payload["messages"]):
        raise HistoryError("messages: while thinking is on, a step that goes on must begin with its thoughts")


def _check_marks(payload: Mapping[str, Any]) -> None:  # Any: JSON
    messages = [block for message in payload["messages"] for block in message["content"]]
    blocks: list[Payload] = [*payload.get("tools", []), *payload.get("system", []), *messages]
    marked = [block for block in blocks if "cache_control" in block]
    if len(marked) > MARKS or any(block.get("type") in _THINKING for block in marked):
        raise HistoryError(f"at most {MARKS} blocks may be marked for the cache, and none that is thinking")


# -- the stream --------------------------------------------------------------------------------------------------------


class Reader:
    """Makes chunks of the events of one streamed message."""

    def __init__(self) -> None:
        self._reason: FinishReason | None = None
        self._id: str | None = None
        self._model: str | None = None
        self._usage: dict[str, int] = {}
        # The block that is open: its type, and what seals it if it is a thought.
        self._kind = ""
        self._seal = ""
        self._calls = 0

    def read(self, event: object, /) -> list[Chunk]:
        message = event_of(event)
        match message.get("type"):
            case "message_start":
                begun = mapping(message.get("message"))
                self._id, self._model = text(begun.get("id")) or None, text(begun.get("model")) or None
                self._count(begun)
            case "content_block_start":
                return self._start(mapping(message.get("content_block")))
            case "content_block_delta":
                return self._delta(mapping(message.get("delta")))
            case "content_block_stop":
                return self._stop()
            case "message_delta":
                self._count(message)
                if reason := text(mapping(message.get("delta")).get("stop_reason")):
                    self._reason = _REASONS.get(reason, "end_turn")
            case _:
                pass
        return []

    def _count(self, message: Loose) -> None:
        counts = mapping(message.get("usage"))
        self._usage |= {name: count for name in counts if (count := number(counts[name])) is not None}
        thought = number(mapping(counts.get("output_tokens_details")).get("thinking_tokens"))
        self._usage |= {} if thought is None else {"thinking_tokens": thought}

    def _start(self, block: Loose) -> list[Chunk]:
        self._kind = text(block.get("type"))
        self._seal = seal("anthropic", "redacted", text(block.get("data"))) if block.get("data") else ""
        match self._kind:
            case "tool_use":
                self._calls += 1
                whole = mapping(block.get("input"))
                arguments = json.dumps(plain(whole)) if whole else ""
                return [
                    CallDelta(
                        self._calls - 1, text(block.get("id")) or None, text(block.get("name")) or None, arguments
                    )
                ]
            case "text":
                return [TextDelta(words)] if (words := text(block.get("text"))) else []
            case "thinking":
                return [ReasoningDelta(words)] if (words := text(block.get("thinking"))) else []
            case _:
                return []

    def _delta(self, delta: Loose) -> list[Chunk]:
        match delta.get("type"):
            case "text_delta":
                return [TextDelta(text(delta.get("text")))]
            case "thinking_delta":
                return [ReasoningDelta(text(delta.get("thinking")))]
            case "signature_delta":
                self._seal = (self._seal or seal("anthropic", "thinking", "")) + text(delta.get("signature"))
            case "input_json_delta" if self._kind == "tool_use":
                return [CallDelta(self._calls - 1, arguments=text(delta.get("partial_json")))]
            case _:
                pass
        return []

    def _stop(self) -> list[Chunk]:
        """The block is whole. Only now is a thought sealed: half a signature would be refused."""
        sealed, self._seal, self._kind = self._seal, "", ""
        return [ReasoningDelta("", sealed)] if sealed else []

    def finish(self) -> Finish | None:
        if self._reason is None:
            return None
        counts = self._usage
        fresh, cached = counts.get("input_tokens"), counts.get("cache_read_input_tokens")
        spent = None if fresh is None else fresh + (cached or 0) + counts.get("cache_creation_input_tokens", 0)
        thought = counts.get("thinking_tokens")
        return Finish(self._reason, spent, counts.get("output_tokens"), cached, thought, self._id, self._model)

"""Conversations as Gemini takes them, and its streams as chunks. Pure: no SDK, no network.

The rules, from the API's guides to function calling and thought signatures, and from what the service refuses:

- `user` and `model` take turns; the first and the last are the user's. Results of functions are the user's.
- A turn with function calls is followed by one whose first parts are their responses: as many, in the same order, with
  the same names. A response is an object; pictures and files that belong to one come after all of them.
- No turn is without parts, and no text is empty. A function's name begins with a letter or `_`.
- A signature goes back on the very part that it came with. From Gemini 3 on, the first call of every step since the
  user last spoke must have one; for a call that another model made there is a word that skips the check.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias, assert_never

from safepoint.agent.model import CallDelta, Chunk, Finish, FinishReason, ModelRequest, ReasoningDelta, TextDelta
from safepoint.errors import HistoryError, ModelMisbehaved
from safepoint.history.parts import File, Image, Message, Notice, Part, Reasoning, Text, ToolCall, ToolResult
from safepoint.models.attached import whose
from safepoint.models.plain_json import plain
from safepoint.models.signatures import seal, unseal
from safepoint.models.untrusted_json import event_of, items, mapping, number, text
from safepoint.models.wire_id import wire_id

Payload: TypeAlias = dict[str, Any]  # Any: JSON, and bytes where the SDK wants them

LONGEST_ID: Final = 64
LONGEST_NAME: Final = 64
SKIP_CHECK: Final = b"skip_thought_signature_validator"
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.:-]{0,63}")
_UNFIT: Final = re.compile(r"_*[0-9-]")
_STRICT: Final = re.compile(r"gemini-(?:[3-9]|\d\d)")
_REFUSED: Final = frozenset(
    {
        "SAFETY",
        "RECITATION",
        "LANGUAGE",
        "BLOCKLIST",
        "PROHIBITED_CONTENT",
        "SPII",
        "IMAGE_SAFETY",
        "IMAGE_PROHIBITED_CONTENT",
        "IMAGE_RECITATION",
    }
)
_MODES: Final = {"auto": "AUTO", "none": "NONE", "required": "ANY"}


def to_payload(model: str, request: ModelRequest) -> Payload:
    """`contents` and `config`, as `generate_content_stream` takes them."""
    settings = request.settings
    config: Payload = {"automatic_function_calling": {"disable": True}}
    if request.instructions:
        config["system_instruction"] = request.instructions
    if request.tools:
        declarations = [
            {
                "name": wire_name(tool.name),
                "description": tool.description,
                "parameters_json_schema": plain(tool.parameters),
            }
            for tool in request.tools
        ]
        config["tools"] = [{"function_declarations": declarations}]
        if settings.tool_choice is not None:
            config["tool_config"] = {"function_calling_config": _calling(settings.tool_choice)}
    if settings.temperature is not None:
        config["temperature"] = settings.temperature
    if settings.max_tokens is not None:
        config["max_output_tokens"] = settings.max_tokens
    if settings.stop:
        config["stop_sequences"] = list(settings.stop)
    contents = to_contents(request.messages, strict=is_strict(model))
    return {"model": model, "contents": contents, "config": config | dict(settings.extra)}


def is_strict(model: str) -> bool:
    """Whether the model refuses calls without a signature."""
    return _STRICT.search(model) is not None


def _calling(choice: str) -> Payload:
    if choice in _MODES:
        return {"mode": _MODES[choice]}
    return {"mode": "ANY", "allowed_function_names": [wire_name(choice)]}


def wire_name(name: str) -> str:
    """A tool's name as the service takes it, different for every two tools; the reader maps it back.

    A name that begins with a digit or `-` gets a `_`, and so does a name that could be taken for the result: `1a`
    becomes `_1a`, `_1a` becomes `__1a`. A name that gets too long ends in its hash.
    """
    if not _UNFIT.match(name):
        return name
    if len(name) < LONGEST_NAME:
        return f"_{name}"
    digest = hashlib.sha256(name.encode()).hexdigest()[:12]
    return f"_{name}"[: LONGEST_NAME - 13] + f"_{digest}"


def to_contents(messages: Sequence[Message], *, strict: bool) -> list[Payload]:
    """The conversation alone."""
    contents: list[Payload] = []
    for message in messages:
        role = "model" if message.role == "assistant" else "user"
        parts = _model(message, strict=strict) if role == "model" else _user(message)
        if contents and contents[-1]["role"] == role:
            contents[-1]["parts"] += parts
        else:
            contents.append({"role": role, "parts": parts})
    return contents


def _user(message: Message) -> list[Payload]:
    """What the user said, or the responses, and after all of them what belongs to each."""
    parts = [_part(part) for part in message.parts]
    for result in message.parts:
        if isinstance(result, ToolResult) and result.parts:
            parts += [{"text": whose(result)}, *(_part(part) for part in result.parts)]
    return parts


def _model(message: Message, *, strict: bool) -> list[Payload]:
    """Words, remarks, and last the calls; each signature on the part that it came with."""
    thoughts = [part for part in message.parts if isinstance(part, Reasoning)]
    seals = dict(found for thought in thoughts if (found := unseal("gemini", thought)) is not None)
    words = [_part(part) for part in message.parts if isinstance(part, Text)]
    if words and "text" in seals:
        words[-1]["thought_signature"] = _bytes(seals["text"])
    remarks = [_part(part) for part in message.parts if isinstance(part, Notice)]
    calls = [_part(call) for call in message.tool_calls]
    for number_, call in enumerate(calls):
        if signature := seals.get(f"call{number_}"):
            call["thought_signature"] = _bytes(signature)
    if strict and calls and "thought_signature" not in calls[0]:
        calls[0]["thought_signature"] = SKIP_CHECK
    return [*words, *remarks, *calls]


def _part(part: Part) -> Payload:
    match part:
        case Text() | Notice():
            return {"text": part.text}
        case Image() | File():
            if part.url is not None:
                return {"file_data": {"file_uri": part.url, "mime_type": part.media_type}}
            return {"inline_data": {"data": part.data, "mime_type": part.media_type}}
        case ToolCall():
            id = wire_id(part.id, longest=LONGEST_ID)
            return {"function_call": {"id": id, "name": wire_name(part.name), "args": plain(part.args)}}
        case ToolResult():
            id = wire_id(part.call_id, longest=LONGEST_ID)
            response = {"error" if part.is_error else "output": part.content}
            return {"function_response": {"id": id, "name": wire_name(part.name), "response": response}}
        case Reasoning():
            return {"text": part.text, "thought": True}
        case _:
            assert_never(part)


def _bytes(signature: str) -> bytes:
    return base64.urlsafe_b64decode(signature)


# -- the provider's rules ----------------------------------------------------------------------------------------------


def check_payload(payload: Mapping[str, Any]) -> None:  # Any: JSON
    """Raise `HistoryError` at the first rule of the service that the payload breaks."""
    contents: list[Payload] = payload["contents"]
    if not contents or contents[0]["role"] != "user" or contents[-1]["role"] != "user":
        raise HistoryError("contents: the first and the last must be the user's")
    waiting: list[Payload] = []
    for index, content in enumerate(contents):
        where = f"contents[{index}] ({content['role']})"
        if content["role"] != ("user", "model")[index % 2]:
            raise HistoryError(f"{where}: user and model must take turns")
        if not content["parts"]:
            raise HistoryError(f"{where}: it has no parts")
        for part in content["parts"]:
            _check_part(where, part)
        _check_responses(where, content["parts"], waiting)
        waiting = [part["function_call"] for part in content["parts"] if "function_call" in part]
    if is_strict(payload["model"]):
        _check_signatures(contents)


def _check_part(where: str, part: Payload) -> None:
    kinds = [kind for kind in part if kind not in ("thought_signature", "thought")]
    if len(kinds) != 1:
        raise HistoryError(f"{where}: a part is of the kinds {kinds}, and must be of one")
    match kinds[0]:
        case "text":
            if not part["text"].strip():
                raise HistoryError(f"{where}: a text is blank")
        case "function_call" | "function_response":
            call = part[kinds[0]]
            if not _NAME.fullmatch(call["name"]):
                raise HistoryError(f"{where}: {call['name']!r} is no function's name")
            if not isinstance(call.get("response", {}), dict) or not isinstance(call.get("args", {}), dict):
                raise HistoryError(f"{where}: arguments and responses are objects")
        case _:
            pass


def _check_responses(where: str, parts: list[Payload], waiting: list[Payload]) -> None:
    responses = [part["function_response"] for part in parts if "function_response" in part]
    if [_who(each) for each in responses] != [_who(each) for each in waiting]:
        raise HistoryError(f"{where}: it must have one response for each call before it, in the same order")
    if not all("function_response" in part for part in parts[: len(responses)]):
        raise HistoryError(f"{where}: the responses come first")


def _who(call: Payload) -> tuple[str, str]:
    return call["id"], call["name"]


def _check_signatures(contents: list[Payload]) -> None:
    """Only the current turn counts: it begins where the user last said something."""
    for content in reversed(contents):
        if content["role"] == "user" and not all("function_response" in part for part in content["parts"]):
            return
        calls = [part for part in content["parts"] if "function_call" in part]
        if calls and not calls[0].get("thought_signature"):
            raise HistoryError("contents: the first call of a step of this turn has no signature")


# -- the stream --------------------------------------------------------------------------------------------------------


class Reader:
    """Makes chunks of the events of one streamed answer. `names` are our tools', to map theirs back."""

    def __init__(self, names: Sequence[str] = ()) -> None:
        self._names = {wire_name(name): name for name in names}
        self._reason: FinishReason | None = None
        self._usage: Mapping[str, object] = {}
        self._calls = 0
        self._id = self._model = ""

    def read(self, event: object, /) -> list[Chunk]:
        response = event_of(event)
        self._usage = mapping(response.get("usage_metadata")) or self._usage
        self._id = self._id or text(response.get("response_id"))
        self._model = self._model or text(response.get("model_version"))
        if text(mapping(response.get("prompt_feedback")).get("block_reason")):
            self._reason = "refused"
        candidates = items(response.get("candidates"))
        if not candidates:
            return []
        candidate = mapping(candidates[0])
        parts = items(mapping(candidate.get("content")).get("parts"))
        chunks = [chunk for part in parts for chunk in self._part(mapping(part))]
        if reason := text(candidate.get("finish_reason")):
            self._end(reason, text(candidate.get("finish_message")))
        return chunks

    def _part(self, part: Mapping[str, object]) -> list[Chunk]:
        chunks: list[Chunk] = []
        words, call, kind = text(part.get("text")), mapping(part.get("function_call")), "text"
        if call:
            kind = f"call{self._calls}"
            name = text(call.get("name"))
            arguments = json.dumps(plain(mapping(call.get("args"))))
            chunks.append(
                CallDelta(self._calls, text(call.get("id")) or None, self._names.get(name, name) or None, arguments)
            )
            self._calls += 1
        elif words:
            chunks.append(ReasoningDelta(words) if part.get("thought") else TextDelta(words))
        if signature := text(part.get("thought_signature")):
            chunks.append(ReasoningDelta("", seal("gemini", kind, signature)))
        return chunks

    def _end(self, reason: str, message: str) -> None:
        match reason:
            case "STOP":
                self._reason = "tool_calls" if self._calls else "end_turn"
            case "MAX_TOKENS":
                self._reason = "max_tokens"
            case _ if reason in _REFUSED:
                self._reason = "refused"
            case _:
                raise ModelMisbehaved(f"Gemini broke off its answer: {reason} {message}".strip())

    def finish(self) -> Finish | None:
        if self._reason is None:
            return None
        said = number(self._usage.get("candidates_token_count"))
        thought = number(self._usage.get("thoughts_token_count"))
        spent = None if said is None and thought is None else (said or 0) + (thought or 0)
        cached = number(self._usage.get("cached_content_token_count"))
        asked, id, model = number(self._usage.get("prompt_token_count")), self._id or None, self._model or None
        return Finish(self._reason, asked, spent, cached, thought, id, model)

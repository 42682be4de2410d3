"""The rules of a conversation that every provider shares, in one place. `check_history` states them, no more.

A history that passes can be sent on by any provider's converter. The order of speakers:

    user ──▶ assistant ──▶ user                       an answer without calls
    user ──▶ assistant ──▶ tool ──▶ assistant | user  calls, then at once one message with exactly one result per call

Nothing is empty or blank, because Anthropic and Bedrock refuse a whole request for one blank block. Names and ids are
what links calls to results, so they are strict; text must have a UTF-8 form; arguments must be JSON.

Left to the converters, because they differ and can be mapped there: how long a call's id may be and of which letters
(OpenAI 40 or 64, Bedrock 64, Anthropic by pattern), which media types are taken, where a notice is put.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, cast

from safepoint.errors import HistoryError
from safepoint.history.parts import File, Image, Message, Notice, Part, Reasoning, Text, ToolCall, ToolResult
from safepoint.history.prefix_cache import PrefixCache
from safepoint.history.states import CLOSED_STATES
from safepoint.history.wellformed import is_well_formed, json_fault

TOOL_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
MEDIA_TYPE: Final = re.compile(r"[a-z]+/[a-z0-9][a-z0-9.+_-]*", re.IGNORECASE)

_ALLOWED: Final[dict[str, tuple[type[Part], ...]]] = {
    "user": (Text, Image, File),
    "assistant": (Text, Reasoning, ToolCall, Notice),
    "tool": (ToolResult,),
}


def check_history(messages: Sequence[Message]) -> None:
    """Raise `HistoryError` at the first rule that the conversation breaks; the message names the place and the remedy.

    An empty conversation is fine. The last message may have any role, but every call must have its result.
    """
    _check_from(_as_sequence(messages), 0, dict[str, str]())


# The names of the calls by their ids, of long conversations that keep the rules.
_checked: Final = PrefixCache[dict[str, str]]()


def check_continued(messages: Sequence[Message]) -> None:
    """`check_history` for a conversation and one new message: a long one is checked once, then only its new part.

    Messages are immutable, so checked messages are recognised by identity.
    """
    known = _checked.longest(messages)
    calls = dict(known.found) if known is not None else dict[str, str]()
    try:
        _check_from(messages, len(known.messages) if known is not None else 0, calls)
    except HistoryError:
        if known is None:
            raise
        calls = dict[str, str]()  # the known conversation may have continued differently, with other ids
        _check_from(messages, 0, calls)
    _checked.keep(messages, calls, instead=known)


def call_ids(messages: Sequence[Message]) -> set[str]:
    """The ids of all calls in a conversation; of one that was checked as long, without reading it again."""
    known = _checked.longest(messages)
    ids = set(known.found) if known is not None else set[str]()
    rest = messages[len(known.messages) :] if known is not None else messages
    ids.update([call.id for message in rest for call in message.tool_calls])
    return ids


def _check_from(messages: Sequence[object], start: int, calls: dict[str, str]) -> None:
    """Check the messages from `start` on; earlier ones keep the rules, and `calls` has the ids of their calls."""
    before = cast("Message", messages[start - 1]) if start else None
    for index in range(start, len(messages)):
        item = messages[index]
        message = _check_message(f"messages[{index}]", item)
        where = f"messages[{index}] ({message.role})"
        for number, part in enumerate(message.parts):
            _check_part(f"{where}, part {number}", part)
        _check_arrangement(where, message)
        _check_turn(where, message, before)
        _check_new_ids(where, message, calls)
        before = message
    if before is not None and before.tool_calls:
        raise _fault(
            f"messages[{len(messages) - 1}] (assistant)",
            f"the history ends before the calls {_ids(before.tool_calls)} have results",
            "end it with a tool message that has one ToolResult per call, in call order",
        )


def _fault(where: str, wrong: str, right: str) -> HistoryError:
    return HistoryError(f"{where}: {wrong}; {right}")


def _as_sequence(messages: object) -> Sequence[object]:
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        raise _fault("messages", f"a history is a list of Message, not {_kind(messages)}", "write [Message(…), …]")
    return cast("Sequence[object]", messages)


def _check_message(where: str, message: object) -> Message:
    if not isinstance(message, Message):
        raise _fault(where, f"it is {_kind(message)}", 'write Message("user", (Text("…"),))')
    _check_role(where, message.role)
    _check_parts(f"{where} ({message.role})", message.parts, _ALLOWED[message.role])
    return message


def _check_role(where: str, role: object) -> None:
    if not isinstance(role, str) or role not in _ALLOWED:
        raise _fault(where, f"{_quote(role)} is no role", "the roles are 'user', 'assistant' and 'tool'")


def _check_parts(where: str, parts: object, allowed: tuple[type[Part], ...]) -> None:
    if not isinstance(parts, tuple):
        raise _fault(where, f"its parts are {_kind(parts)}", "write a tuple: (Text('…'),)")
    if not parts:
        raise _fault(where, "it has no parts", "give it at least one, or leave the message out")
    for number, part in enumerate(cast("tuple[object, ...]", parts)):
        if not isinstance(part, allowed):
            names = ", ".join(kind.__name__ for kind in allowed)
            raise _fault(f"{where}, part {number}", f"it is {_kind(part)}", f"this role's parts are {names}")


def _check_part(where: str, part: Part) -> None:
    match part:
        case Text():
            _check_words(where, "text", part.text)
            _check_bool(where, "incomplete", part.incomplete)
        case Image():
            _check_blob(where, part.data, part.url, part.media_type)
            if not part.media_type.lower().startswith("image/"):
                raise _fault(where, f"{_quote(part.media_type)} is no picture", "write image/png, or send it as a File")
        case File():
            _check_blob(where, part.data, part.url, part.media_type)
            if part.name is not None:
                _check_words(where, "name", part.name)
        case Reasoning():
            _check_reasoning(where, part)
        case ToolCall():
            _check_call(where, part)
        case ToolResult():
            _check_result(where, part)
        case Notice():
            _check_words(where, "text", part.text)


def part_fault(part: Image | File) -> str | None:
    """Why no conversation may hold this image or file; None if it may."""
    try:
        _check_part("part", part)
    except HistoryError as fault:
        return str(fault).removeprefix("part: ").partition(";")[0]
    return None


def _check_reasoning(where: str, part: Reasoning) -> None:
    # Providers may withhold the thinking and send only its signature, so the text may be empty.
    _check_text(where, "text", part.text)
    if part.signature is not None:
        _check_words(where, "signature", part.signature)


def _check_call(where: str, call: ToolCall) -> None:
    _check_words(where, "id", call.id)
    _check_tool_name(where, call.name)
    _check_args(where, call.args)
    if call.invalid is not None:
        _check_text(where, "invalid", call.invalid)
        if call.args:
            raise _fault(where, "it has args although they are marked invalid", "write args={}")


def _check_args(where: str, args: object) -> None:
    if not isinstance(args, Mapping):
        raise _fault(where, f"args is {_kind(args)}", "write a dict with str keys")
    fault = json_fault(cast("object", args))
    if fault is not None:
        raise _fault(where, f"args cannot be sent as JSON: {fault}", "use only what JSON has, with str keys")


def _check_result(where: str, result: ToolResult) -> None:
    _check_words(where, "call_id", result.call_id)
    _check_tool_name(where, result.name)
    _check_words(where, "content", result.content)
    _check_state(where, result.state)
    if result.parts != ():
        _check_parts(f"{where}, its parts", result.parts, (Image, File))
        for number, part in enumerate(result.parts):
            _check_part(f"{where}, its part {number}", part)


def _check_state(where: str, state: object) -> None:
    if not isinstance(state, str) or state not in CLOSED_STATES:
        states = ", ".join(sorted(CLOSED_STATES))
        raise _fault(where, f"{_quote(state)} is no state of an ended call", f"the states are {states}")


def _check_arrangement(where: str, message: Message) -> None:
    if message.role == "user":
        for number, part in enumerate(message.parts):
            if isinstance(part, Text) and part.incomplete:
                raise _fault(f"{where}, part {number}", "a user's text is marked incomplete", "write incomplete=False")
    ranks = [part_rank(part) for part in message.parts]
    if ranks != sorted(ranks):
        raise _fault(where, "its parts are out of order", "write Reasoning, then Text and ToolCall, then Notice")
    if not any(ranks):
        raise _fault(where, "it has nothing but Reasoning", "add a Text or a Notice, or leave the message out")


def part_rank(part: Part) -> int:
    """Where the part stands in an assistant message: thinking first, then words and calls, then notices."""
    match part:
        case Reasoning():
            return 0
        case Notice():
            return 2
        case _:
            return 1


def _check_turn(where: str, message: Message, before: Message | None) -> None:
    expected = ("user",) if before is None else _may_follow(before)
    if message.role not in expected:
        place = "the first message" if before is None else f"what follows {_describe(before)}"
        raise _fault(where, f"{place} must be {' or '.join(expected)}", "put the missing message in between")
    if before is not None and message.role == "tool":
        _check_pairs(where, before.tool_calls, message.parts)


def _may_follow(before: Message) -> tuple[str, ...]:
    match before.role:
        case "user":
            return ("assistant",)
        case "assistant":
            return ("tool",) if before.tool_calls else ("user",)
        case "tool":
            return ("assistant", "user")


def _describe(message: Message) -> str:
    if message.role == "assistant":
        return f"an assistant message with calls {_ids(message.tool_calls)}" if message.tool_calls else "an answer"
    return f"a {message.role} message"


def _check_pairs(where: str, calls: Sequence[ToolCall], results: Sequence[Part]) -> None:
    asked = [(call.id, call.name) for call in calls]
    given = [(result.call_id, result.name) for result in results if isinstance(result, ToolResult)]
    if asked != given:
        raise _fault(
            where,
            f"its results are for {_pairs(given)}, but the calls before it are {_pairs(asked)}",
            "give each call exactly one result with its id and name, in call order",
        )


def _check_new_ids(where: str, message: Message, calls: dict[str, str]) -> None:
    for call in message.tool_calls:
        if call.id in calls:
            raise _fault(where, f"the call id {_quote(call.id)} is taken by {calls[call.id]}", "give each its own")
        calls[call.id] = where


def _check_text(where: str, name: str, text: object) -> str:
    if not isinstance(text, str):
        raise _fault(where, f"{name} is {_kind(text)}", "write a str")
    if not is_well_formed(text):
        raise _fault(where, f"{name} holds half a surrogate pair", 'write text.encode("utf-8", "replace").decode()')
    return text


def _check_words(where: str, name: str, text: object) -> None:
    if not _check_text(where, name, text).strip():
        raise _fault(where, f"{name} is empty or blank", "write something that can be seen, or leave the part out")


def _check_tool_name(where: str, name: object) -> None:
    if not isinstance(name, str) or not TOOL_NAME.fullmatch(name):
        raise _fault(where, f"{_quote(name)} is no tool name", "use 1 to 64 of the characters A-Z a-z 0-9 _ -")


def _check_bool(where: str, name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise _fault(where, f"{name} is {_kind(value)}", "write True or False")


def _check_blob(where: str, data: object, url: object, media_type: object) -> None:
    if not isinstance(media_type, str) or not MEDIA_TYPE.fullmatch(media_type):
        raise _fault(where, f"{_quote(media_type)} is no media type", "write one like image/png")
    if data is None:
        _check_words(where, "url", url)
    elif not isinstance(data, bytes):
        raise _fault(where, f"data is {_kind(data)}", "write bytes")
    elif not data:
        raise _fault(where, "data is empty", "send at least one byte, or leave the part out")


def _kind(value: object) -> str:
    return "None" if value is None else f"of type {type(value).__name__}"


def _quote(value: object) -> str:
    return repr(value[:64]) if isinstance(value, str) else _kind(value)


def _ids(calls: Sequence[ToolCall]) -> str:
    return ", ".join(_quote(call.id) for call in calls)


def _pairs(pairs: Sequence[tuple[str, str]]) -> str:
    return ", ".join(f"{_quote(call_id)} ({name})" for call_id, name in pairs)

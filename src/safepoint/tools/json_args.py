"""A model's raw argument text becomes a dict, or a reason that the model can act on. Never an exception.

Text is accepted if it has exactly one meaning and can be stored and sent again. An empty text means no arguments, and a
raw newline inside a string means a newline: models send both. Refused are NaN and Infinity (and numbers that overflow
to them), a key given twice (which of the two was meant?), half of a surrogate pair (it cannot be written as UTF-8, and
replacing it would run the tool with arguments that the model did not send), and text beyond the limits.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, cast

from safepoint.history.plain_text import has_lone_surrogate, shorten

MAX_ARGUMENTS_CHARS = 1_000_000
MAX_ARGUMENTS_DEPTH = 64

_QUOTED = 40
# Without a match there is no lone surrogate; with a match there may be a valid pair.
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")


class _Refused(Exception):
    """Raised by the decoder's callbacks and caught in `decode_arguments`."""


def decode_arguments(text: str) -> tuple[dict[str, Any], str | None]:  # Any: decoded JSON
    """The arguments and None, or `{}` and why the text cannot be used."""
    if len(text) > MAX_ARGUMENTS_CHARS:
        return {}, f"the arguments have {len(text)} characters; at most {MAX_ARGUMENTS_CHARS} are accepted"
    if not text.strip():
        return {}, None
    try:
        value = _DECODER.decode(text)
        if not isinstance(value, dict):
            raise _Refused(f'the arguments must be a JSON object, not {_kind(value)}; write {{"name": value}}')
        args = cast("dict[str, Any]", value)  # Any: decoded JSON
        if text.count("{") + text.count("[") > MAX_ARGUMENTS_DEPTH or _SURROGATE.search(text):
            _check_tree(args)
    except _Refused as refused:
        return {}, str(refused)
    except json.JSONDecodeError as error:
        return {}, _describe(error)
    except RecursionError:
        return {}, _TOO_DEEP
    except ValueError:  # the interpreter's own limit on the digits of an int
        return {}, "the arguments hold a whole number with too many digits"
    return args, None


_TOO_DEEP = f"the arguments are nested too deeply; at most {MAX_ARGUMENTS_DEPTH} levels are accepted"


def _check_tree(root: dict[str, Any]) -> None:  # Any: decoded JSON
    """Check depth and surrogates, without recursion."""
    pending: list[tuple[Any, int]] = [(root, 1)]  # Any: decoded JSON
    while pending:
        value, depth = pending.pop()
        if isinstance(value, str) and has_lone_surrogate(value):
            raise _Refused(
                f"the string {_quote(value)} holds half of a surrogate pair (\\ud800 to \\udfff); "
                "write the character itself or both halves"
            )
        if not isinstance(value, dict | list):
            continue
        if depth > MAX_ARGUMENTS_DEPTH:
            raise _Refused(_TOO_DEEP)
        children = cast("dict[str, Any] | list[Any]", value)  # Any: decoded JSON
        if isinstance(children, dict):
            pending.extend((key, depth) for key in children)
            pending.extend((child, depth + 1) for child in children.values())
        else:
            pending.extend((child, depth + 1) for child in children)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:  # Any: decoded JSON
    result = dict(pairs)
    if len(result) == len(pairs):
        return result
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            raise _Refused(f"the key {_quote(key)} is given twice in one object; give it once")
        seen.add(key)
    return result


def _constant(name: str) -> float:
    raise _Refused(f"{name} is not JSON; send a finite number, or null where that is allowed")


def _float(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise _Refused(f"the number {shorten(digits, _QUOTED)} is too large; send a finite number")
    return value


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant, parse_float=_float, strict=False)


def _describe(error: json.JSONDecodeError) -> str:
    text, at = error.doc, error.pos
    if not text[at:].strip():
        where = "where the text ends: it is incomplete"
    else:
        where = f"near {_quote(text[max(0, at - 10) : at + _QUOTED])}"
    problem = error.msg[:1].lower() + error.msg[1:]
    return f"the arguments are not valid JSON: {problem} at line {error.lineno} column {error.colno}, {where}"


def _quote(text: str) -> str:
    return json.dumps(shorten(text, _QUOTED), ensure_ascii=False)


def _kind(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case _:
            return "a list"

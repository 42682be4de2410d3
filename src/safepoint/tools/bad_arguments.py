"""The faults of a model's arguments, in words that the model can act on.

One line per problem: where, what came, what is expected. The path is the one in the model's own JSON: the names that
pydantic adds for the branches of a union are left out, and the complaints of all branches stand on one line.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

from safepoint.history.plain_text import clean, shorten

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

MAX_PROBLEMS = 20
MAX_PROBLEM_CHARS = 400

_QUOTED = 80
_UNKNOWN = frozenset({"extra_forbidden", "unexpected_keyword_argument"})
_NOT_NEEDED_TO_KNOW = frozenset({"title", "description", "default"})


class BadArguments(ValueError):
    """The arguments do not fit the tool's parameters. The text is for the model."""


def explain(errors: Sequence[ErrorDetails], args: Any, schema: Mapping[str, Any]) -> BadArguments:  # Any: JSON
    """All problems that pydantic found in `args`, the decoded JSON object, measured against the tool's own schema."""
    by_path: dict[str, list[ErrorDetails]] = {}
    for error in errors:
        by_path.setdefault(_path(error, args), []).append(error)
    lines = [_line(path, found, schema) for path, found in islice(by_path.items(), MAX_PROBLEMS)]
    if len(by_path) > len(lines):
        lines.append(f"and {len(by_path) - len(lines)} more problems")
    return BadArguments("\n".join(lines))


def one_problem(text: str) -> BadArguments:
    return BadArguments(_one_line(text))


def _path(error: ErrorDetails, args: Any) -> str:  # Any: decoded JSON
    """The steps of pydantic's location that exist in the JSON itself, or would if they were not missing."""
    here, path = args, ""
    for number, step in enumerate(error["loc"], 1):
        is_last = number == len(error["loc"])
        if isinstance(here, dict) and (step in here or (is_last and error["type"] == "missing")):
            here = cast("Mapping[Any, Any]", here).get(step)  # Any: decoded JSON
            path += f".{step}" if path else str(step)
        elif isinstance(here, list) and isinstance(step, int):
            items = cast("Sequence[Any]", here)  # Any: decoded JSON
            here = items[step] if 0 <= step < len(items) else None
            path += f"[{step}]"
    return path or "arguments"


def _line(path: str, errors: list[ErrorDetails], schema: Mapping[str, Any]) -> str:  # Any: JSON
    properties: Mapping[str, Any] = schema.get("properties", {})  # Any: JSON
    first = errors[0]
    if first["type"] in _UNKNOWN:
        known = f"the arguments are: {', '.join(properties)}" if properties else "this tool takes no arguments"
        text = f"unknown argument; {known}" if len(first["loc"]) == 1 else "unknown key; leave it out"
    elif first["type"] == "missing":
        text = "missing, but required" + _wanted(path, properties)
    else:
        expected = list(dict.fromkeys(_expectation(error) for error in errors))
        text = f"came {_quote(first['input'])}; {' or '.join(expected)}"
        if first["input"] is None and path in properties and path not in schema.get("required", ()):
            text += "; leave it out to use its default"
    return _one_line(f"{shorten(path, _QUOTED)}: {text}")


def _expectation(error: ErrorDetails) -> str:
    message = error["msg"]
    for start in ("Value error, ", "Assertion failed, "):
        if message.startswith(start):
            return message.removeprefix(start)
    if message.startswith("Input should be "):
        return message.replace("Input should be ", "expected ", 1)
    return message[:1].lower() + message[1:]


def _wanted(path: str, properties: Mapping[str, Any]) -> str:  # Any: JSON
    if path not in properties:
        return ""
    kept = {key: value for key, value in properties[path].items() if key not in _NOT_NEEDED_TO_KNOW}
    return f"; expected {shorten(json.dumps(kept, ensure_ascii=False), 2 * _QUOTED)}" if kept else ""


def _quote(value: Any) -> str:  # Any: decoded JSON
    return shorten(json.dumps(value, ensure_ascii=False, default=repr), _QUOTED)


def _one_line(text: str) -> str:
    return shorten(" ".join(clean(text).split()), MAX_PROBLEM_CHARS)

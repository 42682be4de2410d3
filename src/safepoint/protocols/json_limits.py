"""What is wrong with the bytes of a JSON body, before anything parses them. Pure.

A parser builds what it reads, so by then it is late: a million small values stall every other client, and a NaN, half a
surrogate or a NUL is stored and breaks every reader. Everything here works on the skeleton, the body without
its strings, in a handful of passes that run at the speed of memory; a long text or image costs next to nothing.
Broken syntax is left to the parser. Up to its first mistake the skeleton is exact, and a parser goes no further.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

_BRACKETS = re.compile(rb"[\[\]{}]")
_NUMBER = re.compile(rb"[0-9][0-9.eE+-]{3,}")
_INTEGER_DIGITS = 19
_TOKEN_BYTES = 40  # of a number or a word, and what stands around it
_HIGH, _LOW = rb"[89abAB][0-9a-fA-F]{2}", rb"[c-fC-F][0-9a-fA-F]{2}"
_HALF = re.compile(rb"\\u[dD](?:%b(?!\\u[dD]%b)|%b(?<!\\u[dD]%b\\u[dD]%b))" % (_HIGH, _LOW, _LOW, _HIGH, _LOW))


@dataclass(frozen=True, slots=True)
class JsonProblem:
    """`at`: the byte where it was noticed, as near as is known."""

    text: str
    at: int = 0


def find_problem(body: bytes, *, depth: int, values: int) -> JsonProblem | None:
    """Why a body must not be parsed; None if it may be. `depth`, `values`: how deep and how many are allowed."""
    try:
        body.decode()
    except UnicodeDecodeError as error:
        return JsonProblem(f"this is not UTF-8: {error.reason}", error.start)
    at = body.find(0)
    if at >= 0:
        return JsonProblem("a NUL character", at)
    if b"\\" in body:
        # From here on a backslash begins an escape, and never ends one.
        body = body.replace(rb"\\", b"  ")
        escape = _escape_flaw(body)
        if escape is not None:
            return escape
        body = body.replace(rb"\"", b"  ")
    if body.count(b'"') > 4 * values:  # a key and a value have two each
        return _too_many(values)
    return _skeleton_flaw(b"".join(body.split(b'"')[::2]).translate(None, b" \t\r\n"), depth, values)


def _escape_flaw(body: bytes) -> JsonProblem | None:
    if b"\\u" not in body:
        return None
    half, nul = _HALF.search(body), body.find(rb"\u0000")
    if half is not None:
        return JsonProblem("half of a surrogate pair: write both \\u escapes, or the character itself", half.start())
    return JsonProblem("a NUL character", nul) if nul >= 0 else None


def _skeleton_flaw(skeleton: bytes, depth: int, values: int) -> JsonProblem | None:
    opened = skeleton.count(b"[") + skeleton.count(b"{")
    parts = opened + skeleton.count(b",")
    if parts > values:
        return _too_many(values)
    if opened > depth and _is_deeper(skeleton, depth):
        return JsonProblem(f"it is nested more than {depth} deep")
    # Python's parser takes these for numbers; JSON has none of them.
    for word in (b"NaN", b"Infinity"):
        if word in skeleton:
            return JsonProblem(f"{word.decode()} is no JSON: write null or a number")
    if len(skeleton) > _TOKEN_BYTES * (parts + 2) or not all(map(_fits, _NUMBER.findall(skeleton))):
        return JsonProblem(f"a number that is too large: at most {_INTEGER_DIGITS} digits, or write it as a string")
    return None


def _fits(number: bytes) -> bool:
    if number.isdigit():
        return len(number) <= _INTEGER_DIGITS
    try:
        return math.isfinite(float(number))
    except ValueError:
        return True  # no number at all; the parser will say so


def _is_deeper(skeleton: bytes, limit: int) -> bool:
    now = 0
    for bracket in _BRACKETS.finditer(skeleton):
        now += 1 if bracket[0] in b"[{" else -1
        if now > limit:
            return True
    return False


def _too_many(values: int) -> JsonProblem:
    return JsonProblem(f"it has more than {values} values")

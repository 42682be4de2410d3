"""What must not be parsed is found in the bytes, and nothing else is."""

from __future__ import annotations

import json
import random
from typing import Any, cast

import pytest

from safepoint.protocols.json_limits import find_problem

LIMITS = {"depth": 5, "values": 20}


def flaw(body: bytes) -> str | None:
    found = find_problem(body, **LIMITS)
    return None if found is None else found.text


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b'{"a": NaN}', "NaN"),
        (b"[Infinity]", "Infinity"),
        (b"[-Infinity]", "Infinity"),
        (b"[1e999]", "too large"),
        (b"[-1E+400]", "too large"),
        (b"[12345678901234567890]", "too large"),
        (b"[" + b"9" * 400 + b".0]", "too large"),
        (b"[" + b"9" * 5000 + b"]", "too large"),
        (rb'["\ud800"]', "surrogate"),
        (rb'["\uDC00"]', "surrogate"),
        (rb'["\ud83d \ude00"]', "surrogate"),
        (rb'["\ud83d\\\ude00"]', "surrogate"),
        (rb'{"\udfff": 1}', "surrogate"),
        (rb'["\u0000"]', "NUL"),
        (rb'["\\\u0000"]', "NUL"),
        (b'["a\x00"]', "NUL"),
        ('["a"]'.encode("utf-16"), "UTF-8"),
        ('["a"]'.encode("utf-32-le"), "NUL"),
        (b'["\xff"]', "UTF-8"),
        (b'["\xed\xa0\x80"]', "UTF-8"),
        (b'["\xc0\x80"]', "UTF-8"),
        (b"[" * 6 + b"]" * 6, "nested"),
        (b'{"a":' * 6 + b"1" + b"}" * 6, "nested"),
        (b"[" * 100_000, "values"),
        (b"[" + b"1," * 30 + b"1]", "values"),
        (b"[" + b'"",' * 90 + b'""]', "values"),
        (b"[" + b"[]," * 30 + b"[]]", "values"),
    ],
)
def test_a_body_that_must_not_be_parsed_is_named(body: bytes, says: str) -> None:
    assert says in (flaw(body) or "")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"not json",
        b'{"a": "NaN Infinity 1e999 [[[[[[[[[ ,,,,,,,,,,,,,,,,,,,,,,,,,,,,"}',
        rb'["\\u0000", "\\ud800", "\\\\", "\"", "[\"[[[[[[["]',
        rb'["\ud83d\ude00", "\u00e9"]',
        '["é 😀 \u2028"]'.encode(),
        b"[1e308, -1.5E-400, 0.1234567890123456789012, 1234567890123456789, true, false]",
        b"[[[[[1]]]]]",
        b"[" + b"[[]]," * 5 + b"1]",
        b'{"text": "' + b"a" * 1_000_000 + b'"}',
        b'["\\"\\"\\""]',
        b"[    " + b" " * 10_000 + b"1]",
        b'"' * 3,
    ],
)
def test_everything_else_is_left_to_the_parser(body: bytes) -> None:
    assert flaw(body) is None


def test_escapes_are_judged_as_the_parser_reads_them() -> None:
    rng = random.Random(7)
    pieces = [r"\ud83d", r"\ude00", r"\\", r"\"", r"\u0041", "a", r"\n", r"\uDBFF", r"\uDfff", r"\u0000", "["]
    for _ in range(5_000):
        body = '["' + "".join(rng.choices(pieces, k=rng.randrange(7))) + '"]'
        text: str = json.loads(body)[0]
        bad = any(char == "\0" or 0xD800 <= ord(char) <= 0xDFFF for char in text)
        assert (flaw(body.encode()) is not None) == bad, body


def test_what_passes_is_no_deeper_and_no_larger_than_allowed() -> None:
    rng = random.Random(3)

    def grow(depth: int) -> Any:  # Any: JSON
        match rng.randrange(5 if depth else 3):
            case 0:
                return rng.choice([1, -2.5, 10**18, 10**20, True, None])
            case 1 | 2:
                return "".join(rng.choices('a[]{}",\\\n1e9', k=rng.randrange(6)))
            case 3:
                return [grow(depth - 1) for _ in range(rng.randrange(4))]
            case _:
                return {str(n) + rng.choice('x"[\\'): grow(depth - 1) for n in range(rng.randrange(4))}

    refused = 0
    for _ in range(2_000):
        value = grow(8)
        found = flaw(json.dumps(value).encode())
        bad = depth_of(value) > 5 or 10**20 in leaves(value)
        refused += found is not None
        if "values" not in (found or ""):
            assert (found is not None) == bad, (value, found)
    assert 100 < refused < 1_900


def depth_of(value: Any) -> int:  # Any: JSON
    inside = inside_of(value)
    return 0 if inside is None else 1 + max(map(depth_of, inside), default=0)


def leaves(value: Any) -> list[object]:  # Any: JSON
    inside = inside_of(value)
    return [value] if inside is None else [leaf for each in inside for leaf in leaves(each)]


def inside_of(value: Any) -> list[Any] | None:  # Any: JSON
    if isinstance(value, dict):
        return list(cast(dict[str, Any], value).values())  # Any: as above
    return value if isinstance(value, list) else None  # pyright: ignore[reportUnknownVariableType]  # items of any type

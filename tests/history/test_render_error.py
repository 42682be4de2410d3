from __future__ import annotations

from typing import NoReturn

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from safepoint.history.rendering import MAX_ERROR_CHARS, render_error

any_text = st.text(st.characters() | st.sampled_from("\ud800\udfff\ud83d\ude00\x00 "))


class Mute(Exception):
    def __str__(self) -> NoReturn:
        raise RuntimeError("no")


class Wordless(Exception):
    def __str__(self) -> str:
        return None  # type: ignore[return-value]  # the mistake under test


class Numbered(BaseExceptionGroup[BaseException]):
    pass


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("bad number"), "ValueError: bad number"),
        (KeyError("x"), "KeyError: 'x'"),
        (TimeoutError(), "TimeoutError"),
        (ValueError("  "), "ValueError"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (Mute("x"), "Mute: (its message could not be read: RuntimeError)"),
        (Wordless("x"), "Wordless: (its message could not be read: TypeError)"),
        (ValueError("a\x00\ud800b"), "ValueError: a\ufffd\ufffdb"),
    ],
)
def test_an_error_is_its_type_and_its_message(error: BaseException, expected: str) -> None:
    assert render_error(error) == expected


def test_the_parts_of_a_group_are_told() -> None:
    group = ExceptionGroup("two things", [ValueError("a"), ExceptionGroup("inner", [KeyError("b"), Mute()])])
    told = render_error(group)
    assert told.startswith("ExceptionGroup: two things")
    assert "ValueError: a" in told
    assert "KeyError: 'b'" in told
    assert "Mute" in told


def test_a_large_group_says_how_many_parts_are_left_out() -> None:
    told = render_error(Numbered("many", [ValueError(str(number)) for number in range(100)]))
    assert "ValueError: 4" in told
    assert "ValueError: 5" not in told
    assert told.endswith("and 95 more")


def test_a_deep_group_ends() -> None:
    group: ExceptionGroup[Exception] = ExceptionGroup("deepest", [ValueError("x")])
    for level in range(500):
        group = ExceptionGroup(f"level {level}", [group])
    assert "level 499" in render_error(group)
    assert "deepest" not in render_error(group)


def test_a_long_message_is_cut_and_says_by_how_much() -> None:
    told = render_error(ValueError("x" * 10_000))
    assert len(told) <= MAX_ERROR_CHARS
    shown, tail = told.split("\n")
    assert tail == f"[cut here: {len('ValueError: ') + 10_000 - len(shown)} more characters were left out]"


@settings(deadline=None)
@given(any_text, st.sampled_from([ValueError, KeyError, Mute, OSError, SystemExit]))
def test_any_error_becomes_a_bounded_text_that_can_be_sent(message: str, kind: type[BaseException]) -> None:
    told = render_error(kind(message))
    assert told.startswith(kind.__name__)
    assert len(told) <= MAX_ERROR_CHARS
    told.encode()

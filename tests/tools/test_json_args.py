from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from safepoint.tools.json_args import MAX_ARGUMENTS_CHARS, MAX_ARGUMENTS_DEPTH, decode_arguments

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
any_text = st.text(st.characters() | st.sampled_from("\ud800\udfff\ud83d\ude00\x00 "))
json_like = st.text(alphabet='{}[]":,\\ud8\n\x00eE+-.0123NaInfityrl ', max_size=60)


def reason(text: str) -> str:
    args, why = decode_arguments(text)
    assert args == {}
    assert why is not None
    return why


@pytest.mark.parametrize("text", ["", " ", "\n\t "])
def test_an_empty_text_means_no_arguments(text: str) -> None:
    assert decode_arguments(text) == ({}, None)


def test_an_object_is_decoded_in_its_order() -> None:
    args, why = decode_arguments(' {"b": [1, 2.5, null, true], "a": {"é": "x"}} ')
    assert (list(args.items()), why) == ([("b", [1, 2.5, None, True]), ("a", {"é": "x"})], None)


@settings(deadline=None)
@given(st.dictionaries(st.text(), json_values))
def test_what_json_wrote_comes_back_the_same(args: dict[str, Any]) -> None:
    assert decode_arguments(json.dumps(args)) == (args, None)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("[1]", "a list"),
        ('"x"', "a string"),
        ("5", "a number"),
        ("2.5", "a number"),
        ("true", "a boolean"),
        ("null", "null"),
        (json.dumps('{"a": 1}'), "a string"),
    ],
)
def test_what_is_no_object_is_named(text: str, kind: str) -> None:
    assert reason(text).startswith(f"the arguments must be a JSON object, not {kind};")


def test_invalid_json_is_refused_with_its_position_and_surroundings() -> None:
    why = reason('{"a": 1,\n "b": oops}')
    assert "at line 2 column 7" in why
    assert "oops}" in why


@pytest.mark.parametrize("text", ['{"a": 1', '{"a": ', '{"a', "{"])
def test_a_text_that_was_cut_off_is_refused(text: str) -> None:
    assert "not valid JSON" in reason(text)


def test_a_text_that_ends_too_early_is_called_incomplete() -> None:
    assert "incomplete" in reason('{"a": [1, 2]')


def test_a_second_object_after_the_first_is_refused() -> None:
    assert "extra data" in reason('{"a": 1}{"a": 2}')


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
def test_a_number_that_is_not_finite_is_refused_by_its_name(number: str) -> None:
    assert number in reason(f'{{"a": [{number}]}}')


def test_a_number_with_too_many_digits_is_refused() -> None:
    assert "too many digits" in reason('{"a": ' + "9" * 5_000 + "}")


def test_a_key_that_is_given_twice_is_refused_by_its_name_at_any_depth() -> None:
    assert '"amount" is given twice' in reason('{"amount": 1, "amount": 1000}')
    assert '"x" is given twice' in reason('{"a": [{"x": 1, "x": 1}]}')
    assert decode_arguments('{"a": {"x": 1}, "b": {"x": 1}}')[1] is None


def test_half_of_a_surrogate_pair_is_refused_in_values_and_in_keys() -> None:
    assert "surrogate" in reason('{"a": ["\\ud83d"]}')
    assert "surrogate" in reason('{"\\ude00": 1}')
    assert "surrogate" in reason('{"a": "\ud83d"}')


def test_both_halves_of_a_surrogate_pair_are_one_character() -> None:
    assert decode_arguments('{"a": "\\ud83d\\ude00"}') == ({"a": "😀"}, None)


def test_a_raw_newline_inside_a_string_is_taken_as_a_newline() -> None:
    assert decode_arguments('{"code": "a\nb"}') == ({"code": "a\nb"}, None)


def nested(depth: int) -> str:
    return '{"a": ' + "[" * (depth - 1) + "]" * (depth - 1) + "}"


@pytest.mark.parametrize("depth", [MAX_ARGUMENTS_DEPTH + 1, 500, 100_000])
def test_nesting_beyond_the_limit_is_refused_and_never_overflows_the_stack(depth: int) -> None:
    assert f"at most {MAX_ARGUMENTS_DEPTH} levels" in reason(nested(depth))


def test_nesting_up_to_the_limit_is_accepted() -> None:
    assert decode_arguments(nested(MAX_ARGUMENTS_DEPTH))[1] is None


def test_a_text_beyond_the_size_limit_is_refused_unread() -> None:
    assert str(MAX_ARGUMENTS_CHARS) in reason('{"a": "' + "x" * MAX_ARGUMENTS_CHARS + '"}')
    assert decode_arguments('{"a": "' + "x" * (MAX_ARGUMENTS_CHARS - 9) + '"}')[1] is None


@settings(deadline=None)
@given(any_text | json_like)
@example('{"' + "\ud800" * 100 + '": 1, "' + "\ud800" * 100 + '": 1}')
@example("\ufeff{}")
@example('{"a": ' + "x" * 1_000)
@example('{"a": -}')
def test_any_text_gives_arguments_or_a_short_reason_that_can_be_sent(text: str) -> None:
    args, why = decode_arguments(text)
    json.dumps(args, ensure_ascii=False, allow_nan=False).encode()
    if why is not None:
        assert args == {}
        assert 0 < len(why.encode()) < 1_000
        assert "\n" not in why

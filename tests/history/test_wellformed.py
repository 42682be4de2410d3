"""Text and arguments that can travel."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from safepoint.history import json_fault, well_formed
from tests.history.conversations import PATIENT, json_values, wild_text


@PATIENT
@given(wild_text)
def test_mended_text_has_a_utf_8_form_and_mending_it_again_changes_nothing(text: str) -> None:
    mended = well_formed(text)
    mended.encode()
    assert well_formed(mended) == mended


@PATIENT
@given(st.text(st.characters(codec="utf-8")))
def test_text_that_is_well_formed_stays_as_it_is(text: str) -> None:
    assert well_formed(text) is text


def test_halves_of_a_pair_are_joined_and_lost_halves_replaced() -> None:
    assert well_formed("a\ud83d\ude00b") == "a\U0001f600b"
    assert well_formed("\ude00\ud83d") == "\ufffd\ufffd"
    assert well_formed("\ud83dé") == "\ufffdé"


@PATIENT
@given(json_values)
def test_json_has_no_fault(value: object) -> None:
    assert json_fault(value) is None
    json.dumps(value, allow_nan=False).encode()


def test_a_fault_is_named() -> None:
    assert json_fault(float("inf")) == "it holds inf, which JSON does not have"
    assert json_fault([object()]) == "it holds a value of type object, which JSON does not have"
    assert json_fault({"a": {2: 3}}) == "a key is int instead of str"


def test_a_wide_value_that_contains_itself_is_refused_at_once() -> None:
    wide: list[object] = []
    wide.extend([wide] * 1000)
    assert json_fault(wide) == "it nests deeper than 64 levels, or contains itself"


def test_lists_count_as_levels_too() -> None:
    value: object = "leaf"
    for _ in range(64):
        value = [value]
    assert json_fault(value) is None
    assert json_fault([value]) == "it nests deeper than 64 levels, or contains itself"
    assert json_fault((value,)) == "it nests deeper than 64 levels, or contains itself"

"""A body that is wrong in very many places is told of as briefly as one that is wrong in one."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from safepoint.protocols.adk.requests import RunRequest
from safepoint.server.app import readable_errors
from safepoint.server.requests import CancelRequest


def errors_of(model: type[RunRequest] | type[CancelRequest], body: object) -> ValidationError:
    with pytest.raises(ValidationError) as caught:
        model.model_validate(body)
    return caught.value


@pytest.mark.parametrize(
    ("model", "body"),
    [
        (RunRequest, {"newMessage": {"parts": [1] * 100_000}}),
        (RunRequest, {"newMessage": {"parts": [{"text": ""}] * 100_000}}),
        (RunRequest, {"newMessage": {"parts": [{"x": 1}] * 100_000}}),
        (CancelRequest, {"at": [1] * 100_000}),
        (CancelRequest, {"at": ["now"] * 100_000}),
    ],
)
def test_many_errors_are_not_even_looked_for(model: type[RunRequest] | type[CancelRequest], body: object) -> None:
    assert errors_of(model, body).error_count() < 2_010


def test_what_was_sent_is_shown_in_part() -> None:
    body = {"newMessage": {"parts": [{f"unknown{number}": "x" * 10_000 for number in range(1000)}]}}
    errors = readable_errors(errors_of(RunRequest, body).errors())
    assert len(errors) == 20
    assert len(json.dumps(errors, default=str)) < 100_000
    deep: object = "end"
    for _ in range(60):
        deep = [deep] * 3
    assert len(json.dumps(readable_errors([{"input": deep}]))) < 2_000


def test_what_is_small_is_shown_whole() -> None:
    small = {"a": [1, None, True, {"b": "c"}], "d": "e"}
    assert readable_errors([{"type": "t", "loc": ("body",), "input": small}]) == [
        {"type": "t", "loc": ("body",), "input": small}
    ]

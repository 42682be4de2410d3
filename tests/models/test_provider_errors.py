"""What a provider's error means, and how long it wishes to be left alone."""

from __future__ import annotations

import pytest

from safepoint.errors import ModelError, ModelNotReady, ModelUnavailable
from safepoint.models.provider_errors import refusal, retry_after


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504, 529])
def test_what_may_pass_can_be_tried_again(status: int) -> None:
    assert type(refusal("m", "x", status=status)) is ModelUnavailable


@pytest.mark.parametrize("status", [400, 403, 404, 413, 422])
def test_what_will_not_pass_is_not_tried_again(status: int) -> None:
    assert type(refusal("m", "x", status=status)) is ModelError


def test_inside_a_stream_the_name_of_the_error_decides() -> None:
    assert type(refusal("m", "x", status=None, kind="overloaded_error")) is ModelUnavailable
    assert type(refusal("m", "x", status=None, kind="RESOURCE_EXHAUSTED")) is ModelUnavailable
    assert type(refusal("m", "x", status=None, kind="invalid_request_error")) is ModelError


def test_an_empty_purse_does_not_fill_by_waiting() -> None:
    assert type(refusal("m", "x", status=429, kind="insufficient_quota")) is ModelError


def test_a_key_that_was_refused_is_named() -> None:
    error = refusal("m", "x", status=401, key="OPENAI_API_KEY")
    assert type(error) is ModelNotReady
    assert "OPENAI_API_KEY" in str(error)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after": "Thu, 01 Jan 1970 00:01:00 GMT"}, 50.0),
        ({"retry-after": "Thu, 01 Jan 1970 00:00:00 GMT"}, 0.0),
        ({"retry-after": "soon"}, None),
    ],
)
def test_the_wish_is_understood_in_each_of_its_forms(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers, now=10.0) == seconds

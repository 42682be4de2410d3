"""What a client is told about a request of the wrong shape: as ADK's server says it, and never at length.

A body may be wrong in a hundred thousand places. Each would be an error with a copy of what was sent; telling all of
them takes seconds in which nobody else is served.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, cast

from fastapi import Request
from fastapi.encoders import jsonable_encoder
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

_ERRORS = 20
_INSIDE = 20
_TEXT = 500


async def answer_invalid(request: Request, error: Exception) -> JSONResponse:
    """Cancellation: there is nothing to wait for."""
    assert isinstance(error, RequestValidationError)
    return JSONResponse({"detail": jsonable_encoder(told(error.errors()))}, 422)


def told(errors: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:  # Any: as pydantic makes them
    """The first of the errors, each with a glimpse of what was sent."""
    return [{**error, "input": glimpse(error.get("input"))} for error in islice(errors, _ERRORS)]


def glimpse(value: Any, depth: int = 3) -> Any:  # Any: JSON
    """The value, with `…` for what there is too much of."""
    match value:
        case str():
            return value if len(value) <= _TEXT else f"{value[:_TEXT]}…"
        case dict():
            pairs = islice(cast(dict[str, Any], value).items(), _INSIDE)
            shown = {glimpse(name): glimpse(each, depth - 1) for name, each in pairs} if depth else {}
            return shown if len(shown) == len(cast(dict[str, Any], value)) else {**shown, "…": "…"}
        case list():
            items = cast(list[Any], value)
            shown_items = [glimpse(each, depth - 1) for each in items[:_INSIDE]] if depth else []
            return shown_items if len(shown_items) == len(items) else [*shown_items, "…"]
        case _:
            return value

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
    if isinstance(value, str):
        return value if len(value) <= _TEXT else f"{value[:_TEXT]}…"
    if isinstance(value, dict):
        named = cast(dict[str, Any], value)  # Any: as above
        pairs = islice(named.items(), _INSIDE if depth else 0)
        shown = {glimpse(name): glimpse(each, depth - 1) for name, each in pairs}
        return shown if len(shown) == len(named) else {**shown, "…": "…"}
    if isinstance(value, list):
        items = cast(list[Any], value)  # type: ignore[redundant-cast]  # pyright sees a list of the unknown
        glimpses = [glimpse(each, depth - 1) for each in items[: _INSIDE if depth else 0]]
        return glimpses if len(glimpses) == len(items) else [*glimpses, "…"]
    return value

"""A route that is called at once, for the two that are called all day.

FastAPI resolves a handler's parameters anew for each request, inside two stacks for what they may have to close, which
takes about as long as all the rest of a short request. Here the declaration stays what it is, for the schema and the
docs; only who calls the handler changes. What is wrong with a body is told in the same words.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from fastapi.routing import APIRoute
from pydantic import ValidationError
from starlette.types import Receive, Scope, Send

from safepoint.server.principal import Principal
from safepoint.server.requests import RunRequest
from safepoint.server.run_manager import RunManager


class FastRoute(APIRoute):
    """For handlers whose parameters are `(host, who, body: RunRequest, request)`, in this order."""

    endpoint: Callable[
        [RunManager, Principal, RunRequest, Request], Coroutine[Any, Any, Response]
    ]  # Any: as FastAPI has it

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Cancellation: that of the request."""
        if scope["method"] not in (self.methods or ()):
            await super().handle(scope, receive, send)  # which refuses it
            return
        request = Request(scope, receive, send)
        body = checked(await request.body(), request.headers.get("content-type", ""))
        answer = await self.endpoint(request.app.state.manager, scope["safepoint.principal"], body, request)
        await answer(scope, receive, send)


def checked(data: bytes, content_type: str) -> RunRequest:
    """Raises `RequestValidationError` with what is wrong and where, as FastAPI would."""
    if not data:
        raise RequestValidationError([{"type": "missing", "loc": ("body",), "msg": "Field required", "input": None}])
    try:
        # A form of another site could send any other type without being asked.
        value: object = json.loads(data) if is_json(content_type) else data
        return RunRequest.model_validate(value, from_attributes=True)  # so does FastAPI, and says so
    except json.JSONDecodeError as error:
        place, why = ("body", error.pos), {"error": error.msg}
        flaw = {"type": "json_invalid", "loc": place, "msg": "JSON decode error", "input": dict[str, str](), "ctx": why}
        raise RequestValidationError([flaw]) from error
    except UnicodeDecodeError as error:
        raise HTTPException(400, "There was an error parsing the body") from error
    except ValidationError as error:
        found = [{**each, "loc": ("body", *each["loc"])} for each in error.errors(include_url=False)]
        raise RequestValidationError(found) from error


def is_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))

"""The routes that are called without FastAPI's resolver answer as they would with it."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Any

import pytest
from fastapi import APIRouter, Body, FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.types import Message

from safepoint.protocols.adk.requests import RunRequest
from safepoint.server.routes.runs import FastRoute, is_json

GOOD = {"appName": "a", "userId": "u", "sessionId": "s", "newMessage": {"role": "user", "parts": [{"text": "hi"}]}}
JSON = "application/json"


async def direct(host: None, who: None, body: RunRequest, request: Request) -> Response:
    return JSONResponse(body.model_dump(mode="json"))


async def resolved(body: Annotated[RunRequest, Body()]) -> Response:
    return JSONResponse(body.model_dump(mode="json"))


@pytest.fixture(scope="module")
def app() -> FastAPI:
    made, routes = FastAPI(), APIRouter(route_class=FastRoute)
    routes.post("/direct", response_model=None)(direct)
    made.include_router(routes)
    made.post("/resolved", response_model=None)(resolved)
    made.state.manager = None
    return made


def ask(app: FastAPI, path: str, body: bytes, content_type: str | None) -> tuple[int, Any]:  # Any: JSON
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [] if content_type is None else [(b"content-type", content_type.encode())]
    scope: dict[str, Any] = {  # Any: as ASGI has it
        **{"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http"},
        **{"path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "", "headers": headers},
        "safepoint.principal": None,
    }
    asyncio.run(app(scope, receive, send))
    return sent[0]["status"], json.loads(sent[1]["body"])


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (json.dumps(GOOD).encode(), JSON),
        (json.dumps(GOOD).encode(), "application/json; charset=utf-8"),
        (json.dumps(GOOD).encode(), "application/vnd.api+json"),
        (json.dumps({**GOOD, "user_id": "u", "if_busy": "queue"}).encode(), JSON),
        (json.dumps({**GOOD, "userId": 3}).encode(), JSON),
        (json.dumps({**GOOD, "ifBusy": "never", "onDisconnect": {"cancelAfter": -1}}).encode(), JSON),
        (json.dumps({**GOOD, "newMessage": {"parts": [{"txet": "hi"}]}}).encode(), JSON),
        (b"{}", JSON),
        (b"[]", JSON),
        (b"null", JSON),
        (b'{"appName": ', JSON),
        (b"\xff\xfe{", JSON),
        (b"", JSON),
    ],
)
def test_the_answer_is_the_same(app: FastAPI, body: bytes, content_type: str) -> None:
    expected = ask(app, "/resolved", body, content_type)
    assert ask(app, "/direct", body, content_type) == expected


@pytest.mark.parametrize(
    "content_type", [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"]
)
def test_what_a_form_of_another_site_could_send_is_refused(app: FastAPI, content_type: str | None) -> None:
    assert ask(app, "/direct", json.dumps(GOOD).encode(), content_type)[0] == 422


def test_the_schema_still_has_the_body(app: FastAPI) -> None:
    paths: dict[str, Any] = app.openapi()["paths"]  # Any: JSON
    assert paths["/direct"]["post"]["requestBody"] == paths["/resolved"]["post"]["requestBody"]


def test_json_has_several_names() -> None:
    assert is_json("Application/JSON")
    assert not is_json("application/jsonp")

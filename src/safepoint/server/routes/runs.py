"""Run an agent: to the end, or as a stream."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from fastapi import APIRouter, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi.routing import APIRoute
from pydantic import ValidationError
from starlette.types import Receive, Scope, Send

from safepoint.server import described
from safepoint.server.authorization import Authorization, authorization_of
from safepoint.server.dependencies import Manager, Who
from safepoint.server.event_stream import EventStream
from safepoint.server.feed import Feed
from safepoint.server.managed_run import ManagedRun
from safepoint.server.openapi import answers, by_name, errors, streams
from safepoint.server.requests import RunRequest
from safepoint.server.run_lookup import RunLookup
from safepoint.server.run_manager import RunManager
from safepoint.server.wire_events import latest
from safepoint.serving.principal import Principal
from safepoint.storage.run_records import RunRecord

# A route that is called at once, for the two that are called all day.
#
# FastAPI resolves a handler's parameters anew for each request, inside two stacks for what they may have to close. That
# takes about as long as all the rest of a short request. Here the declaration stays what it is, for the schema and the
# docs; only the caller of the handler changes. What is wrong with a body is told in the same words.


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


_A_MOMENT = 0.05

routes = APIRouter(route_class=FastRoute, generate_unique_id_function=by_name)


@routes.post("/run", response_model=None, responses=answers(list[described.Event]) | errors(409))
async def run(manager: Manager, who: Who, body: RunRequest, request: Request) -> Response:
    managed, feed = await _submit(manager, who, body)
    with feed.view() as viewer:
        if managed is None:
            return JSONResponse(latest(await viewer.all()))
        authorization = authorization_of(request.scope)
        await _until_gone(request, managed, authorization)
        refusal = authorization.check()
    if refusal is not None:
        raise HTTPException(refusal.status, refusal.text, dict(refusal.headers or {}))
    return JSONResponse(latest(viewer.rest()))


@routes.post(
    "/run_sse", response_model=None, response_class=EventStream, status_code=200, responses=streams() | errors(409)
)
async def run_sse(manager: Manager, who: Who, body: RunRequest, request: Request) -> Response:
    managed, feed = await _submit(manager, who, body)
    run_id = feed.event_context.run_id if managed is None else managed.id
    return EventStream(feed, manager.config, partials=body.streaming, run_id=run_id)


async def _submit(manager: RunManager, who: Principal, body: RunRequest) -> tuple[ManagedRun | None, Feed]:
    """The run and what it tells; without the run if that is long over. Cancellation: accepted, or not."""
    app = body.app_name or manager.config.default_app
    if app is None:
        raise HTTPException(400, "app_name is required")
    key = who.session(app, body.user_id, body.session_id)
    submitted = await manager.submit(who, key, body)
    if isinstance(submitted, RunRecord):
        return None, await RunLookup(manager).replay(submitted)
    await submitted.admitted.wait()
    if submitted.refused is not None:
        raise submitted.refused
    return submitted, submitted.feed


async def _until_gone(request: Request, managed: ManagedRun, authorization: Authorization) -> None:
    """Until the run is over, or its caller has left or may not stay. Cancellation: only the waiting ends."""
    loop = asyncio.get_running_loop()
    woken: asyncio.Future[None] = loop.create_future()
    managed.over.when_set(partial(_finish, woken))
    # A run that takes no longer than this costs no task that watches its caller.
    later = loop.call_later(_A_MOMENT, _finish, woken)
    try:
        await woken
    finally:
        later.cancel()
    if not managed.over.is_set:
        refused = asyncio.Event()
        authorization.when_refused(refused.set)
        await _until_one(managed.over.wait(), _disconnected(request), _set(refused))


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def _until_one(*waits: Coroutine[None, None, None]) -> None:
    """Cancellation: of all, which are waited for."""
    tasks = {asyncio.ensure_future(wait) for wait in waits}
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=1.0)


async def _set(event: asyncio.Event) -> None:
    await event.wait()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass

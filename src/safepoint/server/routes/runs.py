"""Run an agent: to the end, or as a stream."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from fastapi import APIRouter, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from fastapi.routing import APIRoute
from pydantic import ValidationError
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from safepoint.protocols.adk import WIRE
from safepoint.protocols.adk.events import encode
from safepoint.protocols.adk.requests import RunRequest, refused
from safepoint.protocols.event_stream import EventStream
from safepoint.protocols.http import PRINCIPAL, Access, Manager, Who, access_of
from safepoint.server import described
from safepoint.server.openapi import answers, by_name, errors, streams
from safepoint.serving.feed import Feed, Frame
from safepoint.serving.managed_run import ManagedRun
from safepoint.serving.principal import Principal
from safepoint.serving.run_lookup import RunLookup
from safepoint.serving.run_manager import RunManager
from safepoint.serving.submission import NothingToAnswer
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
        body = checked(await _whole_body(receive), _content_type(scope))
        request = Request(scope, receive, send)
        answer = await self.endpoint(scope["app"].state.manager, scope[PRINCIPAL], body, request)
        await answer(scope, receive, send)


async def _whole_body(receive: Receive) -> bytes:
    """Raises `ClientDisconnect`. Cancellation: that of the request."""
    pieces, more = list[bytes](), True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        pieces.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(pieces)


def _content_type(scope: Scope) -> str:
    return next((value.decode("latin-1") for name, value in scope["headers"] if name == b"content-type"), "")


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
        detail = {
            "type": "json_invalid",
            "loc": place,
            "msg": "JSON decode error",
            "input": dict[str, str](),
            "ctx": why,
        }
        raise RequestValidationError([detail]) from error
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
            return _events(await viewer.all())
        access = access_of(request.scope)
        await _until_gone(request, managed, access)
        refusal = access.check()
        frames = viewer.rest()
    if refusal is not None:
        raise HTTPException(refusal.status, refusal.text, dict(refusal.headers or {}))
    return _events(frames)


@routes.post(
    "/run_sse", response_model=None, response_class=EventStream, status_code=200, responses=streams() | errors(409)
)
async def run_sse(manager: Manager, who: Who, body: RunRequest, request: Request) -> Response:
    managed, feed = await _submit(manager, who, body)
    run_id = feed.turn.run_id if managed is None else managed.id
    return EventStream(feed, WIRE, manager.config, run_id=run_id, partials=body.streaming)


def _events(frames: Sequence[Frame]) -> Response:
    """A JSON list, of events that are encoded once however many clients get them."""
    text = ",".join([frame.encoded(encode) for frame in frames])
    return Response(f"[{text}]", media_type="application/json")


async def _submit(manager: RunManager, who: Principal, body: RunRequest) -> tuple[ManagedRun | None, Feed]:
    """The run and what it tells; without the run if that is long over. Cancellation: accepted, or not."""
    app = body.app_name or manager.config.default_app
    if app is None:
        raise HTTPException(400, "app_name is required")
    key = who.session(app, body.user_id, body.session_id)
    try:
        submitted = await manager.submit(who, key, body.submission())
    except NothingToAnswer as error:
        raise refused(error, body.invocation_id) from error
    if isinstance(submitted, RunRecord):
        return None, await RunLookup(manager).replay(submitted)
    await submitted.admitted.wait()
    if submitted.refused is not None:
        raise submitted.refused
    return submitted, submitted.feed


async def _until_gone(request: Request, managed: ManagedRun, access: Access) -> None:
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
        access.when_refused(refused.set)
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

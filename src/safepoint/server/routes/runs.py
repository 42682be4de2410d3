"""Run an agent: to the end, or as a stream."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine
from functools import partial

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import JSONResponse, Response
from sse_starlette import EventSourceResponse, ServerSentEvent

from safepoint.server.direct import DirectRoute
from safepoint.server.feed import Feed, Viewer
from safepoint.server.finding import Finder
from safepoint.server.host import Host
from safepoint.server.hosted import HostedRun
from safepoint.server.principal import Principal, Who
from safepoint.server.requests import RunRequest
from safepoint.server.served import Served
from safepoint.server.wire_events import Json, latest
from safepoint.sessions.records import RunRecord

_NO_BUFFERING = {"Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no"}

_A_MOMENT = 0.05

routes = APIRouter(route_class=DirectRoute)


@routes.post("/run")
async def run(host: Served, who: Who, body: RunRequest, request: Request) -> Response:
    hosted, feed = await _submit(host, who, body)
    viewer = feed.view()
    if hosted is None:
        return JSONResponse(latest(await viewer.all()))
    try:
        await _until_gone(request, hosted)
    finally:
        viewer.leave()
        host.left(hosted)
    return JSONResponse(latest(viewer.rest()))


@routes.post("/run_sse")
async def run_sse(host: Served, who: Who, body: RunRequest, request: Request) -> Response:
    hosted, feed = await _submit(host, who, body)
    return stream(host, hosted, feed.view(), partials=body.streaming)


async def _submit(host: Host, who: Principal, body: RunRequest) -> tuple[HostedRun | None, Feed]:
    """The run and what it tells; without the run if that is long over. Cancellation: accepted, or not."""
    if body.app_name is None:
        raise HTTPException(400, "app_name is required")
    key = who.session(body.app_name, body.user_id, body.session_id)
    submitted = await host.submit(who, key, body)
    if isinstance(submitted, RunRecord):
        return None, await Finder(host).replay(submitted)
    await submitted.admitted.wait()
    if submitted.refused is not None:
        raise submitted.refused
    return submitted, submitted.feed


async def _until_gone(request: Request, hosted: HostedRun) -> None:
    """Until the run is over or its caller has left. Cancellation: only the waiting ends."""
    loop = asyncio.get_running_loop()
    woken: asyncio.Future[None] = loop.create_future()
    hosted.over.when_set(partial(_finish, woken))
    # A run that takes no longer than this costs no task that watches its caller.
    later = loop.call_later(_A_MOMENT, _finish, woken)
    try:
        await woken
    finally:
        later.cancel()
    if not hosted.over.is_set:
        await _until_one(hosted.over.wait(), _disconnected(request))


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def _until_one(*waits: Coroutine[None, None, None]) -> None:
    """Cancellation: of both, which are waited for."""
    tasks = {asyncio.ensure_future(wait) for wait in waits}
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=1.0)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def stream(host: Host, hosted: HostedRun | None, viewer: Viewer, *, partials: bool) -> Response:
    viewer.partials = partials
    return EventSourceResponse(
        _frames(host, hosted, viewer), ping=host.config.keep_alive_seconds, headers=_NO_BUFFERING, sep="\n"
    )


async def _frames(host: Host, hosted: HostedRun | None, viewer: Viewer) -> AsyncIterator[ServerSentEvent]:
    """Cancellation: the viewer leaves; what that means for the run is its policy."""
    try:
        while (frame := await viewer.next()) is not None:
            yield ServerSentEvent(data=_dump(frame.event), id=str(frame.seq))
        if viewer.feed.error is not None:
            yield ServerSentEvent(data=_dump(viewer.feed.error))
    finally:
        viewer.leave()
        if hosted is not None:
            host.left(hosted)


def _dump(event: Json) -> str:
    return json.dumps(event, separators=(",", ":"), ensure_ascii=False)

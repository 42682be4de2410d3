"""Run an agent and watch it: to the end, as a stream, or later again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import JSONResponse, Response
from sse_starlette import EventSourceResponse, ServerSentEvent

from safepoint.server.answers import record_json, run_json, without_nulls
from safepoint.server.feed import Viewer
from safepoint.server.host import Host
from safepoint.server.hosted import HostedRun
from safepoint.server.ids import SessionKey, check_id
from safepoint.server.requests import RunRequest, SteerRequest
from safepoint.server.wire_events import Json
from safepoint.sessions.records import RunRecord, RunState

_NO_BUFFERING = {"Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no"}


def run_routes(host: Host) -> APIRouter:
    routes = APIRouter()

    @routes.post("/run")
    async def run(body: RunRequest, request: Request) -> Response:
        hosted = await _submit(host, body)
        viewer = hosted.feed.view()
        try:
            await _until_gone(request, hosted)
        finally:
            viewer.leave()
            host.left(hosted)
        return JSONResponse(hosted.feed.whole)

    @routes.post("/run_sse")
    async def run_sse(body: RunRequest) -> Response:
        hosted = await _submit(host, body)
        return _stream(host, hosted, after=0, partials=body.streaming)

    @routes.get("/runs")
    async def list_runs(app: str | None = None, user: str | None = None, state: RunState | None = None) -> list[Json]:
        found = [run_json(run) for run in host.runs.values()]
        known = {run["runId"] for run in found}
        found += [record_json(each) for each in await host.book.find() if each.run_id not in known]
        wanted = {"appName": app, "userId": user, "state": None if state is None else str(state)}
        return [
            without_nulls(run)
            for run in found
            if all(value is None or run.get(name) == value for name, value in wanted.items())
        ]

    @routes.get("/runs/{run}")
    async def get_run(run: str) -> Json:
        found: Json = without_nulls(await _find(host, run))
        return found

    @routes.get("/runs/{run}/events")
    async def watch_run(run: str, request: Request, after: int = 0) -> Response:
        hosted = host.runs.get(check_id("run", run))
        if hosted is None:
            await _find(host, run)
            raise HTTPException(410, "the run is over and its events are in its session")
        last = request.headers.get("last-event-id", "")
        return _stream(host, hosted, after=int(last) if last.isdecimal() else after, partials=True)

    @routes.get("/runs/{run}/why")
    async def why(run: str) -> Json:
        hosted = host.runs.get(check_id("run", run))
        if hosted is None:
            return {"holding": []}
        found = [
            {"name": each.name, "path": each.path, "rung": each.rung, "seconds": each.seconds}
            for each in hosted.run.why_not_stopped()
        ]
        return {"holding": [without_nulls(each) for each in found]}

    @routes.post("/runs/{run}:steer")
    async def steer(run: str, body: SteerRequest) -> Json:
        hosted = host.runs.get(check_id("run", run))
        if hosted is None or hosted.over.is_set:
            return {"outcome": "too_late"}
        receipt = hosted.run.steer(body.new_message.prompt())
        return {"outcome": str(await receipt.wait())}

    return routes


async def _submit(host: Host, body: RunRequest) -> HostedRun:
    """Cancellation: the message was accepted, or it was not."""
    submitted = await host.submit(SessionKey.of(body.app_name, body.user_id, body.session_id), body)
    if isinstance(submitted, RunRecord):
        raise HTTPException(409, f"the run {submitted.run_id} of this idempotency key is over")
    await submitted.admitted.wait()
    if submitted.refused is not None:
        raise submitted.refused
    return submitted


async def _find(host: Host, run: str) -> Json:
    hosted = host.runs.get(check_id("run", run))
    if hosted is not None:
        return run_json(hosted)
    record = await host.book.get(run)
    if record is None:
        raise HTTPException(404, f"Run not found: {run}")
    return record_json(record)


async def _until_gone(request: Request, hosted: HostedRun) -> None:
    """Until the run is over or its caller has left. Cancellation: only the waiting ends."""
    over = asyncio.ensure_future(hosted.over.wait())
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({over, gone}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        over.cancel()
        gone.cancel()
        await asyncio.wait({over, gone}, timeout=1.0)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _stream(host: Host, hosted: HostedRun, *, after: int, partials: bool) -> Response:
    viewer = hosted.feed.view(after)
    viewer.partials = partials
    return EventSourceResponse(
        _frames(host, hosted, viewer), ping=int(host.config.keep_alive_seconds), headers=_NO_BUFFERING, sep="\n"
    )


async def _frames(host: Host, hosted: HostedRun, viewer: Viewer) -> AsyncIterator[ServerSentEvent]:
    """Cancellation: the viewer leaves; what that means for the run is its policy."""
    try:
        while (frame := await viewer.next()) is not None:
            yield ServerSentEvent(data=_dump(frame.event), id=str(frame.seq))
        if hosted.feed.error is not None:
            yield ServerSentEvent(data=_dump(hosted.feed.error))
    finally:
        viewer.leave()
        host.left(hosted)


def _dump(event: Json) -> str:
    return json.dumps(event, separators=(",", ":"), ensure_ascii=False)

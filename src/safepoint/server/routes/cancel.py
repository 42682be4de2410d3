"""Stop a run from any client: by its session, or by its own id."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, HTTPException
from fastapi.responses import JSONResponse

from safepoint._core.reasons import Reason, Source
from safepoint.errors import SessionNotFound
from safepoint.server.answers import cancelled_json, record_json, without_nulls
from safepoint.server.host import Cancelled, Host
from safepoint.server.hosted import HostedRun
from safepoint.server.ids import SessionKey, check_id
from safepoint.server.requests import CancelRequest
from safepoint.server.routes.sessions import BASE
from safepoint.server.wire_events import Json
from safepoint.sessions.records import RunState


def cancel_routes(host: Host) -> APIRouter:
    routes = APIRouter()

    @routes.post(BASE + "/{session}:cancel")
    async def cancel_session(app: str, user: str, session: str, body: CancelRequest | None = None) -> JSONResponse:
        key, request = SessionKey.of(app, user, session), body or CancelRequest()
        reason = Reason(request.reason or "", Source.USER, by=key.user)
        runs = [run for run in host.live_of(key) if request.run_id in (None, run.id)]
        if runs:
            return _answer(key, await _cancel_all(host, runs, request, reason))
        paused = await _paused(host, key, request, reason)
        if paused is not None:
            return _answer(key, [Cancelled(paused.id, True, "stopped", host.book.durable)])
        raise_nothing_active = {"detail": f"No active run found for session '{key.session}'"}
        last = await host.book.find(session=key.stored_as, limit=1)
        if last:
            raise_nothing_active["lastRun"] = without_nulls({"runId": last[0].run_id, "outcome": last[0].outcome})
        return JSONResponse(raise_nothing_active, 404)

    @routes.post("/runs/{run}:cancel")
    async def cancel_run(run: str, body: CancelRequest | None = None) -> JSONResponse:
        request = body or CancelRequest()
        hosted = host.runs.get(check_id("run", run))
        if hosted is not None:
            reason = Reason(request.reason or "", Source.USER)
            return _answer(hosted.key, await _cancel_all(host, [hosted], request, reason))
        record = await host.book.get(run)
        if record is None:
            raise HTTPException(404, f"Run not found: {run}")
        return JSONResponse(without_nulls({"status": "cancelled", **record_json(record)}))

    return routes


async def _cancel_all(host: Host, runs: list[HostedRun], request: CancelRequest, reason: Reason) -> list[Cancelled]:
    """Cancellation: the asks stand."""
    try:
        return list(await asyncio.gather(*(host.cancel(run, request, reason) for run in runs)))
    except LookupError as error:
        raise HTTPException(404, str(error.args[0])) from error


async def _paused(host: Host, key: SessionKey, request: CancelRequest, reason: Reason) -> HostedRun | None:
    """Cancellation: the pause is cleared or it is not."""
    try:
        last = await host.book.find(session=key.stored_as, limit=1)
        if not last or last[0].state is not RunState.PAUSED or request.run_id not in (None, last[0].run_id):
            return None
        cleared = await host.clear_pause(key, reason)
    except SessionNotFound:
        return None
    if cleared is not None:
        await host.book.move(last[0].run_id, RunState.ENDED, outcome="cancelled")
    return cleared


def _answer(key: SessionKey, cancelled: list[Cancelled]) -> JSONResponse:
    over = all(each.outcome is not None for each in cancelled)
    answer: Json = {
        "status": "cancelled" if over else "cancelling",
        "session_id": key.session,
        "sessionId": key.session,
        "runs": [without_nulls(cancelled_json(each)) for each in cancelled],
    }
    return JSONResponse(answer)

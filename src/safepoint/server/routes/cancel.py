"""Stop a run from any client: by its session, by its own id, or by a filter."""

from __future__ import annotations

from fastapi import APIRouter, HTTPException
from fastapi.responses import JSONResponse

from safepoint.errors import SessionNotFound
from safepoint.server.answers import cancelled_json, record_json, without_nulls
from safepoint.server.cancelling import Cancelled, cancel_all, clear_pause
from safepoint.server.finding import Finder
from safepoint.server.host import Host
from safepoint.server.hosted import HostedRun
from safepoint.server.ids import SessionKey
from safepoint.server.principal import Principal, Who
from safepoint.server.requests import CancelMany, CancelRequest
from safepoint.server.routes.sessions import BASE
from safepoint.server.served import Served
from safepoint.server.wire_events import Json
from safepoint.sessions.records import RunRecord, RunState

routes = APIRouter()


@routes.post(BASE + "/{session}:cancel")
async def cancel_session(
    host: Served, who: Who, app: str, user: str, session: str, body: CancelRequest | None = None
) -> JSONResponse:
    key, request = who.session(app, user, session), body or CancelRequest()
    reason = who.reason(request.reason, user=key.user)
    runs = [run for run in host.live_of(key) if request.run_id in (None, run.id)]
    if runs:
        return _answer(key, await cancel_all(host, runs, request, reason))
    last = await host.book.find(session=key.stored_as, limit=1)
    cleared = await _if_paused(host, key, who, request, last[0]) if last else None
    if cleared is not None:
        return _answer(key, [cleared])
    nothing: Json = {"detail": f"No active run found for session '{key.session}'"}
    if last:
        nothing["lastRun"] = without_nulls({"runId": last[0].run_id, "outcome": last[0].outcome})
    return JSONResponse(nothing, 404)


@routes.post("/runs/{run}:cancel")
async def cancel_run(host: Served, who: Who, run: str, body: CancelRequest | None = None) -> JSONResponse:
    request, found = body or CancelRequest(), await Finder(host).run(who, run)
    if isinstance(found, HostedRun) and found.live:
        reason = who.reason(request.reason, user=found.key.user)
        return _answer(found.key, await cancel_all(host, [found], request, reason))
    key, record = await Finder(host).record(who, run)
    cleared = await _if_paused(host, key, who, request, record)
    if cleared is not None:
        return _answer(key, [cleared])
    return JSONResponse(without_nulls({"status": "ended", **record_json(record)}))


@routes.post("/runs:cancel")
async def cancel_many(host: Served, who: Who, body: CancelMany) -> Json:
    if not (body.all or body.app_name or body.user_id or body.session_id):
        raise HTTPException(400, "which runs? write appName, userId or sessionId, or all: true")
    mine = [run for run in host.live() if who.owns(run.key.user) and body.fits(run.key)]
    answers = [
        cancelled
        for hosted in mine
        for cancelled in await cancel_all(host, [hosted], body, who.reason(body.reason, user=hosted.key.user))
    ]
    over = all(each.outcome is not None for each in answers)
    runs = [without_nulls(cancelled_json(each)) for each in answers]
    return {"status": "cancelled" if over else "cancelling", "runs": runs}


async def _if_paused(
    host: Host, key: SessionKey, who: Principal, request: CancelRequest, record: RunRecord
) -> Cancelled | None:
    """Cancellation: the pause is cleared or it is not."""
    if record.state is not RunState.PAUSED or request.run_id not in (None, record.run_id):
        return None
    try:
        return await clear_pause(host, key, record, who.reason(request.reason, user=key.user))
    except SessionNotFound:
        return None


def _answer(key: SessionKey, cancelled: list[Cancelled]) -> JSONResponse:
    over = all(each.outcome is not None for each in cancelled)
    answer: Json = {
        "status": "cancelled" if over else "cancelling",
        "session_id": key.session,
        "sessionId": key.session,
        "runs": [without_nulls(cancelled_json(each)) for each in cancelled],
    }
    return JSONResponse(answer)

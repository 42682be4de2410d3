"""Stop a run from any client: by its session, by its own id, or by a filter."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, HTTPException
from fastapi.responses import JSONResponse

from safepoint.protocols.adk.events import Json
from safepoint.protocols.http import Manager, Who
from safepoint.server import described
from safepoint.server.audit import AuditedRoute
from safepoint.server.openapi import answers, by_name
from safepoint.server.requests import CancelMany, CancelRequest
from safepoint.server.routes.sessions import BASE
from safepoint.server.serializers import cancelled_json, record_json, without_nulls
from safepoint.serving.cancel_requests import StopRequest
from safepoint.serving.cancel_service import Cancelled, cancel_all
from safepoint.serving.ids import SessionKey, check_ids
from safepoint.serving.managed_run import ManagedRun
from safepoint.serving.principal import Principal
from safepoint.serving.remote_cancel import cancel_records
from safepoint.serving.run_filter import OpenRun, RunFilter, open_runs, would_stop
from safepoint.serving.run_lookup import RunLookup
from safepoint.serving.run_manager import RunManager

routes = APIRouter(generate_unique_id_function=by_name, route_class=AuditedRoute)


@routes.post(BASE + "/{session}:cancel", response_model=None, responses=answers(described.Cancelled))
async def cancel_session(
    manager: Manager, who: Who, app: str, user: str, session: str, body: CancelRequest | None = None
) -> JSONResponse:
    key, given = who.session(app, user, session), body or CancelRequest()
    check_ids(run=given.run_id)
    request, reason = given.request(), who.reason(given.reason, user=key.user)
    runs = [run for run in manager.live_of(key) if given.run_id in (None, run.id)]
    if runs and (here := await cancel_all(manager, runs, request, reason)):
        return _answer(who, key, here)
    there = [
        each for each in await manager.storage.runs.still_open(key.stored_as) if given.run_id in (None, each.run_id)
    ]
    cancelled = await cancel_records(manager, there, request, reason)
    if cancelled:
        return _answer(who, key, cancelled)
    last = await manager.storage.runs.find(session=key.stored_as, limit=1)
    nothing: Json = {"detail": f"No active run found for session '{key.session}'"}
    if last:
        nothing["lastRun"] = without_nulls({"runId": last[0].run_id, "outcome": last[0].outcome})
    return JSONResponse(nothing, 404)


@routes.post("/runs/{run}:cancel", response_model=None, responses=answers(described.Cancelled | described.EndedRun))
async def cancel_run(manager: Manager, who: Who, run: str, body: CancelRequest | None = None) -> JSONResponse:
    given, found = body or CancelRequest(), await RunLookup(manager).run(who, run)
    if given.run_id not in (None, run):
        raise HTTPException(400, "runId names another run than the address: leave it out")
    request = given.request()
    if isinstance(found, ManagedRun) and found.live:
        reason = who.reason(given.reason, user=found.key.user)
        if here := await cancel_all(manager, [found], request, reason):
            return _answer(who, found.key, here)
    key, record = await RunLookup(manager).record(who, run)
    cancelled = await cancel_records(manager, [record], request, who.reason(given.reason, user=key.user))
    if cancelled:
        return _answer(who, key, cancelled)
    return JSONResponse(without_nulls({"status": "ended", **record_json(record)}))


@routes.post("/runs:cancel", response_model=None, responses=answers(described.CancelledMany | described.CancelDryRun))
async def cancel_many(manager: Manager, who: Who, body: CancelMany) -> Json:
    check_ids(app=body.app_name, user=body.user_id, session=body.session_id, run=body.run_id)
    wanted, request = body.filter(), body.request()
    if not body.all and wanted == RunFilter():
        raise HTTPException(400, "which runs? write appName, userId, sessionId, runId or another filter, or all: true")
    if body.node is not None and body.run_id is None:
        raise HTTPException(400, "node is a part of one run: write its runId too")
    found = await open_runs(manager, who, wanted)
    if body.dry_run:
        would = await asyncio.gather(*(would_stop(manager, each, request) for each in found))
        return {"status": "dry_run", "runs": [without_nulls(each) for each in would]}
    asked = await asyncio.gather(*(_cancel(manager, each, request, who, body.reason) for each in found))
    cancelled = [one for each in asked for one in each]
    over = all(each.outcome is not None for each in cancelled)
    runs = [without_nulls(cancelled_json(each, stacks=who.admin)) for each in cancelled]
    return {"status": "cancelled" if over else "cancelling", "runs": runs}


async def _cancel(
    manager: RunManager, found: OpenRun, request: StopRequest, who: Principal, reason: str | None
) -> list[Cancelled]:
    """Cancellation: the request stands."""
    why = who.reason(reason, user=found.key.user)
    if found.here is not None:
        return await cancel_all(manager, [found.here], request, why)
    return await cancel_records(manager, [found.record] if found.record is not None else [], request, why)


def _answer(who: Principal, key: SessionKey, cancelled: list[Cancelled]) -> JSONResponse:
    over = all(each.outcome is not None for each in cancelled)
    answer: Json = {
        "status": "cancelled" if over else "cancelling",
        "session_id": key.session,
        "sessionId": key.session,
        "runs": [without_nulls(cancelled_json(each, stacks=who.admin)) for each in cancelled],
    }
    return JSONResponse(answer)

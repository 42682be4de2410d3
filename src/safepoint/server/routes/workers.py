"""The workers of the cluster: look at them, drain one, move a run from one to another."""

from __future__ import annotations

from fastapi import APIRouter

from safepoint.protocols.adk.events import Json
from safepoint.protocols.http import Manager, Who
from safepoint.server import described
from safepoint.server.openapi import answers, by_name, errors
from safepoint.server.requests import MoveRequest
from safepoint.serving.moving import move
from safepoint.serving.principal import NotFound
from safepoint.serving.run_lookup import RunLookup
from safepoint.storage.placement import Waiting, placement_of
from safepoint.storage.workers import WorkerRow, workers_of

routes = APIRouter(generate_unique_id_function=by_name)


@routes.get("/workers", response_model=None, responses=answers(described.Workers))
async def list_workers(manager: Manager, who: Who) -> Json:
    """Those that live, those that are dead and still own something, and runs that wait for a worker."""
    who.must_be_admin()
    workers, placement = workers_of(manager.storage), placement_of(manager.storage)
    rows = await workers.all() if workers is not None else []
    waiting = await placement.waiting() if placement is not None else []
    return {"workers": [_worker_json(row) for row in rows], "waiting": [_waiting_json(each) for each in waiting]}


@routes.post("/workers/{worker}:drain", response_model=None, responses=answers(described.Worker) | errors(404))
async def drain_worker(manager: Manager, who: Who, worker: str) -> Json:
    """It takes nothing new and hands its runs over, as on SIGTERM; its process stays until it is told to end."""
    who.must_be_admin()
    workers = workers_of(manager.storage)
    if workers is None or not await workers.drain(worker):
        raise NotFound(f"Worker not found: {worker}")
    found = [row for row in await workers.all() if row.id == worker]
    if not found:
        raise NotFound(f"Worker not found: {worker}")
    return _worker_json(found[0])


@routes.post("/runs/{run}:move", response_model=None, responses=answers(described.Moved) | errors(409))
async def move_run(manager: Manager, who: Who, run: str, body: MoveRequest | None = None) -> Json:
    """It stops at a safe point where it is, and goes on in another worker under the same id."""
    who.must_be_admin()
    given = body or MoveRequest()
    _, record = await RunLookup(manager).record(who, run)
    target, is_there = await move(manager, record, given.to, given.wait_seconds)
    return {"runId": run, "outcome": "moved" if is_there else "moving", "worker": target}


def _worker_json(row: WorkerRow) -> Json:
    info = row.info
    return {
        "id": row.id,
        "host": info.host,
        "pid": info.pid,
        "version": info.version,
        "apps": list(info.apps),
        "room": info.room,
        "live": row.live,
        "queued": row.queued,
        "leaseLeft": round(row.lease_left, 3),
        "draining": row.draining,
    }


def _waiting_json(each: Waiting) -> Json:
    return {"app": each.app, "runs": each.runs, "seconds": round(each.seconds, 3), "workers": each.workers}

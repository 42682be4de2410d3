"""Look at runs, come back to them, and steer them: Safepoint's own routes."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from fastapi import APIRouter, Request
from fastapi.responses import Response

from safepoint.agent.steering import SteerOutcome
from safepoint.errors import SessionBusy
from safepoint.server import described
from safepoint.server.dependencies import Manager, Who
from safepoint.server.event_stream import EventStream
from safepoint.server.managed_run import ManagedRun
from safepoint.server.openapi import answers, by_name, errors, streams
from safepoint.server.pagination import RunPage
from safepoint.server.requests import SteerRequest
from safepoint.server.run_lookup import RunLookup
from safepoint.server.serializers import holding_json, record_json, run_json, without_nulls
from safepoint.server.wire_events import Json
from safepoint.storage.run_records import RunRecord, RunState

routes = APIRouter(generate_unique_id_function=by_name)


@routes.get("/runs", response_model=None, responses=answers(list[described.Run], "A page of them, newest first."))
async def list_runs(manager: Manager, who: Who, wanted: RunPage, response: Response) -> list[Json]:
    found = await RunLookup(manager).runs(who, wanted)
    runs, following = wanted.page((place, _shown(run)) for place, run in found)
    if following is not None:
        response.headers["link"] = f'<?{following}>; rel="next"'
    return [without_nulls(run) for run in runs]


@routes.get("/runs/{run}", response_model=None, responses=answers(described.Run))
async def get_run(manager: Manager, who: Who, run: str) -> Json:
    return without_nulls(_shown(await RunLookup(manager).run(who, run)))


def _shown(run: ManagedRun | RunRecord) -> Json:
    return run_json(run) if isinstance(run, ManagedRun) else record_json(run)


@routes.get("/runs/{run}/events", response_model=None, response_class=EventStream, status_code=200, responses=streams())
async def watch_run(manager: Manager, who: Who, run: str, request: Request, after: int = 0) -> Response:
    _, feed = await RunLookup(manager).feed(who, run)
    last = request.headers.get("last-event-id", "")
    after = int(last) if last.isascii() and last.isdecimal() and len(last) < 10 else after
    return EventStream(feed, manager.config, after=after, partials=True, run_id=run)


@routes.get("/runs/{run}/why", response_model=None, responses=answers(described.Why))
async def why(manager: Manager, who: Who, run: str) -> Json:
    """`asked`: where it is to stop, empty if nobody wants that; not there for a run that this process does not have."""
    shown = _shown(await RunLookup(manager).run(who, run))
    answer: Json = {"runId": run, "state": shown["state"], "outcome": shown["outcome"], "holding": []}
    managed = RunLookup(manager).live(who, run)
    if managed is not None:
        request, holding = managed.run.node.request(), managed.run.why_not_stopped()
        answer["asked"] = sorted(request.at.places) if request is not None else []
        answer["holding"] = [without_nulls(holding_json(each, stacks=who.admin)) for each in holding]
    return without_nulls(answer)


@routes.post("/runs/{run}:steer", response_model=None, responses=answers(described.Steered) | errors(409))
async def steer(manager: Manager, who: Who, run: str, body: SteerRequest) -> Json:
    """`waiting`: no model call has come yet, so nobody knows whether it will join; it may still."""
    found = await RunLookup(manager).run(who, run)
    managed = RunLookup(manager).live(who, run)
    if managed is None and found.state in (RunState.QUEUED, RunState.LIVE) and not isinstance(found, ManagedRun):
        raise SessionBusy("another process has this run: steer it there, or send a message with ifBusy to its session")
    if managed is None:
        return {"runId": run, "outcome": "too_late", "reason": "the run is over"}
    receipt = managed.run.steer(body.new_message.prompt())
    with suppress(TimeoutError):
        async with asyncio.timeout(body.wait_seconds):
            await receipt.wait()
    match receipt.outcome:
        case SteerOutcome.JOINED:
            return {"runId": run, "outcome": "joined"}
        case SteerOutcome.TOO_LATE | SteerOutcome.WITHDRAWN:  # nobody else has the receipt, to take it back
            return {"runId": run, "outcome": "too_late", "reason": "no model call followed"}
        case None:
            return {"runId": run, "outcome": "waiting", "reason": "it joins before the next model call, if one comes"}

"""Look at runs, come back to them, and steer them: Safepoint's own routes."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from fastapi import APIRouter, Request
from fastapi.responses import Response

from safepoint.errors import SessionNotFound
from safepoint.protocols.adk import WIRE
from safepoint.protocols.adk.events import Json
from safepoint.protocols.event_stream import EventStream
from safepoint.protocols.http import Manager, Who
from safepoint.server import described
from safepoint.server.audit import AuditedRoute
from safepoint.server.openapi import answers, by_name, errors, streams
from safepoint.server.pagination import RunPage
from safepoint.server.requests import PreviewRequest, SteerRequest
from safepoint.server.serializers import record_json, run_json, without_nulls
from safepoint.serving.cancel_answers import without_stack
from safepoint.serving.cancel_requests import reason_of, request_json
from safepoint.serving.ids import SessionKey
from safepoint.serving.managed_run import ManagedRun
from safepoint.serving.owner_requests import (
    OwnerSilent,
    Question,
    ask_owner,
    previewed,
    steer_elsewhere,
    steer_here,
    what_holds,
)
from safepoint.serving.run_lookup import RunLookup
from safepoint.serving.run_manager import RunManager
from safepoint.serving.run_tree import live_tree, stored_tree
from safepoint.serving.submission import Submission
from safepoint.storage.placement import placement_of
from safepoint.storage.run_records import RunRecord, RunState, is_free

_UNDER_WAY = (RunState.QUEUED, RunState.LIVE)
_STEERED = {
    "too_late": "no model call followed",
    "waiting": "it joins before the next model call, if one comes",
}

routes = APIRouter(generate_unique_id_function=by_name, route_class=AuditedRoute)


@routes.get("/runs", response_model=None, responses=answers(list[described.Run], "A page of them, newest first."))
async def list_runs(manager: Manager, who: Who, wanted: RunPage, response: Response) -> list[Json]:
    found = await RunLookup(manager).runs(who, wanted)
    missing = await _missing_apps(manager, [run for _, run in found])
    runs, following = wanted.page((place, _shown(run, missing)) for place, run in found)
    if following is not None:
        response.headers["link"] = f'<?{following}>; rel="next"'
    return [without_nulls(run) for run in runs]


@routes.get("/runs/{run}", response_model=None, responses=answers(described.Run))
async def get_run(manager: Manager, who: Who, run: str) -> Json:
    found = await RunLookup(manager).run(who, run)
    return without_nulls(_shown(found, await _missing_apps(manager, [found])))


async def _missing_apps(manager: Manager, runs: Iterable[ManagedRun | RunRecord]) -> frozenset[str]:
    """Apps that free runs wait for, and no worker has."""
    placement = placement_of(manager.storage)
    if placement is None or not any(isinstance(run, RunRecord) and is_free(run) for run in runs):
        return frozenset()
    return frozenset(each.app for each in await placement.waiting() if not each.workers)


def _shown(run: ManagedRun | RunRecord, missing_apps: frozenset[str] = frozenset()) -> Json:
    if isinstance(run, ManagedRun):
        return run_json(run)
    shown = record_json(run)
    app = run.session.partition("/")[0]
    return {**shown, "waitsFor": f"app {app}"} if is_free(run) and app in missing_apps else shown


@routes.get("/runs/{run}/events", response_model=None, response_class=EventStream, status_code=200, responses=streams())
async def watch_run(manager: Manager, who: Who, run: str, request: Request, after: int = 0) -> Response:
    last = request.headers.get("last-event-id", "")
    after = int(last) if last.isascii() and last.isdecimal() and len(last) < 10 else after
    _, feed = await RunLookup(manager).feed(who, run, after)
    return EventStream(feed, WIRE, manager.config, run_id=run, after=after)


@routes.get("/runs/{run}/why", response_model=None, responses=answers(described.Why))
async def why(manager: Manager, who: Who, run: str) -> Json:
    """`asked`: where it is to stop, empty if no stop was requested. Another process that has the run is asked."""
    shown = _shown(await RunLookup(manager).run(who, run))
    answer: Json = {"runId": run, "state": shown["state"], "outcome": shown["outcome"], "holding": []}
    managed = RunLookup(manager).live(who, run)
    try:
        if managed is not None:
            answer |= what_holds(managed)
        elif shown["state"] in _UNDER_WAY:
            answer |= await ask_owner(manager, run, Question.WHY) or {}
    except OwnerSilent as silent:
        answer |= {"holding": None, "reason": str(silent)}
    if answer["holding"] and not who.admin:
        answer["holding"] = [without_stack(each) for each in answer["holding"]]
    return without_nulls(answer)


@routes.get("/runs/{run}/tree", response_model=None, responses=answers(described.Tree))
async def tree(manager: Manager, who: Who, run: str) -> Json:
    """Agents and calls with their times and states, the asks to stop them, and what holds a stop."""
    found = await RunLookup(manager).run(who, run)
    shown = _shown(found)
    if isinstance(found, ManagedRun):
        answer = live_tree(found, stacks=who.admin)
    elif found.state in _UNDER_WAY and (owned := await ask_owner(manager, run, Question.TREE)) is not None:
        answer = {**owned, "holding": [each if who.admin else without_stack(each) for each in owned["holding"]]}
    else:
        answer = await _stored_tree(manager, found)
    return without_nulls({**answer, "run": without_nulls(shown)})


async def _stored_tree(manager: RunManager, record: RunRecord) -> Json:
    """Cancellation: nothing has changed."""
    key = SessionKey.parse(record.session)
    reason = reason_of(record.reason) if record.reason is not None and "source" in record.reason else None
    stored = None
    if key is not None:
        with suppress(SessionNotFound):
            runs = (await manager.view(key)).runs
            stored = next((each for each in runs if each.run_id == record.run_id), None)
    agent = stored.agent if stored is not None else key.app if key is not None else ""
    return stored_tree(agent, stored, reason)


@routes.post("/runs/{run}:preview", response_model=None, responses=answers(described.Previewed))
async def preview(manager: Manager, who: Who, run: str, body: PreviewRequest | None = None) -> Json:
    """What such a cancel would do now, to each call; nothing is asked of the run. A run that is over has no calls."""
    found, request = await RunLookup(manager).run(who, run), (body or PreviewRequest()).request()
    managed = RunLookup(manager).live(who, run)
    answer: Json = {"calls": [], "seconds": 0.0}
    if managed is not None:
        answer = previewed(managed, request)
    elif found.state in _UNDER_WAY and not isinstance(found, ManagedRun):
        answer |= await ask_owner(manager, run, Question.PREVIEW, request_json(request)) or {}
    return {"runId": run, "at": sorted(request.at.places), **answer}


@routes.post("/runs/{run}:steer", response_model=None, responses=answers(described.Steered) | errors(409))
async def steer(manager: Manager, who: Who, run: str, body: SteerRequest) -> Json:
    """`waiting`: no model call has followed yet; the message joins the next one, if there is one."""
    found = await RunLookup(manager).run(who, run)
    managed, prompt = RunLookup(manager).live(who, run), body.new_message.prompt()
    if managed is not None:
        outcome = await steer_here(managed, prompt, body.wait_seconds)
    elif found.state in _UNDER_WAY and not isinstance(found, ManagedRun):
        outcome = await steer_elsewhere(manager, run, Submission(tuple(prompt)), body.wait_seconds)
    else:
        return {"runId": run, "outcome": "too_late", "reason": "the run is over"}
    return without_nulls({"runId": run, "outcome": outcome, "reason": _STEERED.get(outcome)})

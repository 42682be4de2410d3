"""The switch: freeze what runs wild, look at what is frozen, thaw it. For the admin key."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, HTTPException

from safepoint.protocols.adk.events import Json
from safepoint.protocols.http import Manager, Who
from safepoint.server import described
from safepoint.server.audit import AuditedRoute
from safepoint.server.openapi import answers, by_name, errors
from safepoint.server.requests import FreezeRequest, ThawRequest
from safepoint.server.serializers import freeze_json, without_nulls
from safepoint.serving.freezes import Concerned, concerned, read_freezes
from safepoint.serving.ids import SessionKey
from safepoint.serving.run_manager import RunManager

routes = APIRouter(generate_unique_id_function=by_name, route_class=AuditedRoute)


@routes.get("/freezes", response_model=None, responses=answers(list[described.Freeze], "Oldest first."))
async def list_freezes(manager: Manager, who: Who) -> list[Json]:
    who.must_be_admin()
    return [freeze_json(each) for each in await manager.storage.freezes.all()]


@routes.post("/freezes", response_model=None, responses=answers(described.Frozen))
async def freeze(manager: Manager, who: Who, body: FreezeRequest) -> Json:
    """Answers once it is stored, and holds in this process; others that share the store follow within a moment.

    With `dryRun` nothing is frozen: `runs` tells what would stop, what would wait, and what would be cut.
    """
    who.must_be_admin()
    wanted = body.freeze(by=who.name)
    here = concerned(manager, wanted)
    shown = [_concerned_json(each) for each in here]
    known = {each.run.id for each in here}
    shown += [each for each in await _elsewhere(manager, body) if each["runId"] not in known]
    if body.dry_run:
        return {"frozen": None, "runs": shown}
    await manager.storage.freezes.add(wanted)
    await read_freezes(manager)
    return {"frozen": freeze_json(wanted), "runs": shown}


@routes.post("/freezes:thaw", response_model=None, responses=answers(described.Thawed) | errors(404))
async def thaw(manager: Manager, who: Who, body: ThawRequest | None = None) -> Json:
    """One freeze by its id, or all of them."""
    who.must_be_admin()
    given = body or ThawRequest()
    known = await manager.storage.freezes.all()
    meant = [each for each in known if given.id in (None, each.id)]
    if given.id is not None and not meant:
        raise HTTPException(404, f"Freeze not found: {given.id}")
    gone = await asyncio.gather(*(manager.storage.freezes.remove(each.id) for each in meant))
    await read_freezes(manager)
    return {"thawed": [freeze_json(each) for each, was_there in zip(meant, gone, strict=True) if was_there]}


async def _elsewhere(manager: RunManager, body: FreezeRequest) -> list[Json]:
    """Runs of other processes, which alone know what of them would be cut. Cancellation: nothing has changed."""
    found: list[Json] = []
    for record in await manager.storage.runs.still_open(waiting=False):
        key = SessionKey.parse(record.session)
        if key is not None and body.app_name in (None, key.app) and body.user_id in (None, key.user):
            found.append({**_of(key), "runId": record.run_id, "state": str(record.state)})
    return found


def _concerned_json(found: Concerned) -> Json:
    managed = found.run
    spent = managed.run.record.spent if managed.run.record is not None else None
    return without_nulls(
        {
            **_of(managed.key),
            "runId": managed.id,
            "state": str(managed.state),
            "agent": managed.run.agent.name,
            "fate": "stops" if found.stops else "waits",
            "cut": list(found.cut),
            "seconds": found.seconds,
            "tokensSpent": None if spent is None else spent.input_tokens + spent.output_tokens,
        }
    )


def _of(key: SessionKey) -> Json:
    return {"appName": key.app, "userId": key.user, "sessionId": key.session}

"""Sessions: make, read, change and delete them."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Body, HTTPException

from safepoint.errors import SessionExists, SessionNotFound
from safepoint.history.parts import Message
from safepoint.protocols.adk.events import Json, session_json
from safepoint.protocols.adk.importer import imported_messages
from safepoint.protocols.adk.requests import NewSession, State, StatePatch
from safepoint.protocols.http import Manager, Who
from safepoint.server import described
from safepoint.server.audit import AuditedRoute
from safepoint.server.openapi import answers, answers_null, by_name, errors
from safepoint.serving.cancel_requests import StopRequest
from safepoint.serving.ids import SessionKey
from safepoint.serving.owner_requests import patch_anywhere
from safepoint.serving.remote_cancel import cancel_records
from safepoint.serving.run_lookup import RunLookup
from safepoint.serving.run_manager import RunManager

_PATIENCE = 15.0  # for runs of other processes to stop
BASE = "/apps/{app}/users/{user}/sessions"

_SESSION = answers(described.Session)

routes = APIRouter(generate_unique_id_function=by_name)
# A run in a session that is deleted is stopped first: that is in the audit trail.
deleting = APIRouter(generate_unique_id_function=by_name, route_class=AuditedRoute)


async def _create(manager: RunManager, key: SessionKey, state: State | None, history: Sequence[Message] = ()) -> Json:
    try:
        await manager.create(key, state, history)
    except SessionExists:
        raise HTTPException(409, f"Session already exists: {key.session}") from None
    return session_json(await RunLookup(manager).session(key))


@routes.get(BASE, response_model=None, responses=answers(list[described.Session]))
async def list_sessions(manager: Manager, who: Who, app: str, user: str) -> list[Json]:
    return [session_json(each) for each in await RunLookup(manager).sessions(app, user, who.prefix(app, user))]


@routes.post(BASE, response_model=None, responses=_SESSION | errors(409))
async def create_session(manager: Manager, who: Who, app: str, user: str, body: NewSession | None = None) -> Json:
    wanted = body or NewSession()
    key = who.session(app, user, str(uuid.uuid4()) if wanted.session_id is None else wanted.session_id)
    if wanted.options:
        raise HTTPException(400, "Session options are not supported by the configured session service.")
    return await _create(manager, key, wanted.state, imported_messages(wanted.events or []))


@routes.post(BASE + "/{session}", response_model=None, responses=_SESSION | errors(409))
async def create_session_with_id(
    manager: Manager,
    who: Who,
    app: str,
    user: str,
    session: str,
    state: Annotated[State | None, Body()] = None,
) -> Json:
    return await _create(manager, who.session(app, user, session), state)


@routes.get(BASE + "/{session}", response_model=None, responses=_SESSION)
async def get_session(manager: Manager, who: Who, app: str, user: str, session: str) -> Json:
    return session_json(await RunLookup(manager).session(who.session(app, user, session)))


@routes.patch(BASE + "/{session}", response_model=None, responses=_SESSION | errors(409))
async def patch_session(manager: Manager, who: Who, app: str, user: str, session: str, body: StatePatch) -> Json:
    key = who.session(app, user, session)
    await patch_anywhere(manager, key, body.state_delta)
    return session_json(await RunLookup(manager).session(key))


@deleting.delete(BASE + "/{session}", response_model=None, responses=answers_null("It is not there any more."))
async def delete_session(manager: Manager, who: Who, app: str, user: str, session: str) -> None:
    key = who.session(app, user, session)
    here = {run.id for run in manager.live_of(key)}
    there = [
        run for run in await manager.storage.runs.still_open(key.stored_as, waiting=False) if run.run_id not in here
    ]
    wait = StopRequest(wait_seconds=_PATIENCE)
    await cancel_records(manager, there, wait, who.reason("its session is deleted", user=key.user))
    try:
        await manager.delete(key)
    except SessionNotFound:
        return


routes.include_router(deleting)

"""Sessions: make, read, change and delete them."""

from __future__ import annotations

import time
import uuid
from typing import Annotated

from fastapi import APIRouter, Body, HTTPException

from safepoint.errors import SessionExists, SessionNotFound
from safepoint.server.answers import listed_json, session_json
from safepoint.server.host import Host
from safepoint.server.ids import SessionKey
from safepoint.server.principal import Who
from safepoint.server.requests import NewSession, State, StatePatch
from safepoint.server.served import Served
from safepoint.server.wire_events import Json

BASE = "/apps/{app}/users/{user}/sessions"

routes = APIRouter()


async def _shown(host: Host, key: SessionKey) -> Json:
    session = (await host.sender(key)).session
    touched = await host.book.touched(key.stored_as)
    return session_json(key, session, touched.get(key.stored_as, 0.0))


async def _create(host: Host, key: SessionKey, state: State | None) -> Json:
    try:
        session = await host.create(key, state)
    except SessionExists:
        raise HTTPException(409, f"Session already exists: {key.session}") from None
    return session_json(key, session, time.time())


@routes.get(BASE)
async def list_sessions(host: Served, who: Who, app: str, user: str) -> list[Json]:
    prefix = who.prefix(app, user)
    touched, states = await host.book.touched(prefix), await host.store.states(prefix)
    keys = [key for id in sorted(states, key=lambda id: touched.get(id, 0.0)) if (key := SessionKey.parse(id))]
    return [
        listed_json(key, host.state_of(key, states[key.stored_as]), touched.get(key.stored_as, 0.0)) for key in keys
    ]


@routes.post(BASE)
async def create_session(host: Served, who: Who, app: str, user: str, body: NewSession | None = None) -> Json:
    wanted = body or NewSession()
    if wanted.events:
        raise HTTPException(400, "events can't be imported by this server yet: leave them out")
    return await _create(host, who.session(app, user, wanted.session_id or str(uuid.uuid4())), wanted.state)


@routes.post(BASE + "/{session}")
async def create_session_with_id(
    host: Served,
    who: Who,
    app: str,
    user: str,
    session: str,
    state: Annotated[State | None, Body()] = None,
) -> Json:
    return await _create(host, who.session(app, user, session), state)


@routes.get(BASE + "/{session}")
async def get_session(host: Served, who: Who, app: str, user: str, session: str) -> Json:
    return await _shown(host, who.session(app, user, session))


@routes.patch(BASE + "/{session}")
async def patch_session(host: Served, who: Who, app: str, user: str, session: str, body: StatePatch) -> Json:
    key = who.session(app, user, session)
    await host.patch(key, body.state_delta)
    return await _shown(host, key)


@routes.delete(BASE + "/{session}")
async def delete_session(host: Served, who: Who, app: str, user: str, session: str) -> None:
    key = who.session(app, user, session)
    try:
        await host.delete(key)
    except SessionNotFound:
        return

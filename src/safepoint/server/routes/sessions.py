"""Sessions: make, read, change and delete them."""

from __future__ import annotations

import time
import uuid
from typing import Any

from fastapi import APIRouter, Body, HTTPException

from safepoint.errors import SessionExists, SessionNotFound
from safepoint.server.answers import session_json
from safepoint.server.host import Host
from safepoint.server.ids import SessionKey, check_id
from safepoint.server.requests import NewSession, State, StatePatch
from safepoint.server.wire_events import Json

BASE = "/apps/{app}/users/{user}/sessions"


def session_routes(host: Host) -> APIRouter:
    routes = APIRouter()

    async def shown(key: SessionKey, *, events: bool) -> Json:
        session = (await host.sender(key)).session
        touched = await host.book.touched(key.stored_as)
        return session_json(key, session, touched.get(key.stored_as, 0.0), events=events)

    async def create(key: SessionKey, state: State | None) -> Json:
        try:
            session = await host.create(key, state)
        except SessionExists:
            raise HTTPException(409, f"Session already exists: {key.session}") from None
        return session_json(key, session, time.time(), events=True)

    @routes.get(BASE)
    async def list_sessions(app: str, user: str) -> list[Json]:
        prefix = f"{check_id('app', app)}/{check_id('user', user)}/"
        touched = await host.book.touched(prefix)
        ids = sorted(await host.store.list_ids(prefix), key=lambda id: touched.get(id, 0.0))
        found = []
        for id in ids:
            key = SessionKey.parse(id)
            if key is not None:
                found.append(await shown(key, events=False))
        return found

    @routes.post(BASE)
    async def create_session(app: str, user: str, body: NewSession | None = None) -> Json:
        wanted = body or NewSession()
        if wanted.events:
            raise HTTPException(400, "events can't be imported by this server yet: leave them out")
        return await create(SessionKey.of(app, user, wanted.session_id or str(uuid.uuid4())), wanted.state)

    @routes.post(BASE + "/{session}")
    async def create_session_with_id(
        app: str,
        user: str,
        session: str,
        state: dict[str, Any] | None = Body(default=None),  # Any: JSON values
    ) -> Json:
        return await create(SessionKey.of(app, user, session), state)

    @routes.get(BASE + "/{session}")
    async def get_session(app: str, user: str, session: str) -> Json:
        return await shown(SessionKey.of(app, user, session), events=True)

    @routes.patch(BASE + "/{session}")
    async def patch_session(app: str, user: str, session: str, body: StatePatch) -> Json:
        key = SessionKey.of(app, user, session)
        await host.patch(key, body.state_delta)
        return await shown(key, events=True)

    @routes.delete(BASE + "/{session}")
    async def delete_session(app: str, user: str, session: str) -> None:
        key = SessionKey.of(app, user, session)
        try:
            await host.delete(key)
        except SessionNotFound:
            return

    return routes

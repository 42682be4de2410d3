"""Numbers for operators."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace

from fastapi import APIRouter
from fastapi.responses import PlainTextResponse

from safepoint.errors import StoreError
from safepoint.protocols.http import Manager, Who
from safepoint.server.openapi import by_name
from safepoint.serving.metrics import CONTENT_TYPE
from safepoint.storage.placement import Waiting, placement_of
from safepoint.storage.postgres.worker_lease import WorkerLease

_A_MOMENT = 1.0

routes = APIRouter(generate_unique_id_function=by_name)


@routes.get("/metrics", response_class=PlainTextResponse)
async def metrics(manager: Manager, who: Who) -> PlainTextResponse:
    who.must_be_admin()
    now = manager.operations.gauges(manager.live(), is_pushed=manager.is_pushed)
    placement, lease = placement_of(manager.storage), getattr(manager.storage, "lease", None)
    if placement is not None and isinstance(lease, WorkerLease):
        waiting: list[Waiting] = []
        with suppress(StoreError, TimeoutError):  # the other numbers are worth the more, then
            async with asyncio.timeout(_A_MOMENT):
                waiting = await placement.waiting()
        now = replace(now, lease_left=lease.left(), waiting=waiting)
    shown = manager.operations.metrics.render(now)
    return PlainTextResponse(shown, media_type=CONTENT_TYPE)

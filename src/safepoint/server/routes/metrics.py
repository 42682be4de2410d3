"""Numbers for operators."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import PlainTextResponse

from safepoint.protocols.http import Manager, Who
from safepoint.server.openapi import by_name
from safepoint.serving.metrics import CONTENT_TYPE

routes = APIRouter(generate_unique_id_function=by_name)


@routes.get("/metrics", response_class=PlainTextResponse)
async def metrics(manager: Manager, who: Who) -> PlainTextResponse:
    who.must_be_admin()
    now = manager.operations.gauges(manager.live(), is_pushed=manager.is_pushed)
    shown = manager.operations.metrics.render(now)
    return PlainTextResponse(shown, media_type=CONTENT_TYPE)

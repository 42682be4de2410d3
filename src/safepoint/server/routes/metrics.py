"""Numbers for operators."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import PlainTextResponse

from safepoint.server.dependencies import Manager, Who
from safepoint.server.metrics import CONTENT_TYPE
from safepoint.server.openapi import by_name

routes = APIRouter(generate_unique_id_function=by_name)


@routes.get("/metrics", response_class=PlainTextResponse)
async def metrics(manager: Manager, who: Who) -> PlainTextResponse:
    who.must_be_admin()
    shown = manager.operations.metrics.render(manager.operations.gauges(manager.live()))
    return PlainTextResponse(shown, media_type=CONTENT_TYPE)

"""Numbers for operators."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import PlainTextResponse

from safepoint.server.metrics import CONTENT_TYPE
from safepoint.server.openapi import by_name
from safepoint.server.principal import Who
from safepoint.server.served import Served

routes = APIRouter(generate_unique_id_function=by_name)


@routes.get("/metrics", response_class=PlainTextResponse)
async def metrics(host: Served, who: Who) -> PlainTextResponse:
    who.must_be_admin()
    shown = host.operations.metrics.render(host.operations.gauges(host.live()))
    return PlainTextResponse(shown, media_type=CONTENT_TYPE)

"""Routes of ADK's server that this one does not implement. They answer 501, because a 404 could mean anything."""

from __future__ import annotations

from fastapi import APIRouter, HTTPException

from safepoint.protocols.http import Who
from safepoint.server.routes.sessions import BASE
from safepoint.serving.ids import check_id

routes = APIRouter(include_in_schema=False)

_EVERY = ["GET", "POST", "PUT", "PATCH", "DELETE"]
_EVALS = ("eval-sets", "eval_sets", "eval-results", "eval_results", "metrics-info", "eval_metrics")


@routes.api_route(BASE + "/{session}/artifacts", methods=_EVERY)
@routes.api_route(BASE + "/{session}/artifacts/{rest:path}", methods=_EVERY)
async def artifacts(who: Who, app: str, user: str, session: str) -> None:
    who.session(app, user, session)
    raise HTTPException(501, "this server keeps no artifacts: send files as inlineData parts of a message")


@routes.patch("/apps/{app}/users/{user}/memory")
async def memory(who: Who, app: str, user: str) -> None:
    who.prefix(app, user)
    raise HTTPException(501, "this server has no memory service: give the agent a tool that remembers")


@routes.api_route("/dev/apps/{app}/{rest:path}", methods=_EVERY)
async def development(who: Who, app: str) -> None:
    check_id("app", app)
    raise HTTPException(501, "this server has no evaluation and no debug routes: they are of ADK's development server")


for kind in _EVALS:  # under the names that ADK had for them before
    for path in (f"/apps/{{app}}/{kind}", f"/apps/{{app}}/{kind}/{{rest:path}}"):
        routes.add_api_route(path, development, methods=_EVERY)


@routes.get("/debug/trace/{rest:path}")
async def trace(who: Who) -> None:
    raise HTTPException(501, "this server has no debug routes: look at /runs, and at GET /runs/{run}/why")

"""Is it there, what is it, and which apps does it serve."""

from __future__ import annotations

import platform
from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, HTTPException

from safepoint.agent.agent import Agent
from safepoint.server.ids import check_id
from safepoint.server.principal import Who
from safepoint.server.served import Served
from safepoint.server.wire_events import Json

routes = APIRouter()


@routes.get("/health")
async def health(host: Served) -> Json:
    return {"status": "draining" if host.draining else "ok"}


@routes.get("/version")
async def show_version(host: Served, who: Who) -> Json:
    return {"version": version("safepoint"), "language": "python", "language_version": platform.python_version()}


@routes.get("/list-apps")
async def list_apps(host: Served, who: Who, *, detailed: bool = False) -> Any:  # Any: two shapes, as ADK has them
    apps = [app for app in host.catalog if app.agent is not None]
    if not detailed:
        return [app.name for app in apps]
    return {
        "apps": [
            {"name": app.name, "rootAgentName": app.agent.name, "description": "", "language": "python"}
            for app in apps
            if app.agent is not None
        ],
        "broken": [{"name": app.name, "error": app.error} for app in host.catalog if app.agent is None],
    }


@routes.get("/apps/{app}/app-info")
async def app_info(host: Served, who: Who, app: str) -> Json:
    agent = host.agent(check_id("app", app))
    if not isinstance(agent, Agent):
        raise HTTPException(400, f"the root of {app} is not a single agent")
    tools = [
        {"name": tool.name, "description": tool.spec.description, "parameters": dict(tool.spec.parameters)}
        for tool in agent.tools.values()
    ]
    described = {"name": agent.name, "description": "", "tools": tools}
    return {"name": app, "rootAgentName": agent.name, "language": "python", "agents": {agent.name: described}}

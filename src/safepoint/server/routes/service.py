"""Is it there, what is it, and which apps does it serve."""

from __future__ import annotations

import platform
from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, HTTPException

from safepoint.agent.agent import Agent
from safepoint.server.host import Host
from safepoint.server.ids import check_id
from safepoint.server.principal import Who
from safepoint.server.wire_events import Json


def service_routes(host: Host) -> APIRouter:
    routes = APIRouter()

    @routes.get("/health")
    async def health() -> Json:
        return {"status": "draining" if host.draining else "ok"}

    @routes.get("/version")
    async def show_version(who: Who) -> Json:
        return {"version": version("safepoint"), "language": "python", "language_version": platform.python_version()}

    @routes.get("/list-apps")
    async def list_apps(who: Who, detailed: bool = False) -> Any:  # Any: two shapes, as ADK has them
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
    async def app_info(who: Who, app: str) -> Json:
        agent = host.agent(check_id("app", app))
        if not isinstance(agent, Agent):
            raise HTTPException(400, f"the root of {app} is not a single agent")
        tools = [
            {"name": tool.name, "description": tool.spec.description, "parameters": dict(tool.spec.parameters)}
            for tool in agent.tools.values()
        ]
        described = {"name": agent.name, "description": "", "tools": tools}
        return {"name": app, "rootAgentName": agent.name, "language": "python", "agents": {agent.name: described}}

    return routes

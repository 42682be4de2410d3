"""Health, readiness, version, and the apps that are served."""

from __future__ import annotations

import platform
from importlib.metadata import version
from typing import Annotated, Any, TypeAlias

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse

from safepoint.agent.agent import Agent
from safepoint.agent.base import BaseAgent
from safepoint.compose.composite import Composite
from safepoint.protocols.adk.events import Json
from safepoint.protocols.http import Manager, Who
from safepoint.server import described
from safepoint.server.openapi import Responses, answers, by_name
from safepoint.server.readiness import Readiness, State
from safepoint.serving.ids import check_id

_A_MOMENT = 0.2  # a liveness probe may not wait much longer

_NOT_READY: Responses = {503: {"model": described.Readiness, "description": "Send it nothing now."}}


async def _readiness_of(request: Request) -> Readiness:
    found = request.app.state.readiness
    assert isinstance(found, Readiness)
    return found


Ready = Annotated[Readiness, Depends(_readiness_of)]
routes = APIRouter(generate_unique_id_function=by_name)

AnyAgent: TypeAlias = BaseAgent[Any, Any]  # Any: agents of every kind


@routes.head("/health", include_in_schema=False)
@routes.get("/health", response_model=None, responses=answers(described.Health))
async def health(readiness: Ready) -> Json:
    """Is the process alive? It is as long as it answers; `details` tell whether it can do its work too."""
    state = await readiness.look(_A_MOMENT)
    return {"status": "ok", "details": _details(state)}


@routes.head("/ready", include_in_schema=False)
@routes.get("/ready", response_model=None, responses=answers(described.Readiness) | _NOT_READY)
async def ready(readiness: Ready) -> JSONResponse:
    """Shall it be sent requests? 503 while it shuts down, and while its store is out of reach."""
    state = await readiness.look()
    body: Json = {"status": "ok" if state.ready else "unavailable", "details": _details(state)}
    return JSONResponse(body) if state.ready else JSONResponse(body, 503, headers={"Retry-After": "5"})


def _details(state: State) -> Json:
    return {
        "ready": state.ready,
        "draining": state.draining,
        "store": "ok" if state.store else "out of reach",
        "changes": "pushed" if state.is_pushed else "polled",
    }


@routes.get("/version", response_model=None, responses=answers(described.Version))
async def show_version(manager: Manager, who: Who) -> Json:
    return {"version": version("safepoint"), "language": "python", "language_version": platform.python_version()}


@routes.get("/list-apps", response_model=None, responses=answers(list[str] | described.Apps))
async def list_apps(manager: Manager, who: Who, *, detailed: bool = False) -> Any:  # Any: two shapes, as ADK has them
    apps = [(app.name, app.agent) for app in manager.catalog if app.agent is not None]
    if not detailed:
        return [name for name, _ in apps]
    broken = [{"name": app.name, "error": app.error} for app in manager.catalog if app.agent is None]
    return {"apps": [_app_json(name, agent) for name, agent in apps], "broken": broken}


@routes.get("/apps/{app}/app-info", response_model=None, responses=answers(described.AppInfo))
async def app_info(manager: Manager, who: Who, app: str) -> Json:
    """ADK answers 400 for a root that calls no model; here a composite is told with all that it is made of."""
    return _app_json(app, manager.agent(check_id("app", app)))


def _app_json(name: str, agent: AnyAgent) -> Json:
    """Agents have no description of their own; ADK's field stays, empty."""
    return {
        "name": name,
        "rootAgentName": agent.name,
        "description": "",
        "language": "python",
        "isComputerUse": False,
        "agents": {each.name: _agent_json(each) for each in _everybody(agent)},
    }


def _agent_json(agent: AnyAgent) -> Json:
    specs = [tool.spec for tool in agent.tools.values()]
    declared = [
        {"name": spec.name, "description": spec.description, "parametersJsonSchema": dict(spec.parameters)}
        for spec in specs
    ]
    return {
        "name": agent.name,
        "description": "",
        "instruction": _instruction(agent),
        "tools": [{"functionDeclarations": [each]} for each in declared],
        "sub_agents": [each.name for each in _members(agent)],
    }


def _instruction(agent: AnyAgent) -> str:
    """The instructions as text; for a function, which makes them for each run, its name, as ADK does."""
    given = agent.instructions if isinstance(agent, Agent) else None
    if given is None or isinstance(given, str):
        return given or ""
    return f"<InstructionProvider: {getattr(given, '__name__', type(given).__name__)}>"


def _members(agent: AnyAgent) -> list[AnyAgent]:
    return list(agent.members()) if isinstance(agent, Composite) else []


def _everybody(agent: AnyAgent) -> list[AnyAgent]:
    """The agent and all below it, each once."""
    found = [agent]
    for each in found:  # grows while it is read
        found += [member for member in _members(each) if all(member.name != known.name for known in found)]
    return found

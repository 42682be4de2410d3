"""The ASGI app: routes, errors as answers, and the order of starting and ending."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from importlib.metadata import version
from itertools import islice
from typing import Any, cast

from fastapi import APIRouter, FastAPI, Request
from fastapi.encoders import jsonable_encoder
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.routing import BaseRoute

from safepoint._core.ladder import Ladder
from safepoint.agent.base import BaseAgent
from safepoint.agent.validation import checked_ladder
from safepoint.cluster.engine import EngineHost
from safepoint.errors import HistoryError, SessionBusy, SessionNotFound, StoreError
from safepoint.protocols.ag_ui import routes as ag_ui_routes
from safepoint.protocols.mcp import routes as mcp_routes
from safepoint.protocols.ui_stream import routes as ui_routes
from safepoint.server.auth import check_exposed
from safepoint.server.config import Role, ServerConfig
from safepoint.server.keys import KeyFile
from safepoint.server.middleware import AccessLogMiddleware, AuthMiddleware, DefaultApp
from safepoint.server.openapi import describe
from safepoint.server.readiness import Readiness
from safepoint.server.routes import (
    apps,
    audit,
    cancel,
    chats,
    live,
    metrics,
    not_implemented,
    page,
    resume,
    run_status,
    runs,
    sessions,
    workers,
)
from safepoint.server.routes import (
    freezes as freeze_routes,
)
from safepoint.server.shadowing import check_routes
from safepoint.serving.apps import Catalog
from safepoint.serving.freezes import FreezeWatcher
from safepoint.serving.ids import BadId, ReservedName
from safepoint.serving.lease_sweeper import LeaseSweeper
from safepoint.serving.moving import CannotMove
from safepoint.serving.owner_requests import OwnerSilent
from safepoint.serving.peer_server import PeerServer
from safepoint.serving.principal import NotAllowed, NotFound
from safepoint.serving.run_manager import Draining, NoSuchApp, RunManager, TooMany
from safepoint.serving.submission import NothingToAnswer
from safepoint.sessions.stores import MemoryStore, SqliteStore, replaced_methods
from safepoint.storage.memory import MemoryStorage
from safepoint.storage.opening import open_storage
from safepoint.storage.protocol import Storage, missing_parts
from safepoint.storage.run_records import KeyTaken

# What a client is told about a request of the wrong shape: as ADK's server says it, and never at length.
#
# A body may be wrong in a hundred thousand places. Each would be an error with a copy of what was sent; telling all of
# them takes seconds in which no other request is served.

_ERRORS = 20
_INSIDE = 20
_TEXT = 500


async def answer_invalid(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    return JSONResponse({"detail": jsonable_encoder(readable_errors(error.errors()))}, 422)


def readable_errors(errors: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:  # Any: as pydantic makes them
    """The first of the errors, each with a glimpse of what was sent."""
    return [{**error, "input": glimpse(error.get("input"))} for error in islice(errors, _ERRORS)]


def glimpse(value: Any, depth: int = 3) -> Any:  # Any: JSON
    """The value, with `…` for what there is too much of."""
    if isinstance(value, str):
        return value if len(value) <= _TEXT else f"{value[:_TEXT]}…"
    if isinstance(value, dict):
        named = cast(dict[str, Any], value)  # Any: JSON values
        pairs = islice(named.items(), _INSIDE if depth else 0)
        shown = {glimpse(name): glimpse(each, depth - 1) for name, each in pairs}
        return shown if len(shown) == len(named) else {**shown, "…": "…"}
    if isinstance(value, list):
        items = cast(list[Any], value)  # type: ignore[redundant-cast]  # pyright sees a list of the unknown
        glimpses = [glimpse(each, depth - 1) for each in items[: _INSIDE if depth else 0]]
        return glimpses if len(glimpses) == len(items) else [*glimpses, "…"]
    return value


_log = logging.getLogger("safepoint")

_CLOSING = 2.0

# The routes of each protocol besides ADK's, whose paths are the server's own: they are in `routes`.
_OF_WORKERS = ("/health", "/ready", "/version", "/metrics")

PROTOCOLS: tuple[APIRouter, ...] = (mcp_routes.routes, ag_ui_routes.routes, ui_routes.routes)

# What a client, or a cancel, can cause, and the status that says so. The first that fits is taken.
_STATUS: tuple[tuple[type[Exception], int], ...] = (
    (ReservedName, 403),
    (BadId, 400),
    (NotFound, 404),
    (NotAllowed, 403),
    (NoSuchApp, 404),
    (SessionNotFound, 404),
    (SessionBusy, 409),
    (CannotMove, 409),
    (OwnerSilent, 503),
    (KeyTaken, 409),
    (NothingToAnswer, 400),
    (Draining, 503),
    (TooMany, 429),
    (StoreError, 503),
    (HistoryError, 400),
    (ValueError, 400),
)


def create_app(
    agents: Mapping[str, BaseAgent[Any, Any]] | Catalog,  # Any: agents of every kind
    *,
    storage: Storage | str | None = None,
    store: Storage | MemoryStore | SqliteStore | None = None,
    config: ServerConfig | None = None,
    keys: KeyFile | None = None,
) -> FastAPI:
    """The ASGI app that serves these agents by name. Without a storage everything is kept in memory.

    `storage`: or its address, as `open_storage` reads it; raises `StoreError` for an address that is wrong.
    `store`: another name for `storage`, which also takes a `SqliteStore`. Raises TypeError for an object that lacks a
    part of a storage. `keys`: who may call. Without any, it serves this machine only. Raises ValueError for a
    configuration that would let others in unknown, and for a ladder that a tool of an app does not fit.
    """
    catalog = agents if isinstance(agents, Catalog) else Catalog.of(agents)
    config = config or ServerConfig()
    manager = RunManager(catalog, checked_storage(storage, store), config)
    _check_ladder(catalog, manager.config.ladder)

    recovery, engine = LeaseSweeper(manager), EngineHost(manager)
    peers = PeerServer(manager, config.peer_address)
    freezes = FreezeWatcher(manager, recovery.look_again)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
        check_routes(app)  # its user may have added some
        await peers.start()
        await freezes.start()  # first: nothing that is frozen is picked up
        await recovery.start()
        await engine.start()
        yield
        await recovery.stop()
        await freezes.stop()
        is_recorded = await manager.shut_down()
        await engine.stop()
        await peers.stop()
        if is_recorded:
            with suppress(TimeoutError):  # a store that hangs does not hold the exit
                async with asyncio.timeout(_CLOSING):
                    await manager.storage.aclose()

    # FastAPI's own pages of the API load scripts from other servers.
    app = FastAPI(title="Safepoint", version=version("safepoint"), lifespan=lifespan, docs_url=None, redoc_url=None)
    if manager.config.default_app is not None:
        app.add_middleware(DefaultApp, name=_known_app(catalog, manager.config.default_app))
    protocols = tuple({_fixed_part(route) for routes in PROTOCOLS for route in routes.routes})
    app.add_middleware(AuthMiddleware, config=config, keys=keys, protocols=protocols)
    app.add_middleware(AccessLogMiddleware, metrics=manager.operations.metrics)
    app.state.manager = manager
    app.state.config = config
    app.state.keys = keys
    app.state.readiness = Readiness(manager, time.monotonic)
    # Middleware is made with the first request; what is wrong with it shall be known before.
    check_exposed("allowed_hosts", config, keys, exposed=bool(config.allowed_hosts))
    if config.role is Role.WORKER:
        app.router.routes.extend(_routes_of_workers())
    else:
        _add_routes(app)
    app.add_exception_handler(RequestValidationError, answer_invalid)
    for kind, status in _STATUS:
        app.add_exception_handler(kind, _answer_with(status))
    check_routes(app)
    app.openapi = describe(app, has_keys=keys is not None)  # type: ignore[method-assign]  # as FastAPI's docs do it
    return app


def _add_routes(app: FastAPI) -> None:
    app.router.routes.extend(runs.routes.routes)  # the busiest first, and not a router away
    for part in (
        apps,
        audit,
        cancel,
        chats,
        freeze_routes,
        resume,
        sessions,
        run_status,
        live,
        page,
        metrics,
        workers,
        not_implemented,
    ):
        app.include_router(part.routes)
    for routes in PROTOCOLS:
        app.include_router(routes)


def _routes_of_workers() -> list[BaseRoute]:
    """A process that only works is looked at, and asked for nothing else."""
    found = [*apps.routes.routes, *metrics.routes.routes]
    return [route for route in found if getattr(route, "path", "") in _OF_WORKERS]


def checked_storage(storage: Storage | str | None, store: Storage | MemoryStore | SqliteStore | None) -> Storage:
    """The one that was given. Raises TypeError if it is not whole: nothing falls back to memory in silence."""
    if storage is not None and store is not None:
        raise TypeError("create_app(storage=…, store=…): write one of them, they are the same")
    given = open_storage(storage) if isinstance(storage, str) else storage if storage is not None else store
    if given is None:
        return MemoryStorage()
    if isinstance(given, MemoryStore | SqliteStore):
        if replaced := replaced_methods(given):
            raise TypeError(
                f"{type(given).__name__} replaces {', '.join(replaced)}, which a server would not call: it writes to "
                "the storage behind the store. Write create_app(storage=…) with a storage of your own"
            )
        return given.storage
    if missing := missing_parts(given):
        raise TypeError(
            f"{type(given).__name__} keeps sessions only, or not even those: a server needs a storage, and this lacks "
            f"{', '.join(missing)}. Write create_app(storage=SqliteStorage(…))"
        )
    return given


def _fixed_part(route: BaseRoute) -> str:
    """How the paths of a route begin: up to its first parameter."""
    return str(getattr(route, "path", "/")).partition("{")[0]


def _known_app(catalog: Catalog, name: str) -> str:
    if catalog.get(name) is None:
        raise ValueError(f"default_app={name!r}: write one of {', '.join(app.name for app in catalog)}")
    return name


def _check_ladder(catalog: Catalog, ladder: Ladder | None) -> None:
    for app in catalog:
        try:
            checked_ladder(ladder, app.agent.tools.values() if app.agent is not None else ())
        except ValueError as error:
            raise ValueError(f"the server's ladder does not suit the app {app.name}: {error}") from error


def _answer_with(status: int) -> Any:  # Any: as starlette declares handlers
    async def answer(request: Request, error: Exception) -> JSONResponse:
        text = "Session not found" if isinstance(error, SessionNotFound) else str(error)
        if status == 503:
            _log.error("%s %s: %s", request.method, request.url.path, error)
        return JSONResponse({"detail": text}, status, headers={"Retry-After": "5"} if status == 503 else None)

    return answer

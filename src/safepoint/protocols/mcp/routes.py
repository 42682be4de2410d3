"""`/mcp`: streamable HTTP, for the server that mounts it.

The SDK is loaded, and its session manager started, with the first request: a server that no MCP client calls does not
pay for it. A session of the transport belongs to the key that opened it; to others it is not found. A connection whose
key is revoked is cut.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

import anyio
from fastapi import APIRouter, FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from safepoint.protocols.http import PRINCIPAL, access_of
from safepoint.serving.principal import Principal
from safepoint.serving.run_manager import RunManager

if TYPE_CHECKING:
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

PATH = "/mcp"
_IDLE = 1800.0  # seconds after which a session that no request uses is closed
_GOODBYE = 1.0


class HttpTransport:
    """The SDK's session manager, in a task of its own from the first request until `close`."""

    def __init__(self, manager: RunManager) -> None:
        self._manager = manager
        self._started: asyncio.Future[StreamableHTTPSessionManager] | None = None
        self._task: asyncio.Task[None] | None = None
        self._over = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Cancellation: that of the request."""
        if find_spec("mcp") is None:
            answer = JSONResponse({"detail": f"{PATH} needs the package mcp: install safepoint[mcp]"}, 501)
            await answer(scope, receive, send)
            return
        if self._started is None:
            self._started = asyncio.get_running_loop().create_future()
            self._task = asyncio.create_task(self._run(self._started), name="safepoint: sessions of MCP")
        sessions = await asyncio.shield(self._started)
        scope["user"] = _owner(scope[PRINCIPAL])
        await _while_allowed(sessions, scope, receive, send)

    async def _run(self, started: asyncio.Future[StreamableHTTPSessionManager]) -> None:
        """Cancellation: the sessions end; their runs are left to the run manager."""
        try:
            # Loading the SDK takes most of a second, in which other requests are served.
            await asyncio.to_thread(import_module, "safepoint.protocols.mcp.server")
            await asyncio.to_thread(import_module, "mcp.server.streamable_http_manager")
            from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

            from safepoint.protocols.mcp.requests import Requests
            from safepoint.protocols.mcp.server import build

            requests = Requests()
            sessions = StreamableHTTPSessionManager(build(self._manager, requests, _caller), session_idle_timeout=_IDLE)
        except Exception as error:
            started.set_exception(error)
            return
        async with sessions.run():
            started.set_result(sessions)
            try:
                await self._over.wait()
            finally:
                requests.leaving = True

    async def close(self) -> None:
        """Bounded. Cancellation: it may still be ending."""
        self._over.set()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=_GOODBYE)


async def _while_allowed(sessions: StreamableHTTPSessionManager, scope: Scope, receive: Receive, send: Send) -> None:
    """Serve the request, until its caller may not stay any more. Cancellation: that of the request."""
    begun = False

    async def watched(message: Message) -> None:
        nonlocal begun
        begun = True
        await send(message)

    access = access_of(scope)
    with anyio.CancelScope() as allowed:
        access.when_refused(allowed.cancel)
        await sessions.handle_request(scope, receive, watched)
    refusal = access.refusal
    if refusal is not None and not begun:
        answer = JSONResponse({"detail": refusal.text}, refusal.status, dict(refusal.headers or {}))
        await answer(scope, receive, send)


def _caller(request: Request | None) -> Principal:
    """As the server has authenticated it."""
    assert request is not None
    found = request.scope[PRINCIPAL]
    assert isinstance(found, Principal)
    return found


def _owner(who: Principal) -> object:
    """The caller in the SDK's words: it keeps the sessions of different callers apart."""
    from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
    from mcp.server.auth.provider import AccessToken

    return AuthenticatedUser(AccessToken(token="", client_id=who.name, scopes=[]))


class _Endpoint:
    """The route, which finds the transport of its app."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Cancellation: that of the request."""
        state = scope["app"].state
        if getattr(state, "mcp", None) is None:
            state.mcp = HttpTransport(state.manager)
        await state.mcp(scope, receive, send)


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncGenerator[None]:
    yield
    if (transport := getattr(app.state, "mcp", None)) is not None:
        await transport.close()


routes = APIRouter(lifespan=_lifespan)
routes.routes.append(Route(PATH, _Endpoint(), methods=["GET", "POST", "DELETE"], include_in_schema=False))

"""The door: every request passes it before any route, as plain ASGI, so that streams stay streams.

It says who calls and leaves that in the scope; routes never see a request whose caller is unknown.
"""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from safepoint.server.principal import LOCAL


class Guard:
    """ASGI middleware around the whole app."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Cancellation: that of the request."""
        if scope["type"] != "lifespan":
            scope["safepoint.principal"] = LOCAL
        await self._app(scope, receive, send)

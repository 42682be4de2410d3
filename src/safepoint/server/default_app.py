"""Addresses without an app: they mean the one that the server was told, as ADK's server does it."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

_SHORT = ("/users/", "/app-info")


class DefaultApp:
    """ASGI middleware: `/users/…` and `/app-info` become those of `/apps/{name}`."""

    def __init__(self, app: ASGIApp, *, name: str) -> None:
        self._app = app
        self._before = f"/apps/{name}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Cancellation: that of the request."""
        root = scope.get("root_path", "")
        path: str = scope.get("path", "").removeprefix(root)
        if path.startswith(_SHORT):
            scope["path"] = f"{root}{self._before}{path}"
            scope["raw_path"] = scope["path"].encode()
        await self._app(scope, receive, send)

"""One log line and one count for each request, around everything else, as plain ASGI.

The line has the path without its query, and no header and no body: nothing that could be a secret.
"""

from __future__ import annotations

import logging
import time
from urllib.parse import quote

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from safepoint.server.metrics import Metrics

_log = logging.getLogger("safepoint.access")

_LEFT = 499  # the client went away before it was answered


class AccessLogMiddleware:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Cancellation: that of the request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        began, status = time.perf_counter(), _LEFT

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            elif message["type"] == "websocket.accept":
                status = 101
            await send(message)

        try:
            await self._app(scope, receive, noting)
        except Exception:
            status = status if status != _LEFT else 500
            raise
        finally:
            self._note(scope, status, time.perf_counter() - began)

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        method = scope.get("method", "WEBSOCKET")
        route = getattr(scope.get("route"), "path", None) or "none"
        self._metrics.requests[method if method in _METHODS else "other", route, status] += 1
        if _log.isEnabledFor(logging.INFO):
            path, by = quote(scope["path"]), getattr(scope.get("safepoint.principal"), "name", None)
            fields = {"method": method, "path": path, "status": status, "seconds": round(seconds, 6), "by": by}
            extra = {"event": "request", **fields}
            _log.info("%s %s %d %.1f ms by %s", method, path, status, seconds * 1000, by or "nobody", extra=extra)


_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "WEBSOCKET"})

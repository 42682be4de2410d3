"""Requests in flight, and why a client has cancelled one of them.

The SDK cancels the handler of a request when it reads `notifications/cancelled`, and in the same step begins the task
that passes the notification on. So the reason is heard a turn of the loop after the cancellation that it explains, and
the handler waits for some turns. A connection that was closed sends none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext

from safepoint._core.latch import Latch

CANCELLED = "notifications/cancelled"
_TURNS = 20  # of the loop; it is heard in the second
_MCP_SESSION = "mcp-session-id"


class InFlight:
    """One request. `reason`: the words of the client that cancelled it."""

    def __init__(self) -> None:
        self.reason = ""
        self.is_cancelled = False

    def cancel(self, reason: str) -> None:
        self.reason = reason
        self.is_cancelled = True

    async def was_cancelled(self) -> bool:
        """Did its client cancel it, and not only leave? Cancellation: only the waiting ends."""
        for _ in range(_TURNS):
            if self.is_cancelled:
                break
            await asyncio.sleep(0)
        return self.is_cancelled


class Requests:
    """Those of one connection; over HTTP those of all sessions of the server, told apart by the session's id.

    `leaving`: the server ends. Handlers that are cancelled then leave their runs to the run manager, which stops them.
    """

    def __init__(self) -> None:
        self.leaving = False
        self._open: dict[tuple[str, str], InFlight] = {}
        self._quiet = Latch()

    @contextmanager
    def open(self, context: ServerRequestContext[Any, Any]) -> Generator[InFlight]:  # Any: as the SDK has it
        key, request = _key(context, context.request_id), InFlight()
        self._open[key] = request
        try:
            yield request
        finally:
            if self._open.get(key) is request:
                del self._open[key]
            if not self._open:
                self._quiet.set()
                self._quiet = Latch()

    async def answered(self) -> None:
        """Until no handler is at work any more. Cancellation: only the waiting ends."""
        if self._open:
            await self._quiet.wait()

    def heard(self, context: ServerRequestContext[Any, Any]) -> None:  # Any: as above
        """A notification that says which request is cancelled. It may be of any shape."""
        params: Mapping[str, Any] = context.params or {}  # Any: JSON values
        request = self._open.get(_key(context, params.get("requestId")))
        if request is not None:
            reason = params.get("reason")
            request.cancel(reason if isinstance(reason, str) else "")


async def hear_cancels(ctx: ServerRequestContext[Requests, Any], call_next: CallNext) -> HandlerResult:
    """Middleware of the SDK's server. Cancellation: that of the message."""
    if ctx.method == CANCELLED and ctx.request_id is None:
        ctx.lifespan_context.heard(ctx)
    return await call_next(ctx)


def _key(context: ServerRequestContext[Any, Any], request_id: object) -> tuple[str, str]:  # Any: as above
    """As the SDK does it, 7 and "7" are the same id."""
    http = context.request
    return ("" if http is None else http.headers.get(_MCP_SESSION, ""), str(request_id))

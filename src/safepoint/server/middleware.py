"""The door in front of every route, as plain ASGI, so that streams stay streams.

Whoever is let in is known: `scope["safepoint.principal"]` is set before any route. A body is read here, whole and
bounded, and looked at before anything parses it; routes get it as if it had just come. Whatever goes wrong behind the
door is logged, and the client is told that it did, and nothing else.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketDisconnect

from safepoint.server.auth import Authenticator, Head, Refusal
from safepoint.server.authorization import Authorizations
from safepoint.server.concurrency_limits import VIEWERS, ConcurrencyLimits
from safepoint.server.config import ServerConfig
from safepoint.server.json_limits import JsonProblem, find_problem
from safepoint.server.keys import KeyFile
from safepoint.server.login import log_in, log_out, login_page
from safepoint.server.principal import Principal
from safepoint.server.responses import cors_headers, preflight, reply, reply_json

_log = logging.getLogger("safepoint.server")


class AuthMiddleware:
    """ASGI middleware around the whole app. Raises ValueError for a configuration that would expose it."""

    def __init__(self, app: ASGIApp, *, config: ServerConfig | None = None, keys: KeyFile | None = None) -> None:
        config = config or ServerConfig()
        self._app = app
        self._limits = config.limits
        self._door = Authenticator(config, keys, time.monotonic)
        self._seats = ConcurrencyLimits(config.limits)
        self._authorizations = Authorizations(self._door)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Cancellation: that of the request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        head = Head(scope)
        page = self._door.may_read(head)
        told = _Told(send, cors_headers(page) if page is not None else ())
        has_keys = self._door.has_keys
        refusal = self._door.screen(head, has_keys=has_keys)
        if refusal is not None:
            await self._refuse(head, refusal, receive, told)
        elif page is not None and head.method == "OPTIONS":
            await preflight(told)
        elif head.path == "/login" and head.method == "POST":
            await self._log_in(head, receive, told)
        else:
            found = self._door.caller(head, has_keys=has_keys)
            if isinstance(found, Refusal):
                await self._refuse(head, found, receive, told)
            else:
                await self._admit(head, found, receive, told)

    async def _log_in(self, head: Head, receive: Receive, send: Send) -> None:
        """Cancellation: logged in or not."""
        body = await read_body(head, receive, self._limits.body_bytes)
        if isinstance(body, Refusal):
            await self._refuse(head, body, receive, send)
        elif body is not None:
            await log_in(self._door, head, body, send)

    async def _admit(self, head: Head, who: Principal, receive: Receive, told: _Told) -> None:
        """Let the request through, if there is a seat for it. Cancellation: that of the request."""
        if head.path == "/logout" and head.method == "POST":
            await log_out(self._door, head, told)
            return
        head.scope["safepoint.principal"] = who
        seat = self._seats.kind(head, who)
        refusal = self._seats.take(seat) if seat is not None else None
        if refusal is not None:
            await self._refuse(head, refusal, receive, told)
            return
        # Whoever may stay for long is judged again and again.
        staying = self._authorizations.open(head, who) if seat == VIEWERS else None
        try:
            await self._serve(head, receive, told)
        finally:
            if staying is not None:
                self._authorizations.close(staying)
            if seat is not None:
                self._seats.give_back(seat)

    async def _serve(self, head: Head, receive: Receive, told: _Told) -> None:
        """Cancellation: that of the request."""
        try:
            if head.has_body and not head.is_websocket:
                await self._serve_body(head, receive, told)
            else:
                await self._app(head.scope, receive, told)
        except WebSocketDisconnect:
            pass  # it left while it was being answered; there is nobody to tell
        except Exception:
            if told.begun:
                raise  # the server below logs it, and ends the answer where it is
            _log.exception("%s %s failed", head.method, head.path)
            await _answer(head, Refusal(500, "Internal error"), told)

    async def _serve_body(self, head: Head, receive: Receive, told: _Told) -> None:
        """Cancellation: that of the request."""
        body = await read_body(head, receive, self._limits.body_bytes)
        if body is None:
            return
        if isinstance(body, Refusal):
            await self._refuse(head, body, receive, told)
            return
        flaw = find_problem(body, depth=self._limits.json_depth, values=self._limits.json_values)
        if flaw is not None:
            await reply_json(told, 422, invalid_json(flaw))
        else:
            await self._app(head.scope, _Again(body, receive), told)

    async def _refuse(self, head: Head, refusal: Refusal, receive: Receive, send: Send) -> None:
        """Cancellation: that of the request."""
        if head.is_websocket:
            await receive()
        elif head.has_body and b"expect" not in head.headers:
            await drain(receive, 2 * self._limits.body_bytes)
        if refusal.status == 401 and head.path == "/" and "text/html" in head.get(b"accept"):
            await login_page(send, refusal)
        else:
            await _answer(head, refusal, send)


class _Told:
    """A `send` that knows whether the answer has begun, and adds to its headers."""

    __slots__ = ("_more", "_send", "begun")

    def __init__(self, send: Send, more: tuple[tuple[bytes, bytes], ...]) -> None:
        self._send = send
        self._more = more
        self.begun = False

    async def __call__(self, message: Message) -> None:
        """Cancellation: sent or not."""
        if not self.begun:
            self.begun = True
            if message["type"] == "http.response.start":
                given = message.get("headers", ())
                names = {name.lower() for name, _ in given}
                added = [pair for pair in _ALWAYS if pair[0] not in names]
                message["headers"] = [*given, *added, *self._more]
        await self._send(message)


_ALWAYS = ((b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store"))


class _Again:
    """A `receive` that gives a body that was read already, and then what comes after it."""

    __slots__ = ("_body", "_receive")

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._body: bytes | None = body
        self._receive = receive

    async def __call__(self) -> Message:
        """Cancellation: nothing is lost."""
        if self._body is None:
            return await self._receive()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}


async def _answer(head: Head, refusal: Refusal, send: Send) -> None:
    """Cancellation: told or not."""
    denial = "websocket.http.response" in (head.scope.get("extensions") or {})
    await reply(send, refusal, websocket=head.is_websocket, denial=denial)


async def read_body(head: Head, receive: Receive, limit: int) -> bytes | Refusal | None:
    """The whole body, or why it is refused; None if the client has gone. Cancellation: what came is lost."""
    refusal = Refusal(413, f"a body may have {limit} bytes", {"Connection": "close"})
    length = head.headers.get(b"content-length", b"")
    if length.isdigit() and int(length[:20]) > limit:
        return refusal
    pieces: list[bytes] = []
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        piece: bytes = message.get("body", b"")
        pieces.append(piece)
        size += len(piece)
        more = message.get("more_body", False)
        if size > limit:
            return refusal
    return b"".join(pieces)


async def drain(receive: Receive, limit: int) -> None:
    """Let a client finish what it sends, within reason: most do not look for an answer before that.

    Cancellation: nothing to undo.
    """
    while limit > 0:
        message = await receive()
        limit -= len(message.get("body", b"")) + 1
        if not message.get("more_body", False):
            return


def invalid_json(flaw: JsonProblem) -> Mapping[str, object]:
    """As ADK's server says it."""
    where, nothing = ["body", flaw.at], dict[str, object]()
    error = {"type": "json_invalid", "loc": where, "msg": "JSON decode error", "input": nothing}
    return {"detail": [{**error, "ctx": {"error": flaw.text}}]}

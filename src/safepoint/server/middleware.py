"""Middleware in front of every route, as plain ASGI, so that streams stay streams.

The caller is known: `scope["safepoint.principal"]` is set before any route. A body is read here, whole and
bounded, and looked at before anything parses it; routes get it as if it had just come. A failure behind it
is logged; the client learns that there was one, and nothing else.
"""

from __future__ import annotations

import html
import json
import logging
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs, quote

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketDisconnect

from safepoint.agent.telemetry import remote_parent
from safepoint.protocols.json_limits import JsonProblem, find_problem
from safepoint.server.auth import Authenticator, Authorizations, Head, Refusal
from safepoint.server.config import Limits, ServerConfig
from safepoint.server.cookies import set_cookie
from safepoint.server.headers import page_headers
from safepoint.server.keys import KeyFile
from safepoint.serving.metrics import Metrics
from safepoint.serving.principal import Principal

# How the page gets its cookie: a form that sends the key once, and never in an address.

# Answers that the guard gives itself, as ASGI messages.

JSON_TYPE = "application/json"


async def reply(send: Send, refusal: Refusal, *, websocket: bool = False, denial: bool = False) -> None:
    """`denial`: the server below can answer a WebSocket handshake with a status. Cancellation: told or not."""
    if websocket and not denial:
        await send({"type": "websocket.close", "code": 1008, "reason": refusal.text[:120]})
        return
    kind = "websocket.http.response" if websocket else "http.response"
    text = refusal.text if refusal.plain else json.dumps({"detail": refusal.text})
    type_ = "text/plain; charset=utf-8" if refusal.plain else JSON_TYPE
    await _send(send, kind, refusal.status, text, type_, refusal.headers)


async def reply_json(
    send: Send, status: int, body: Mapping[str, object], headers: Mapping[str, str] | None = None
) -> None:
    """Cancellation: told or not."""
    await _send(send, "http.response", status, json.dumps(body), JSON_TYPE, headers)


async def reply_html(send: Send, status: int, page: str, headers: Mapping[str, str]) -> None:
    """Cancellation: told or not."""
    await _send(send, "http.response", status, page, "text/html; charset=utf-8", headers)


async def redirect(send: Send, to: str, headers: Mapping[str, str]) -> None:
    """Cancellation: told or not."""
    await _send(send, "http.response", 303, "", "text/plain", {"Location": to, **headers})


async def preflight(send: Send) -> None:
    """A browser asks what a page of another server may do here. Cancellation: told or not."""
    allowed = {
        "Access-Control-Allow-Methods": "GET, POST, PATCH, DELETE",
        "Access-Control-Allow-Headers": "Authorization, Content-Type, Last-Event-ID, Mcp-Session-Id, "
        "Mcp-Protocol-Version, Mcp-Method, Mcp-Name",
        "Access-Control-Max-Age": "600",
    }
    await _send(send, "http.response", 204, "", None, allowed)


def cors_headers(page: str) -> tuple[tuple[bytes, bytes], ...]:
    """Cookies are left out: they count for the server's own page only. Of our headers it may read what it needs."""
    return (
        (b"access-control-allow-origin", page.encode("latin-1")),
        (b"access-control-expose-headers", b"Safepoint-Run, Retry-After, Link, Mcp-Session-Id"),
        (b"vary", b"Origin"),
    )


async def _send(
    send: Send, kind: str, status: int, text: str, type_: str | None, headers: Mapping[str, str] | None
) -> None:
    body = text.encode()
    given = {"Content-Type": type_, **(headers or {})} if type_ is not None else dict(headers or {})
    if status != 204:
        given["Content-Length"] = str(len(body))
    raw = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in given.items()]
    await send({"type": f"{kind}.start", "status": status, "headers": raw})
    await send({"type": f"{kind}.body", "body": body})


_PAGE = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>Safepoint</title>
<style>body {{ font: 16px system-ui, sans-serif; margin: 20vh auto; max-width: 24rem }}
input, button {{ font: inherit; padding: .4rem; width: 100%; box-sizing: border-box; margin-top: .5rem }}</style>
</head>
<body><h1>Safepoint</h1>
<form method="post" action="login"><label for="key">API key</label>
<input id="key" name="key" type="password" autocomplete="off" required autofocus>
<button>Log in</button></form>
<p role="alert">{problem}</p>
</body></html>
"""


async def log_in(authenticator: Authenticator, head: Head, body: bytes, send: Send) -> None:
    """A form is answered with the page, JSON with JSON. Cancellation: logged in or not."""
    is_form = head.get(b"content-type").partition(";")[0].strip() == "application/x-www-form-urlencoded"
    found = authenticator.log_in(head, _key_in(body, is_form=is_form))
    if isinstance(found, Refusal):
        await (login_page(send, found) if is_form and found.status in (401, 429) else reply(send, found))
        return
    who, token = found
    secure = head.scope.get("scheme") == "https" or head.get(b"x-forwarded-proto") == "https"
    cookie = {"Set-Cookie": set_cookie(head.cookie, token, secure=secure)}
    if is_form:
        await redirect(send, f"{head.scope.get('root_path', '')}/", cookie)
    else:
        await reply_json(send, 200, {"name": who.name, "user": who.user, "admin": who.admin}, cookie)


async def log_out(authenticator: Authenticator, head: Head, send: Send) -> None:
    """Cancellation: logged out or not."""
    authenticator.log_out(head)
    await reply_json(send, 200, {}, {"Set-Cookie": set_cookie(head.cookie, "", secure=False)})


async def login_page(send: Send, refusal: Refusal) -> None:
    """Cancellation: told or not."""
    problem = "" if "send an API key" in refusal.text else refusal.text
    page = _PAGE.format(problem=html.escape(problem))
    await reply_html(send, refusal.status, page, {**page_headers(page), **(refusal.headers or {})})


def _key_in(body: bytes, *, is_form: bool) -> str:
    """The key that was sent; empty, and so wrong, if there is none."""
    try:
        found: Any = parse_qs(body.decode()).get("key", [""])[0] if is_form else json.loads(body)["key"]  # Any: JSON
    except (ValueError, LookupError, TypeError, RecursionError):
        return ""
    return found if isinstance(found, str) else ""


# Addresses without an app: they mean the default app of the server, as with ADK's server.

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


# How many requests may stay open at once: those that wait for a run, and, counted apart, those that stop one.

VIEWERS = "viewers"
_VIEWED = ("/run", "/run_sse", "/run_live")


class ConcurrencyLimits:
    """Counts open requests. A cancel has a bucket of its own for each key, so nothing else can crowd it out.

    `protocols`: how the paths of mounted protocols begin. Each of their requests may wait for a run.
    """

    def __init__(self, limits: Limits, protocols: tuple[str, ...] = ()) -> None:
        self._limits = limits
        self._protocols = protocols
        self._in_use: Counter[str] = Counter()

    def kind(self, head: Head, who: Principal) -> str | None:
        """Which count the request belongs to; None if it is over soon."""
        path = head.path
        if path.endswith(":cancel") or self._is_stop(path):
            return f"cancel/{who.name}"
        if path in _VIEWED or (path.startswith("/runs/") and path.endswith("/events")):
            return VIEWERS
        return VIEWERS if self._protocols and path.startswith(self._protocols) else None

    def _is_stop(self, path: str) -> bool:
        """Is it a protocol's own route that stops a run? An app may be called `stop` too: its name comes before."""
        of_protocol = bool(self._protocols) and path.startswith(self._protocols)
        return of_protocol and path.endswith("/stop") and path.count("/") > 2

    def take(self, kind: str) -> Refusal | None:
        """None, or why the limit is reached."""
        limits, wait = self._limits, {"Retry-After": "5"}
        if kind == VIEWERS and self._in_use[kind] >= limits.viewers:
            return Refusal(503, f"{limits.viewers} requests wait for runs already, and no more may", wait)
        if kind != VIEWERS and self._in_use[kind] >= limits.cancels:
            return Refusal(429, f"{limits.cancels} cancels of this key are open already: send waitSeconds: 0", wait)
        self._in_use[kind] += 1
        return None

    def give_back(self, kind: str) -> None:
        self._in_use[kind] -= 1
        if not self._in_use[kind]:
            del self._in_use[kind]


_log = logging.getLogger("safepoint.server")


class AuthMiddleware:
    """ASGI middleware around the whole app. Raises ValueError for a configuration that would expose it."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        config: ServerConfig | None = None,
        keys: KeyFile | None = None,
        protocols: tuple[str, ...] = (),
    ) -> None:
        config = config or ServerConfig()
        self._app = app
        self._limits = config.limits
        self._authenticator = Authenticator(config, keys, time.monotonic)
        self._concurrency = ConcurrencyLimits(config.limits, protocols)
        self._authorizations = Authorizations(self._authenticator)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Cancellation: that of the request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        head = Head(scope)
        page = self._authenticator.may_read(head)
        sender = _Sender(send, cors_headers(page) if page is not None else ())
        has_keys = self._authenticator.has_keys
        refusal = self._authenticator.screen(head, has_keys=has_keys)
        if refusal is not None:
            await self._refuse(head, refusal, receive, sender)
        elif page is not None and head.method == "OPTIONS":
            await preflight(sender)
        elif head.path == "/login" and head.method == "POST":
            await self._log_in(head, receive, sender)
        else:
            found = self._authenticator.caller(head, has_keys=has_keys)
            if isinstance(found, Refusal):
                await self._refuse(head, found, receive, sender)
            else:
                await self._admit(head, found, receive, sender)

    async def _log_in(self, head: Head, receive: Receive, send: Send) -> None:
        """Cancellation: logged in or not."""
        body = await read_body(head, receive, self._limits.body_bytes)
        if isinstance(body, Refusal):
            await self._refuse(head, body, receive, send)
        elif body is not None:
            await log_in(self._authenticator, head, body, send)

    async def _admit(self, head: Head, who: Principal, receive: Receive, sender: _Sender) -> None:
        """Let the request through, unless its limit is reached. Cancellation: that of the request."""
        if head.path == "/logout" and head.method == "POST":
            await log_out(self._authenticator, head, sender)
            return
        head.scope["safepoint.principal"] = who
        limit_kind = self._concurrency.kind(head, who)
        refusal = self._concurrency.take(limit_kind) if limit_kind is not None else None
        if refusal is not None:
            await self._refuse(head, refusal, receive, sender)
            return
        # A caller that may stay for long is checked again and again.
        staying = self._authorizations.open(head, who) if limit_kind == VIEWERS else None
        try:
            if trace := head.get(b"traceparent"):
                with remote_parent({"traceparent": trace, "tracestate": head.get(b"tracestate")}):
                    await self._serve(head, receive, sender)
            else:
                await self._serve(head, receive, sender)
        finally:
            if staying is not None:
                self._authorizations.close(staying)
            if limit_kind is not None:
                self._concurrency.give_back(limit_kind)

    async def _serve(self, head: Head, receive: Receive, sender: _Sender) -> None:
        """Cancellation: that of the request."""
        try:
            if head.has_body and not head.is_websocket:
                await self._serve_body(head, receive, sender)
            else:
                await self._app(head.scope, receive, sender)
        except WebSocketDisconnect:
            pass  # the client left while it was being answered
        except Exception:
            if sender.begun:
                raise  # the server below logs it, and ends the answer where it is
            _log.exception("%s %s failed", head.method, head.path)
            await _answer(head, Refusal(500, "Internal error"), sender)

    async def _serve_body(self, head: Head, receive: Receive, sender: _Sender) -> None:
        """Cancellation: that of the request."""
        body = await read_body(head, receive, self._limits.body_bytes)
        if body is None:
            return
        if isinstance(body, Refusal):
            await self._refuse(head, body, receive, sender)
            return
        problem = find_problem(body, depth=self._limits.json_depth, values=self._limits.json_values)
        if problem is not None:
            await reply_json(sender, 422, invalid_json(problem))
        else:
            await self._app(head.scope, _BodyAgain(body, receive), sender)

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


class _Sender:
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


class _BodyAgain:
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
    length = head.headers.get(b"content-length", b"")
    if length.isdigit() and int(length[:20]) > limit:
        return _too_large(limit)
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
            return _too_large(limit)
    return b"".join(pieces)


def _too_large(limit: int) -> Refusal:
    return Refusal(413, f"a body may have {limit} bytes", {"Connection": "close"})


async def drain(receive: Receive, limit: int) -> None:
    """Let a client finish what it sends, within reason: most do not look for an answer before that.

    Cancellation: nothing to undo.
    """
    while limit > 0:
        message = await receive()
        limit -= len(message.get("body", b"")) + 1
        if not message.get("more_body", False):
            return


def invalid_json(problem: JsonProblem) -> Mapping[str, object]:
    """As ADK's server says it."""
    where, nothing = ["body", problem.at], dict[str, object]()
    error = {"type": "json_invalid", "loc": where, "msg": "JSON decode error", "input": nothing}
    return {"detail": [{**error, "ctx": {"error": problem.text}}]}


_access_log = logging.getLogger("safepoint.access")
_LEFT = 499  # the client went away before it was answered


class AccessLogMiddleware:
    """One log line and one count for each request, around everything else.

    The line has the path without its query, and no header and no body: nothing that could be a secret.
    """

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
        if _access_log.isEnabledFor(logging.INFO):
            path, by = quote(scope["path"]), getattr(scope.get("safepoint.principal"), "name", None)
            fields = {"method": method, "path": path, "status": status, "seconds": round(seconds, 6), "by": by}
            extra = {"event": "request", **fields}
            _access_log.info(
                "%s %s %d %.1f ms by %s", method, path, status, seconds * 1000, by or "no one", extra=extra
            )


_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "WEBSOCKET"})

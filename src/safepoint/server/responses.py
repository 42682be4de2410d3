"""Answers that the guard gives itself, as ASGI messages."""

from __future__ import annotations

import json
from collections.abc import Mapping

from starlette.types import Send

from safepoint.server.auth import Refusal

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
        "Access-Control-Allow-Headers": "Authorization, Content-Type, Last-Event-ID",
        "Access-Control-Max-Age": "600",
    }
    await _send(send, "http.response", 204, "", None, allowed)


def cors_headers(page: str) -> tuple[tuple[bytes, bytes], ...]:
    """Cookies are left out: they count for the server's own page only. Of our headers it may read what it needs."""
    return (
        (b"access-control-allow-origin", page.encode("latin-1")),
        (b"access-control-expose-headers", b"Safepoint-Run, Retry-After, Link"),
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

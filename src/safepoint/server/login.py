"""How the page gets its cookie: a form that sends the key once, and never in an address."""

from __future__ import annotations

import html
import json
from typing import Any
from urllib.parse import parse_qs

from starlette.types import Send

from safepoint.server.auth import Authenticator, Head, Refusal
from safepoint.server.cookies import set_cookie
from safepoint.server.headers import page_headers
from safepoint.server.responses import redirect, reply, reply_html, reply_json

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


async def log_in(door: Authenticator, head: Head, body: bytes, send: Send) -> None:
    """A form is answered with the page, JSON with JSON. Cancellation: logged in or not."""
    is_form = head.get(b"content-type").partition(";")[0].strip() == "application/x-www-form-urlencoded"
    found = door.log_in(head, _key_in(body, is_form=is_form))
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


async def log_out(door: Authenticator, head: Head, send: Send) -> None:
    """Cancellation: logged out or not."""
    door.log_out(head)
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

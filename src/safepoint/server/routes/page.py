"""The page: one HTML file, one module and one style sheet; and the API as a page. Nothing of it is from elsewhere."""

from __future__ import annotations

import html
from functools import cache
from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, Response

from safepoint.protocols.http import Who
from safepoint.server.api_docs import api_page
from safepoint.server.headers import page_headers

_FOLDER = Path(__file__).parents[1] / "page"
_USER = 'data-user=""'  # whose page it is; empty: the viewer may choose

routes = APIRouter(include_in_schema=False)


@routes.get("/")
async def page(who: Who) -> HTMLResponse:
    shown = _read("index.html").replace(_USER, f'data-user="{html.escape(who.user or "")}"')
    return HTMLResponse(shown, headers=page_headers())


@routes.get("/docs")
async def api(who: Who, request: Request) -> HTMLResponse:
    shown = api_page(request.app.openapi())
    return HTMLResponse(shown, headers=page_headers(shown))


@routes.get("/page/page.js")
async def module(who: Who) -> Response:
    return Response(_read("page.js"), media_type="text/javascript", headers=page_headers())


@routes.get("/page/page.css")
async def style(who: Who) -> Response:
    return Response(_read("page.css"), media_type="text/css", headers=page_headers())


@cache
def _read(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")

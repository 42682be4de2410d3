"""The page: HTML, a style sheet and modules; and the API as a page. Nothing of it is from elsewhere."""

from __future__ import annotations

import html
from functools import cache
from pathlib import Path

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import HTMLResponse, Response

from safepoint.protocols.http import Who
from safepoint.server.api_docs import api_page
from safepoint.server.headers import page_headers

_FOLDER = Path(__file__).parents[1] / "page"
_TYPES = {".js": "text/javascript", ".css": "text/css"}
_FILES = frozenset(file.name for file in _FOLDER.iterdir() if file.suffix in _TYPES)
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


@routes.get("/page/{name}")
async def file(who: Who, name: str) -> Response:
    if name not in _FILES:
        raise HTTPException(404, f"No such file of the page: {name[:80]}")
    return Response(_read(name), media_type=_TYPES[Path(name).suffix], headers=page_headers())


@cache
def _read(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")

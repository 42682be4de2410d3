"""Routes that can never be reached, because one before them answers the same requests.

Of two routes that fit a request, the first is taken and the other is silent for ever. So this is looked at when the app
is made and again when it starts: by then it may have routes of its user's own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from fastapi import APIRouter, FastAPI
from starlette.routing import BaseRoute, Mount, Route, WebSocketRoute, compile_path

_HTTP, _WEBSOCKET = "http", "websocket"


@dataclass(frozen=True, slots=True)
class _Answers:
    """What one route answers. `methods`: None for all of them. `example`: a path that is meant for it."""

    path: str
    pattern: re.Pattern[str]
    example: str
    kinds: frozenset[str]
    methods: frozenset[str] | None = None

    def hides(self, other: _Answers) -> bool:
        shared = self.methods is None or other.methods is None or bool(self.methods & other.methods)
        return bool(self.kinds & other.kinds) and shared and self.pattern.fullmatch(other.example) is not None


def check_routes(app: FastAPI) -> None:
    """Raises RuntimeError if a route can never be reached."""
    before: list[_Answers] = []
    for route in _flat(app.routes):
        hidden_by = next((other for other in before if other.hides(route)), None)
        if hidden_by is not None:
            raise RuntimeError(
                f"{route.path} is never reached: {hidden_by.path} answers first. Give one of them another path"
            )
        before.append(route)


def _flat(routes: Iterable[BaseRoute], prefix: str = "") -> Iterator[_Answers]:
    """Those of included routers too, which FastAPI keeps as they are."""
    for route in routes:
        inner = getattr(route, "original_router", None)
        if isinstance(inner, APIRouter):
            yield from _flat(inner.routes, prefix + getattr(getattr(route, "include_context", None), "prefix", ""))
        elif isinstance(route, Mount):
            path = prefix + route.path
            pattern, _, _ = compile_path(f"{path}/{{path:path}}")
            yield _Answers(f"{path}/", pattern, f"{_example(path)}/x", frozenset({_HTTP, _WEBSOCKET}))
        elif isinstance(route, Route | WebSocketRoute):
            path = prefix + route.path
            pattern, _, _ = compile_path(path)
            kind = _HTTP if isinstance(route, Route) else _WEBSOCKET
            methods = frozenset(route.methods) if isinstance(route, Route) and route.methods is not None else None
            yield _Answers(path, pattern, _example(path), frozenset({kind}), methods)


def _example(path: str) -> str:
    return path.replace("{", "").replace("}", "")

"""A route that can never be reached is told when the app starts, whoever has added it and however."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from fastapi import APIRouter, FastAPI, WebSocket
from fastapi.routing import APIRoute
from starlette.routing import Mount, Route, WebSocketRoute

from safepoint.server import create_app, serve


async def answer() -> None: ...


async def talk(socket: WebSocket) -> None: ...


def masked_by_a_route(app: FastAPI) -> None:
    app.router.routes.insert(0, APIRoute("/runs/{anything}", answer, methods=["GET"]))


def masked_by_a_catch_all(app: FastAPI) -> None:
    app.router.routes.insert(0, Route("/{rest:path}", answer))


def masked_by_a_mount(app: FastAPI) -> None:
    app.router.routes.insert(0, Mount("/apps", FastAPI()))


def masked_socket(app: FastAPI) -> None:
    app.router.routes.insert(0, WebSocketRoute("/run_live", talk))


def masks_itself(app: FastAPI) -> None:
    app.get("/health")(answer)


def masks_itself_below_a_prefix(app: FastAPI) -> None:
    inner = APIRouter()
    inner.get("/{run}")(answer)
    app.include_router(inner, prefix="/runs")


def hides_behind_our_socket(app: FastAPI) -> None:
    app.websocket("/run_live")(talk)


@pytest.mark.parametrize(
    "add",
    [
        masked_by_a_route,
        masked_by_a_catch_all,
        masked_by_a_mount,
        masked_socket,
        masks_itself,
        masks_itself_below_a_prefix,
        hides_behind_our_socket,
    ],
)
def test_a_route_that_is_added_later_and_masks_another_is_refused_at_the_start(add: Callable[[FastAPI], None]) -> None:
    app = create_app({})
    add(app)

    async def start() -> None:
        async with app.router.lifespan_context(app):
            pass

    with pytest.raises(RuntimeError, match=r"is never reached: .* answers first"):
        asyncio.run(start())
    with pytest.raises(RuntimeError, match="is never reached"):
        serve(app, port=0)


def test_routes_of_ones_own_beside_ours_are_fine() -> None:
    app = create_app({})
    more = APIRouter()
    more.get("/{thing}")(answer)
    more.websocket("/talk")(talk)
    app.include_router(more, prefix="/mine")
    app.post("/health")(answer)
    app.mount("/files", FastAPI())
    everything: Any = FastAPI()  # Any: an ASGI app
    app.mount("/", everything)

    async def start() -> None:
        async with app.router.lifespan_context(app):
            pass

    asyncio.run(start())

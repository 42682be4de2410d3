"""The host, for routes: put into the app's state when the app is made; and a seat there, for those who watch."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Annotated

from fastapi import Depends
from starlette.requests import HTTPConnection

from safepoint.server.host import Host


async def _host_of(connection: HTTPConnection) -> Host:
    """Cancellation: there is nothing to wait for."""
    found = connection.app.state.host
    assert isinstance(found, Host)
    return found


Served = Annotated[Host, Depends(_host_of)]


async def _seated(host: Served) -> AsyncGenerator[None]:
    """Held until the whole answer is sent, or can't be. Cancellation: the seat is free again."""
    host.seats.take()
    try:
        yield
    finally:
        host.seats.give_back()


Seated = Annotated[None, Depends(_seated)]

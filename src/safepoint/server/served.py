"""The host, for routes: put into the app's state when the app is made."""

from __future__ import annotations

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

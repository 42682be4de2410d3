"""The host and its readiness, for routes: put into the app's state when the app is made."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends
from starlette.requests import HTTPConnection

from safepoint.server.readiness import Readiness
from safepoint.server.run_manager import RunManager
from safepoint.serving.principal import Principal


async def _host_of(connection: HTTPConnection) -> RunManager:
    """Cancellation: there is nothing to wait for."""
    found = connection.app.state.manager
    assert isinstance(found, RunManager)
    return found


async def _readiness_of(connection: HTTPConnection) -> Readiness:
    """Cancellation: there is nothing to wait for."""
    found = connection.app.state.readiness
    assert isinstance(found, Readiness)
    return found


async def _principal_of(connection: HTTPConnection) -> Principal:
    """Put there by the guard, before any route. Cancellation: there is nothing to wait for."""
    found = connection.scope["safepoint.principal"]
    assert isinstance(found, Principal)
    return found


Manager = Annotated[RunManager, Depends(_host_of)]
Ready = Annotated[Readiness, Depends(_readiness_of)]
Who = Annotated[Principal, Depends(_principal_of)]

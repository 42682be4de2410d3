"""What a protocol over HTTP finds in the server that mounts it. It never imports that server.

Declare a handler's parameters as `manager: Manager, who: Who`: the run manager, and the caller as the server has
authenticated it. Ids from outside become keys through `who` only. A connection that stays open asks `access_of(scope)`
whether its caller is still allowed to be there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Protocol, cast

from fastapi import Depends
from starlette.requests import HTTPConnection
from starlette.types import Scope

from safepoint.serving.principal import Principal
from safepoint.serving.run_manager import RunManager

PRINCIPAL = "safepoint.principal"
ACCESS = "safepoint.authorization"


class Refusal(Protocol):
    """Why a caller is refused."""

    @property
    def status(self) -> int: ...
    @property
    def text(self) -> str: ...
    @property
    def headers(self) -> Mapping[str, str] | None: ...


class Access(Protocol):
    """Whether the caller of an open connection may still be there. `refusal`, once set, stays."""

    @property
    def refusal(self) -> Refusal | None: ...
    def check(self) -> Refusal | None:
        """Judge the caller anew; cheap enough for every frame."""
        ...

    def when_refused(self, tell: Callable[[], object]) -> None:
        """Call it once the caller is refused, on the loop; at once if that has happened."""
        ...


def access_of(scope: Scope) -> Access:
    """Of a connection that the server has let in to stay."""
    return cast(Access, scope[ACCESS])


async def _manager_of(connection: HTTPConnection) -> RunManager:
    found = connection.app.state.manager
    assert isinstance(found, RunManager)
    return found


async def _principal_of(connection: HTTPConnection) -> Principal:
    found = connection.scope[PRINCIPAL]
    assert isinstance(found, Principal)
    return found


Manager = Annotated[RunManager, Depends(_manager_of)]
Who = Annotated[Principal, Depends(_principal_of)]

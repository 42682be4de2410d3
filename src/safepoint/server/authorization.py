"""Whether the callers of open connections may still be there.

A request is judged once, before its route. A stream or a socket stays for hours, and a key can be revoked meanwhile, a
login closed or run out. So whatever stays open has an `Authorization`, and asks it with every frame. All of them are
also looked at every half second, for those who are silent: one look at the key file, however many there are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.types import Scope

from safepoint.server.auth import Authenticator, Head, Refusal
from safepoint.serving.principal import Principal

_LOOK = 0.5
_SCOPE = "safepoint.authorization"


class Authorization:
    """Of one connection. `refusal`: why its caller may not be there any more; once set, it stays.

    valid ──the key is revoked, the login is over──▶ refused
    """

    def __init__(self, door: Authenticator, head: Head, who: Principal) -> None:
        self.refusal: Refusal | None = None
        self._door = door
        self._head = head
        self._who = who
        self._version = door.version
        self._told: list[Callable[[], object]] = []

    def check(self) -> Refusal | None:
        """Judge the caller anew. Keys are compared only if their file has changed, so it may be asked all the time."""
        if self.refusal is None:
            version = self._door.version
            if version != self._version or self._door.has_login(self._head):
                self._version = version
                self.refusal = self._door.still(self._head, self._who)
                if self.refusal is not None:
                    told, self._told = self._told, []
                    for tell in told:
                        tell()
        return self.refusal

    def when_refused(self, tell: Callable[[], object]) -> None:
        """Called on the loop, once, also if it is refused already."""
        if self.refusal is None:
            self._told.append(tell)
        else:
            tell()


class Authorizations:
    """Those of all connections that stay open."""

    def __init__(self, door: Authenticator) -> None:
        self._door = door
        self._open: set[Authorization] = set()
        self._timer: asyncio.TimerHandle | None = None

    def open(self, head: Head, who: Principal) -> Authorization:
        """From now on it is looked at, until `close`; routes find it by `authorization_of`."""
        made = head.scope[_SCOPE] = Authorization(self._door, head, who)
        if self._door.may_change:
            self._open.add(made)
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(_LOOK, self._look)
        return made

    def close(self, authorization: Authorization) -> None:
        self._open.discard(authorization)

    def _look(self) -> None:
        for each in list(self._open):
            each.check()
        self._timer = asyncio.get_running_loop().call_later(_LOOK, self._look) if self._open else None


def authorization_of(scope: Scope) -> Authorization:
    """Of a connection that the guard has let in to stay."""
    found = scope[_SCOPE]
    assert isinstance(found, Authorization)
    return found

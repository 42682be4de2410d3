"""The authenticated caller, and what it may touch.

Routes get ids from outside only through a `Principal`: `who.session(app, user, session)` is the one way to a
`SessionKey`, so a route that forgets to check the owner can't be written. What belongs to another user is
answered as if it did not exist.
"""

from __future__ import annotations

from dataclasses import dataclass

from safepoint._core.reasons import Reason, Source
from safepoint.serving.ids import SessionKey, check_id


class NotFound(LookupError):
    """Answered with 404: to this caller it is not there."""


class NotAllowed(PermissionError):
    """Answered with 403: something that only the admin key may do, and that is no secret."""


@dataclass(frozen=True, slots=True)
class Principal:
    """`user`: whose sessions and runs the caller may touch; None: everybody's. `name`: for the record."""

    name: str
    user: str | None = None
    admin: bool = False

    def session(self, app: str, user: str, session: str) -> SessionKey:
        """Raises `BadId`, `NotFound`."""
        key = SessionKey.of(app, user, session)
        self.must_own(key.user)
        return key

    def prefix(self, app: str, user: str) -> str:
        """Where all sessions of this app and user are stored. Raises `BadId`, `NotFound`."""
        prefix = f"{check_id('app', app)}/{check_id('user', user)}/"
        self.must_own(user)
        return prefix

    def owns(self, user: str) -> bool:
        return self.user is None or self.user == user

    def must_own(self, user: str) -> None:
        if not self.owns(user):
            raise NotFound("Not found")

    def must_be_admin(self) -> None:
        if not self.admin:
            raise NotAllowed("this needs the admin key")

    def reason(self, text: str | None, *, user: str) -> Reason:
        """Why a run is to stop, with who said so as the server knows it. A client can't claim another source.

        An operator acts for the house, so the source is a policy; the owner of the run is its user.
        """
        by_owner = self.user is not None or self.name == LOCAL.name
        return Reason(text or "", Source.USER if by_owner else Source.POLICY, by=user if by_owner else self.name)


# A server on loopback without keys: any local caller may do everything.
LOCAL = Principal("local", admin=True)
# The caller of a liveness probe. No user has an empty name, so nothing is theirs.
NOBODY = Principal("", user="")

"""Ids that come from clients: one pattern for apps, users, sessions and runs, on every route, body and query."""

from __future__ import annotations

import re

from safepoint._values import Value

_ID = re.compile(r"[A-Za-z0-9._@~+-]{1,128}")


class BadId(ValueError):
    """Answered with 400: the name could be mistaken for a path, an action or another name."""


class ReservedName(BadId):
    """Answered with 403: ADK keeps such names for agents of its own."""


def check_id(kind: str, value: str) -> str:
    """The id itself. Raises `BadId`."""
    if _ID.fullmatch(value) is None or value in (".", ".."):
        raise BadId(
            f"{kind} {value[:140]!r}: write 1 to 128 letters, digits or any of . _ @ ~ + - (and not '.' or '..')"
        )
    if kind == "app" and value.startswith("__"):
        raise ReservedName(f"app {value!r}: names that begin with __ are reserved")
    return value


def is_id(value: str) -> bool:
    """Could any kind of thing have that name?"""
    return _ID.fullmatch(value) is not None and value not in (".", "..") and not value.startswith("__")


def check_ids(**wanted: str | None) -> None:
    """What is looked for, by its kind, where it was named. Raises `BadId`."""
    for kind, value in wanted.items():
        if value is not None:
            check_id(kind, value)


class SessionKey(Value, frozen=True, order=True):
    """Whose session it is. No id has a slash in it, so no two keys share a place in the store."""

    app: str
    user: str
    session: str

    @staticmethod
    def of(app: str, user: str, session: str) -> SessionKey:
        return SessionKey(check_id("app", app), check_id("user", user), check_id("session", session))

    @property
    def stored_as(self) -> str:
        return f"{self.app}/{self.user}/{self.session}"

    @staticmethod
    def parse(stored_as: str) -> SessionKey | None:
        """The key of a stored session; None if the session was not made through the server."""
        parts = stored_as.split("/")
        return SessionKey(*parts) if len(parts) == 3 else None

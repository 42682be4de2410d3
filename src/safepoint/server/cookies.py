"""What the page gets for a key: a cookie that is not the key.

The value is a random token that means something only in this process and only for a while. It stands for a key's name,
so revoking the key ends its cookies too.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

_HOURS = 12
_KEPT = 1000


@dataclass(frozen=True, slots=True)
class _Login:
    key: str
    until: float


class Logins:
    """Who is logged in. `clock`: seconds that only go up."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._logins: OrderedDict[str, _Login] = OrderedDict()

    def open(self, key: str) -> str:
        """A token for the key with that name; the oldest makes room for it."""
        token = secrets.token_urlsafe(32)
        self._logins[token] = _Login(key, self._clock() + _HOURS * 3600)
        while len(self._logins) > _KEPT:
            self._logins.popitem(last=False)
        return token

    def key(self, token: str) -> str | None:
        """The name of the key that the token stands for, while it does.

        The token itself is looked up: with 256 random bits there is nothing to learn from how long that takes.
        """
        login = self._logins.get(token)
        if login is None:
            return None
        if self._clock() >= login.until:
            del self._logins[token]
            return None
        return login.key

    def close(self, token: str) -> None:
        self._logins.pop(token, None)


def cookie_name(port: object) -> str:
    """Cookies know hosts and not ports; two servers on one machine must not log each other out."""
    return f"safepoint_{port}"


def set_cookie(name: str, token: str, *, secure: bool) -> str:
    age = _HOURS * 3600 if token else 0
    return f"{name}={token}; Path=/; Max-Age={age}; HttpOnly; SameSite=Strict{'; Secure' if secure else ''}"


def read_cookie(header: str, name: str) -> str | None:
    for pair in header.split(";"):
        found, _, value = pair.strip().partition("=")
        if found == name:
            return value
    return None

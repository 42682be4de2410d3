"""Authentication, decided from the head of a request alone. It sends and receives nothing.

Without keys the server cannot tell callers apart, so it serves this machine only: callers from loopback, host names
that mean loopback, no pages but its own, and nothing that came through a proxy. `insecure` lifts that. With keys every
request shows one, as a bearer token or as the cookie that the page got for it. Only `/health` and `/ready` are open.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import unquote_plus

from starlette.types import Scope

from safepoint.protocols.http import ACCESS
from safepoint.server.config import ServerConfig
from safepoint.server.cookies import Logins, cookie_name, read_cookie
from safepoint.server.keys import SECRET, KeyFile, redact
from safepoint.server.origins import Origins, is_address, is_loopback, is_same
from safepoint.serving.principal import LOCAL, NOBODY, Principal

# Wrong keys, counted by the address that they come from.
#
# A key of 256 random bits cannot be guessed. The count serves two others: an operator sees the address, once, and
# a client with an old key in its settings is told to wait. A right key is let in all the same: behind a proxy all
# clients share one address, and none of them may shut the others out, least of all from a cancel.

_log = logging.getLogger("safepoint.server")

_MINUTE = 60.0
_KEPT = 1000


class AuthThrottle:
    """So many of one address in a minute. `clock`: seconds that only go up."""

    def __init__(self, limit: int, clock: Callable[[], float]) -> None:
        self._limit = limit
        self._clock = clock
        # When the minute of an address began, and how many came since.
        self._minutes: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def count(self, address: str) -> int:
        """One more. Seconds to wait, if it was one too many; else 0."""
        now = self._clock()
        began, before = self._minutes.pop(address, (now, 0))
        if now - began >= _MINUTE:
            began, before = now, 0
        self._minutes[address] = (began, before + 1)
        if len(self._minutes) > _KEPT:
            self._minutes.popitem(last=False)
        if before < self._limit:
            return 0
        if before == self._limit:
            _log.warning("%s has sent more than %d wrong keys within a minute", address, self._limit)
        return max(1, math.ceil(began + _MINUTE - now))


# Where a second one would leave open which of them counts.
_ONCE = frozenset({b"host", b"origin", b"authorization", b"cookie", b"content-type", b"sec-fetch-site"})
_KEY_NAMES = frozenset({"key", "api_key", "apikey", "api-key", "access_token", "token", "authorization"})
# Those who look after the server from outside have no keys.
_OPEN = frozenset({"/health", "/ready"})
_SAFE_METHODS = frozenset({"GET", "HEAD"})
_WRONG_KEY = "this key is wrong or revoked"
_CHALLENGE = {"WWW-Authenticate": 'Bearer realm="safepoint"'}


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request goes no further. `plain`: as text, where ADK answers with text."""

    status: int
    text: str
    headers: Mapping[str, str] | None = None
    plain: bool = False


class Head:
    """The head of one request: its headers by name, how large they are, and which came twice."""

    __slots__ = ("headers", "method", "path", "scope", "size", "twice")

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.method: str = scope.get("method", "GET")
        self.path: str = scope["path"].removeprefix(scope.get("root_path", ""))
        self.headers: dict[bytes, bytes] = {}
        self.size = len(scope.get("raw_path") or b"") + len(scope["query_string"])
        self.twice: bytes | None = None
        for name, value in scope["headers"]:
            self.size += len(name) + len(value) + 4
            if name in self.headers and name in _ONCE:
                self.twice = name
            self.headers[name] = value

    def get(self, name: bytes) -> str:
        return self.headers.get(name, b"").decode("latin-1")

    @property
    def is_websocket(self) -> bool:
        return bool(self.scope["type"] == "websocket")

    @property
    def has_body(self) -> bool:
        return b"transfer-encoding" in self.headers or self.headers.get(b"content-length", b"0") != b"0"

    @property
    def cookie(self) -> str:
        """What this server's cookie is called: cookies know hosts and not ports."""
        return cookie_name((self.scope.get("server") or ("", 0))[1])

    @property
    def is_open(self) -> bool:
        """Is it answered to everybody, known or not?"""
        return self.path in _OPEN and self.method in _SAFE_METHODS

    @property
    def forwarded(self) -> bool:
        return any(name.startswith(b"x-forwarded-") or name == b"forwarded" for name in self.headers)


class Authenticator:
    """Judges every request. `keys`: without them, and without a file that may get some, everybody is `LOCAL`."""

    def __init__(self, config: ServerConfig, keys: KeyFile | None, clock: Callable[[], float]) -> None:
        self._config = config
        self._keys = keys
        self._logins = Logins(clock)
        self._wrong_keys = AuthThrottle(config.limits.wrong_keys, clock)
        self._origins = Origins.of(config.allowed_hosts, config.allowed_origins)

    @property
    def has_keys(self) -> bool:
        """Asked once for each request: here the file is looked at."""
        if self._keys is None:
            return False
        self._keys.refresh()
        return self._keys.needed

    @property
    def may_change(self) -> bool:
        """Can a caller who is let in now be refused later?"""
        return self._keys is not None

    @property
    def version(self) -> int:
        """Another number after each change of the key file, which is looked at here."""
        if self._keys is None:
            return 0
        self._keys.refresh()
        return self._keys.version

    def has_login(self, head: Head) -> bool:
        """Does the caller show a cookie, which may be over at any time?"""
        return (
            self.may_change
            and not head.get(b"authorization")
            and read_cookie(head.get(b"cookie"), head.cookie) is not None
        )

    def still(self, head: Head, who: Principal) -> Refusal | None:
        """Why a caller whose connection is still open would be refused now."""
        has_keys = self.has_keys
        found = self._identified(head) if has_keys else LOCAL
        if found == who:
            return None
        return found if isinstance(found, Refusal) else self.unknown("this key has another owner now")

    def screen(self, head: Head, *, has_keys: bool) -> Refusal | None:
        """Why a request like this is refused, from any caller."""
        refusal = self._malformed(head)
        if refusal is not None or (has_keys and head.is_open):
            return refusal
        return self._foreign(head, has_keys=has_keys)

    def caller(self, head: Head, *, has_keys: bool) -> Principal | Refusal:
        """Who calls, or why they are not let in."""
        if not has_keys:
            return LOCAL
        if head.is_open:
            return NOBODY
        found = self._identified(head)
        return self._wrong_key(head, found) if isinstance(found, Refusal) and head.get(b"authorization") else found

    def _malformed(self, head: Head) -> Refusal | None:
        limit = self._config.limits.header_bytes
        if head.size > limit:
            return Refusal(431, f"the head of a request may have {limit} bytes")
        if head.twice is not None:
            return Refusal(400, f"two headers {head.twice.decode('latin-1')}: send one")
        return _key_in_address(head.scope)

    def _foreign(self, head: Head, *, has_keys: bool) -> Refusal | None:
        """Host names, pages and proxies that are refused."""
        open_to_others = has_keys or self._config.insecure
        if not self._is_known_host(head, open_to_others=open_to_others):
            return Refusal(403, "Forbidden: host not allowed", plain=True)
        if not open_to_others and (head.forwarded or _is_remote(head.scope)):
            return Refusal(403, "Forbidden: this server has no API keys and serves only its own machine", plain=True)
        origin = head.get(b"origin")
        if origin and not is_same(origin, head.get(b"host")) and not self._origins.allows(origin):
            return Refusal(403, "Forbidden: origin not allowed", plain=True)
        return None

    def _is_known_host(self, head: Head, *, open_to_others: bool) -> bool:
        """Who listens on an address of the network, and names no hosts, is called by any name that leads there."""
        here = (head.scope.get("server") or ("", 0))[0]
        if open_to_others and not self._config.allowed_hosts and is_address(here) and not is_loopback(here):
            return True
        return self._origins.knows_host(head.get(b"host"))

    def _identified(self, head: Head) -> Principal | Refusal:
        assert self._keys is not None
        given = head.get(b"authorization")
        if given:
            scheme, _, secret = given.partition(" ")
            found = self._keys.match(secret.strip()) if scheme.lower() == "bearer" else None
            return found or self.unknown(_WRONG_KEY)
        token = read_cookie(head.get(b"cookie"), head.cookie)
        if token is None:
            return self.unknown("send an API key: `Authorization: Bearer KEY`")
        if not self._is_own_page(head):
            return Refusal(403, "Forbidden: a cookie counts only for the server's own page", plain=True)
        name = self._logins.key(token)
        found = self._keys.named(name) if name is not None else None
        return found or self.unknown("this login is over: log in again")

    def unknown(self, text: str) -> Refusal:
        return Refusal(401, text, _CHALLENGE)

    def _wrong_key(self, head: Head, refusal: Refusal) -> Refusal:
        """Count a wrong key, so that a client cannot try many."""
        wait = self._wrong_keys.count((head.scope.get("client") or ("", 0))[0])
        if not wait:
            return refusal
        return Refusal(429, "this key is wrong, and so were many before it: wait", {"Retry-After": str(wait)})

    def _is_own_page(self, head: Head) -> bool:
        """A page says where it is from, unless it only reads from its own server."""
        origin = head.get(b"origin")
        if origin:
            return is_same(origin, head.get(b"host"))
        reads = head.method in _SAFE_METHODS and not head.is_websocket
        return reads and head.get(b"sec-fetch-site") in ("", "same-origin", "none")

    def log_in(self, head: Head, secret: str) -> tuple[Principal, str] | Refusal:
        """The caller and the token of a new cookie."""
        if self._keys is None or not self.has_keys:
            return Refusal(404, "this server has no API keys: there is nothing to log in with")
        if not is_same(head.get(b"origin"), head.get(b"host")):
            return Refusal(403, "Forbidden: only the server's own page can log in", plain=True)
        found = self._keys.match(secret)
        if found is None:
            return self._wrong_key(head, self.unknown(_WRONG_KEY))
        return found, self._logins.open(found.name)

    def log_out(self, head: Head) -> None:
        self._logins.close(read_cookie(head.get(b"cookie"), head.cookie) or "")

    def may_read(self, head: Head) -> str | None:
        """The page of another server that may read the answer."""
        origin = head.get(b"origin")
        return origin if origin and self._origins.allowed and self._origins.allows(origin) else None


def check_exposed(what: str, config: ServerConfig, keys: KeyFile | None, *, exposed: bool) -> None:
    """Raises ValueError if others than this machine could reach a server without keys, or a host name is malformed."""
    Origins.of(config.allowed_hosts, config.allowed_origins)
    if keys is not None:
        keys.refresh()
    has_keys = keys is not None and keys.needed
    if config.insecure and has_keys:
        raise ValueError("insecure would mean nothing, because this server has API keys: leave it out")
    if exposed and not has_keys and not config.insecure:
        raise ValueError(
            f"{what}: others could reach this server, and it has no API keys. Make one with `safepoint keys add NAME "
            "--user U` or `--admin`, or say --insecure if everybody who reaches it may do everything"
        )


def _is_remote(scope: Scope) -> bool:
    client = scope.get("client")
    return client is not None and is_address(client[0]) and not is_loopback(client[0])


def _key_in_address(scope: Scope) -> Refusal | None:
    """Addresses end up in logs, histories and proxies. The key is taken out before anything of ours can log it."""
    query, path = scope["query_string"], scope["path"]
    if not query and "sp_" not in path:
        return None
    words = unquote_plus(query.decode("latin-1"))
    named = any(pair.partition("=")[0].lower() in _KEY_NAMES for pair in words.split("&"))
    if not named and SECRET.search(words) is None and SECRET.search(path) is None:
        return None
    scope["path"] = redact(path)
    scope["raw_path"] = scope["path"].encode("utf-8", "replace")
    scope["query_string"] = b"***" if query else b""
    return Refusal(
        400, "a key in the address: send it as `Authorization: Bearer KEY`, and revoke the one that you sent"
    )


# A request is judged once, before its route. A stream or a socket stays for hours, and meanwhile a key can be revoked,
# and a login closed or expire. So each connection that stays open has an `Authorization`, which is asked with every
# frame. All of them are also checked every half second, for silent connections: that costs one look at the key file,
# however many connections there are.

_LOOK = 0.5


class Authorization:
    """Of one connection. `refusal`: why its caller may not be there any more; once set, it stays.

    valid ──the key is revoked, the login is over──▶ refused
    """

    def __init__(self, authenticator: Authenticator, head: Head, who: Principal) -> None:
        self.refusal: Refusal | None = None
        self._authenticator = authenticator
        self._head = head
        self._who = who
        self._version = authenticator.version
        self._listeners: list[Callable[[], object]] = []

    def check(self) -> Refusal | None:
        """Judge the caller anew. Keys are compared only if their file has changed, so it may be asked all the time."""
        if self.refusal is None:
            version = self._authenticator.version
            if version != self._version or self._authenticator.has_login(self._head):
                self._version = version
                self.refusal = self._authenticator.still(self._head, self._who)
                if self.refusal is not None:
                    listeners, self._listeners = self._listeners, []
                    for tell in listeners:
                        tell()
        return self.refusal

    def when_refused(self, tell: Callable[[], object]) -> None:
        """Called on the loop, once, also if it is refused already."""
        if self.refusal is None:
            self._listeners.append(tell)
        else:
            tell()


class Authorizations:
    """Those of all connections that stay open."""

    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator
        self._open: set[Authorization] = set()
        self._timer: asyncio.TimerHandle | None = None

    def open(self, head: Head, who: Principal) -> Authorization:
        """From now on it is looked at, until `close`; routes find it by `access_of`."""
        made = head.scope[ACCESS] = Authorization(self._authenticator, head, who)
        if self._authenticator.may_change:
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

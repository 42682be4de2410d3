"""A tool that fetches a page: `fetch()`. It reaches public addresses only, and closes the connection when cut.

Every hop of a redirect is checked like the first address (see `AddressPolicy`). No proxy, no cookies, no credentials:
the tool fetches only public content. The answer is bounded in bytes and in time, and is requested uncompressed, so that
a small answer cannot become a large one.
"""

from __future__ import annotations

import asyncio
import codecs
import importlib.util
import ipaddress
import re
import socket
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias, cast
from urllib.parse import urljoin, urlsplit

from safepoint._core.ladder import StopPolicy
from safepoint.errors import UsageError
from safepoint.tools.arguments import Arguments, Parameter
from safepoint.tools.base import BaseTool, ToolSpec, checked_tool_name
from safepoint.tools.options import ToolOptions

if TYPE_CHECKING:
    import ssl

    from httpcore2 import AsyncNetworkBackend, AsyncNetworkStream, Response

    from safepoint.tools.context import CallContext


# The addresses that a tool may reach, and a way to reach them that cannot be redirected to others.
#
# A name is looked up once, all its addresses are checked, and the connection is made to one of the checked addresses,
# never to the name: a second look-up that answers otherwise (DNS rebinding) does not happen. Addresses that carry
# another one inside (IPv4 in IPv6, 6to4, NAT64, Teredo) are checked for both.

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Net: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
Resolve: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]

# Addresses that some Python version calls global and that are not: the metadata services of cloud hosts (Azure's,
# Oracle's), old and local forms of IPv6.
_NOT_PUBLIC = tuple(
    map(ipaddress.ip_network, ("168.63.129.16/32", "192.0.0.0/24", "::/8", "fec0::/10", "64:ff9b:1::/48"))
)
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


def networks(allow: Iterable[str]) -> tuple[Net, ...]:
    """The addresses and networks that are allowed although they are not public."""
    found: list[Net] = []
    for text in allow:
        try:
            found.append(ipaddress.ip_network(text))
        except ValueError:
            raise ValueError(f"allow={text!r}: write an address or a network, as '10.1.2.3' or '10.0.0.0/8'") from None
    return tuple(found)


class AddressPolicy:
    """Returns the addresses for a connection to a host, or refuses it with `PermissionError`."""

    def __init__(self, allow: tuple[Net, ...], resolve: Resolve) -> None:
        self._allow = allow
        self._resolve = resolve

    async def addresses(self, host: str, port: int) -> list[str]:
        """The checked addresses of that host. Cancellation: only the waiting ends."""
        found = await self._resolve(host, port)
        if not found:
            raise OSError(f"{host} has no address")
        for text in found:
            self._check(host, ipaddress.ip_address(text))
        return list(found)

    def _check(self, host: str, address: Address) -> None:
        if any(address in net for net in self._allow):
            return
        for each in _within(address):
            if not each.is_global or each.is_multicast or any(each in net for net in _NOT_PUBLIC):
                raise PermissionError(f"{host} is at {address}, which is not a public address; it may not be fetched")


def _within(address: Address) -> Iterator[Address]:
    """The address, and the addresses that it carries inside."""
    yield address
    if isinstance(address, ipaddress.IPv6Address):
        carried = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
        if address in _NAT64:
            carried.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
        yield from (each for each in carried if each is not None)


async def look_up(host: str, port: int) -> Sequence[str]:
    """Ask the system, in a daemon thread: a name server that does not answer delays neither a stop nor the exit.

    Cancellation: only the waiting ends.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[list[str]] = loop.create_future()

    def settle(found: list[str], error: OSError | None) -> None:
        if not answer.done():
            answer.set_result(found) if error is None else answer.set_exception(error)

    def ask() -> None:
        found: list[str] = []
        error: OSError | None = None
        try:
            infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            found = list(dict.fromkeys(str(info[4][0]) for info in infos))
        except (OSError, UnicodeError) as raised:
            error = OSError(f"{host} can't be looked up: {raised}")
        with suppress(RuntimeError):  # the loop is closed, so no task waits
            loop.call_soon_threadsafe(settle, found, error)

    threading.Thread(target=ask, name=f"safepoint:look up {host}", daemon=True).start()
    return await answer


MAX_BYTES = 200_000
TIMEOUT = 30.0
_MOST_REDIRECTS = 5
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_CHARSET = re.compile(r"charset=\"?([\w.:-]+)", re.IGNORECASE)
# Python codecs that no page is written in. They raise, warn, or take seconds for data that a server may send.
_NO_CHARSETS = frozenset({"idna", "punycode", "undefined", "unicode-escape", "raw-unicode-escape"})
_TEXT = re.compile(r"text/|application/([\w.+-]*\+)?(json|xml|javascript)|application/x-www-form", re.IGNORECASE)
_HEADERS = (("Accept-Encoding", "identity"), ("User-Agent", "safepoint"), ("Accept", "*/*"))

Connect: TypeAlias = "Callable[[str, int], Awaitable[AsyncNetworkStream]]"


class Fetch(BaseTool):
    """Made by `fetch()`."""

    def __init__(
        self, name: str, options: ToolOptions, gate: AddressPolicy, connect: Connect | None, max_bytes: int
    ) -> None:
        self._arguments = Arguments("fetch()", [Parameter("url", str, meaning="It begins with http:// or https://.")])
        self.spec = ToolSpec(name, "Fetch a web page or a file by its URL.", self._arguments.schema)
        self.options = options
        self._gate = gate
        self._connect = connect
        self._max_bytes = max_bytes
        self._trust: ssl.SSLContext | None = None

    @property
    def stop_policy(self) -> StopPolicy:
        return StopPolicy()

    def validate(self, args: Mapping[str, Any]) -> dict[str, Any]:  # Any: decoded JSON in, typed values out
        return self._arguments.validate(args)

    async def body(self, context: CallContext[Any], args: dict[str, Any]) -> object:
        """One page. Cancellation: the connection is closed."""
        url: str = args["url"]
        for _ in range(_MOST_REDIRECTS + 1):
            answer = await self._hop(url)
            if answer.location is None:
                return answer.text
            url = urljoin(url, answer.location)
        raise OSError(f"more than {_MOST_REDIRECTS} redirects, the last one to {url}")

    async def _hop(self, url: str) -> _Answer:
        """One request, on a connection of its own."""
        _check_url(url)
        import httpcore2

        if self._trust is None:
            self._trust = httpcore2.default_ssl_context()
        headers = [("Host", urlsplit(url).netloc), *_HEADERS]
        backend = _backend(self._gate, self._connect)
        async with (
            httpcore2.AsyncConnectionPool(ssl_context=self._trust, network_backend=backend) as pool,
            pool.stream("GET", url, headers=headers) as response,
        ):
            return await self._read(url, response)

    async def _read(self, url: str, response: Response) -> _Answer:
        fields = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers}
        if response.status in _REDIRECTS and "location" in fields:
            return _Answer(location=fields["location"])
        head = f"HTTP {response.status} {url}"
        kind = fields.get("content-type", "")
        packed = fields.get("content-encoding", "identity")
        if packed != "identity":
            return _Answer(f"{head}\n[the answer is compressed ({packed}), although that was not asked for]")
        if not _TEXT.match(kind or "text/plain"):
            return _Answer(f"{head}\n[not text: {kind}, {fields.get('content-length', 'an unknown number of')} bytes]")
        data, whole = await self._bytes(response)
        charset = _CHARSET.search(kind)
        text = _decoded(data, charset[1] if charset is not None else "utf-8")
        more = "" if whole else f"\n[cut here, after {self._max_bytes} bytes]"
        return _Answer(f"{head}\n\n{text}{more}")

    async def _bytes(self, response: Response) -> tuple[bytes, bool]:
        """At most the allowed number of bytes, and whether that is all."""
        data = bytearray()
        async for piece in response.aiter_stream():
            data += piece
            if len(data) > self._max_bytes:
                return bytes(data[: self._max_bytes]), False
        return bytes(data), True


class _Answer:
    __slots__ = ("location", "text")

    def __init__(self, text: str = "", location: str | None = None) -> None:
        self.text = text
        self.location = location


def fetch(
    *,
    allow: Sequence[str] = (),
    timeout: float = TIMEOUT,
    max_bytes: int = MAX_BYTES,
    name: str = "fetch",
    resolve: Resolve = look_up,
    connect: Connect | None = None,
) -> Fetch:
    """A tool that fetches a URL. `allow`: addresses or networks that may be reached although they are not public.

    `resolve` and `connect` replace the network: they find a host's addresses and connect to one of them.
    """
    if importlib.util.find_spec("httpcore2") is None:
        raise UsageError("the fetch tool needs an HTTP library: pip install 'safepoint[fetch]'")
    if not isinstance(max_bytes, int) or max_bytes < 1:  # pyright: ignore[reportUnnecessaryIsInstance]  # untyped callers
        raise ValueError(f"max_bytes={max_bytes!r}: write a whole number of bytes from 1 up")
    if isinstance(allow, str):
        raise ValueError(f"allow={allow!r}: write a list, as allow=[{allow!r}]")
    options = ToolOptions.parse(effect="pure", timeout=timeout)
    return Fetch(checked_tool_name(name), options, AddressPolicy(networks(allow), resolve), connect, max_bytes)


def _check_url(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise PermissionError(f"{url!r} may not be fetched: write a URL that begins with http:// or https://")
    if parts.username is not None or parts.password is not None:
        raise PermissionError(f"{url!r} carries a name or a password: leave it out")


def _backend(gate: AddressPolicy, connect: Connect | None) -> AsyncNetworkBackend:
    """A network backend that connects only to addresses that the policy has checked."""
    import httpcore2

    network = cast("AsyncNetworkBackend", httpcore2.AnyIOBackend())

    class Checked(httpcore2.AsyncNetworkBackend):
        async def connect_tcp(
            self,
            host: str,
            port: int,
            timeout: float | None = None,
            local_address: str | None = None,
            socket_options: object = None,
        ) -> AsyncNetworkStream:
            failure: Exception = OSError(f"{host} has no address")
            for address in await gate.addresses(host.strip("[]"), port):
                try:
                    if connect is not None:
                        return await connect(address, port)
                    return await network.connect_tcp(address, port, timeout=timeout)
                except (OSError, httpcore2.ConnectError) as error:
                    failure = error
            raise failure

    return Checked()


def _decoded(data: bytes, charset: str) -> str:
    try:
        known = codecs.lookup(charset).name not in _NO_CHARSETS
        return data.decode(charset if known else "utf-8", "replace")
    except LookupError:
        return data.decode("utf-8", "replace")

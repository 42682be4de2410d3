"""Which addresses may be reached from a tool, and a way to reach them that can't be tricked into others.

A name is looked up once, every address that it has is checked, and the connection is made to one of the checked
addresses, never to the name: a second look-up that answers otherwise (DNS rebinding) does not happen. Addresses that
carry another one inside (IPv4 in IPv6, 6to4, NAT64, Teredo) are checked for both.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TypeAlias

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Net: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
Resolve: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]

# What Python calls global, or did in an older version, and what is not: the answers of a machine's own host (Azure's,
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
    """Says where a connection to a host goes, or refuses it with `PermissionError`."""

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
    """The address, and those that it carries inside."""
    yield address
    if isinstance(address, ipaddress.IPv6Address):
        carried = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
        if address in _NAT64:
            carried.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
        yield from (each for each in carried if each is not None)


async def look_up(host: str, port: int) -> Sequence[str]:
    """Ask the system, in a daemon thread: a name server that does not answer holds neither a stop nor the exit.

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
        with suppress(RuntimeError):  # the loop is closed, nobody waits
            loop.call_soon_threadsafe(settle, found, error)

    threading.Thread(target=ask, name=f"safepoint:look up {host}", daemon=True).start()
    return await answer

"""Which names a server goes by, and which pages may call it. Pure.

A page in a browser on this machine can reach loopback, and a name of its own can lead there (DNS rebinding). So a
server that does not know its callers answers only to names that mean this machine, and no page but its own.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import urlsplit


@lru_cache(1024)
def is_loopback(host: str) -> bool:
    """`localhost` or an address of this machine's own loopback."""
    name = host.strip("[]").lower()
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


@lru_cache(1024)
def is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def host_name(header: str) -> str:
    """The name in a Host header, without its port."""
    if header.startswith("["):
        return header.partition("]")[0] + "]"
    return header.partition(":")[0].lower()


@dataclass(frozen=True, slots=True)
class Origins:
    """`hosts`: names besides loopback. `allowed`: pages that may call, besides the server's own."""

    hosts: frozenset[str]
    allowed: tuple[Callable[[str], object], ...]

    @staticmethod
    def of(hosts: Iterable[str], origins: Iterable[str]) -> Origins:
        """Raises ValueError with what to write instead."""
        return Origins(frozenset(map(_known_host, hosts)), tuple(map(_matcher, origins)))

    def knows_host(self, header: str) -> bool:
        name = host_name(header)
        return is_loopback(name) or name in self.hosts

    def allows(self, origin: str) -> bool:
        """Is it one of the pages that were named when the server started?"""
        return any(matches(origin) for matches in self.allowed)


def is_same(origin: str, host: str) -> bool:
    """Does the page come from this server? Behind a proxy the scheme can't be known, the name and port can."""
    for scheme, port in (("http://", ":80"), ("https://", ":443")):
        if origin.startswith(scheme):
            return origin.removeprefix(scheme).lower().removesuffix(port) == host.lower().removesuffix(port)
    return False


def _known_host(host: str) -> str:
    name = host_name(host.strip())
    if not re.fullmatch(r"\[[0-9a-f:.]+\]|[a-z0-9._-]+", name):
        raise ValueError(f"allowed host {host!r}: write a name, as in agents.example.com")
    return name


def _matcher(origin: str) -> Callable[[str], object]:
    if origin.startswith("regex:"):
        try:
            return re.compile(origin.removeprefix("regex:")).fullmatch
        except re.error as error:
            raise ValueError(f"allowed origin {origin!r}: {error}") from error
    parts = urlsplit(origin)
    if parts.scheme not in ("http", "https") or not parts.netloc or origin != f"{parts.scheme}://{parts.netloc}":
        raise ValueError(f"allowed origin {origin!r}: write scheme and name, as in https://app.example.com, or regex:…")
    return origin.__eq__

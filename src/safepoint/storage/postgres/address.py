"""The address of a database: read strictly, never shown, and warned of where others could read along."""

from __future__ import annotations

import logging

import psycopg
from psycopg import capabilities
from psycopg.conninfo import conninfo_to_dict

from safepoint.errors import StoreError

_log = logging.getLogger("safepoint")

SCHEMES = ("postgresql://", "postgres://")


def check_address(url: str) -> str:
    """The address, as libpq takes it. Raises `StoreError`, without the address: a password is part of it."""
    try:
        given = conninfo_to_dict(url)
    except psycopg.Error:
        raise StoreError("the address can't be read: write postgresql://USER:PASSWORD@HOST:PORT/DATABASE") from None
    hosts = str(given.get("host") or given.get("hostaddr") or "")
    if not all(map(_is_local, hosts.split(","))) and given.get("sslmode") != "verify-full":
        _log.warning(
            "the connection to the database is not verified, and others may read along: add sslmode=verify-full"
        )
    return url


def check_driver() -> None:
    """Raises `StoreError` for a libpq that waits for the network, and with it the whole loop, when it is cancelled."""
    if not capabilities.has_cancel_safe():
        raise StoreError(
            f"libpq {psycopg.pq.version() // 10000} is too old: Safepoint needs 17 or newer; "
            "install psycopg[binary]>=3.2, which brings its own"
        )


def _is_local(host: str) -> bool:
    return host in ("", "localhost", "::1") or host.startswith(("/", "127.", "@"))

"""What a cluster stands on, looked at piece by piece, each in one line."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass
from uuid import uuid4

import psycopg
from psycopg import sql

from safepoint.errors import StoreError
from safepoint.storage.placement import Engine
from safepoint.storage.postgres.connections import Connection, connect
from safepoint.storage.postgres.schema import SCHEMA, check_schema, one_line, qualify, read_found

_ARRIVES = 2.0
_FAR = 1.0
NO_PUSH = "LISTEN was taken and no push arrives: there is a pooler; give the database's own address as --listen-url"

_PEERS = """
SELECT count(*) FILTER (WHERE lease_until > clock_timestamp()),
    count(*) FILTER (WHERE lease_until <= clock_timestamp()),
    count(*) FILTER (WHERE lease_until > clock_timestamp() AND draining)
FROM safepoint.workers WHERE id <> ''
"""
_JOBS = """
SELECT (SELECT count(*) FROM safepoint.placements),
    (SELECT extract(epoch FROM clock_timestamp() - min(at))::float8 FROM safepoint.placements)
"""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line. `ok`: None where there is nothing to be right or wrong."""

    part: str
    ok: bool | None
    text: str


async def hears_pushes(url: str, listen_url: str) -> bool:
    """Does what is notified at one address arrive at the other? Raises psycopg's errors. Cancellation: no change."""
    channel = f"safepoint_check_{uuid4().hex[:12]}"
    async with await connect(listen_url, "safepoint check") as ear, await connect(url, "safepoint check") as mouth:
        await ear.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
        await mouth.execute("SELECT pg_notify(%s, 'x')", (channel,))
        async for _ in ear.notifies(timeout=_ARRIVES, stop_after=1):
            return True
    return False


async def check_pushes(url: str, listen_url: str | None = None) -> None:
    """Raises `StoreError` if a pooler eats the LISTEN. Cancellation: nothing has changed."""
    try:
        if not await hears_pushes(url, listen_url or url):
            raise StoreError(NO_PUSH)
    except psycopg.Error as error:
        raise StoreError(f"the database can't be listened to: {one_line(error)}") from error


async def findings(url: str, listen_url: str | None = None, *, schema: str = SCHEMA) -> AsyncGenerator[Finding]:
    """One after the other; without a database there is only the first. Cancellation: nothing has changed."""
    try:
        connection = await connect(url, "safepoint check")
    except psycopg.Error as error:
        yield Finding("database", False, one_line(error))
        return
    async with connection:
        server = connection.info.parameter_status("server_version")
        yield Finding("database", True, f"PostgreSQL {server}, as {connection.info.user}")
        try:
            await check_schema(connection, schema)
        except StoreError as error:
            yield Finding("schema", False, str(error))
            return
        found = await read_found(connection, schema)
        yield Finding("schema", True, f"version {found.version}")
        yield await _clock(connection)
        async for each in _pushes(url, listen_url):
            yield each
        yield await _peers(connection, schema)
        yield await _engine(connection, found.engine or Engine.NONE, schema)


async def _clock(connection: Connection) -> Finding:
    sent = time.time()
    cursor = await connection.execute("SELECT extract(epoch FROM clock_timestamp())::float8")
    (there,) = await cursor.fetchone() or (sent,)
    apart = abs(float(there) - (sent + time.time()) / 2)
    text = f"{apart:.3f} s apart from this machine; leases count by the database's clock alone"
    return Finding("clock", None if apart > _FAR else True, text)


async def _pushes(url: str, listen_url: str | None) -> AsyncGenerator[Finding]:
    heard = False
    with suppress(psycopg.Error):
        heard = await hears_pushes(url, url)
    yield Finding("pooler", True if heard else None, "none in between" if heard else "one in between: it eats LISTEN")
    if listen_url is None:
        yield Finding("listener", heard, "pushes arrive" if heard else NO_PUSH)
        return
    try:
        direct = await hears_pushes(url, listen_url)
        yield Finding("listener", direct, "pushes arrive at --listen-url" if direct else NO_PUSH)
    except psycopg.Error as error:
        yield Finding("listener", False, f"--listen-url: {one_line(error)}")


async def _peers(connection: Connection, schema: str) -> Finding:
    cursor = await connection.execute(qualify(_PEERS, schema).encode())
    live, dead, draining = await cursor.fetchone() or (0, 0, 0)
    text = f"{live} live workers, {draining} of them draining; {dead} dead that still own something"
    return Finding("peers", None if not live or dead else True, text)


async def _engine(connection: Connection, engine: Engine, schema: str) -> Finding:
    cursor = await connection.execute(qualify(_JOBS, schema).encode())
    waiting, oldest = await cursor.fetchone() or (0, None)
    since = f", the oldest for {oldest:.0f} s" if oldest is not None else ""
    if engine is not Engine.PROCRASTINATE:
        return Finding("engine", True, f"{engine}: {waiting} runs wait for a worker{since}")
    cursor = await connection.execute(
        "SELECT count(*) FROM procrastinate_workers WHERE last_heartbeat > now() - interval '30 seconds'"
    )
    (workers,) = await cursor.fetchone() or (0,)
    text = f"procrastinate: {workers} workers take jobs, {waiting} runs wait for one{since}"
    return Finding("engine", not waiting or workers > 0, text)

"""The tables and functions in the database: how they are made, brought up to date, and found to fit.

A server never changes the schema by itself: `safepoint db upgrade` does, once, before a deploy. It takes a lock, so of
several at once one does it and the others find it done. Functions are replaced whole; a later version of the tables is
a script of its own in `_VERSIONS`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import psycopg

from safepoint.errors import StoreError
from safepoint.storage.placement import Engine
from safepoint.storage.postgres.connections import Connection, connect
from safepoint.storage.postgres.engine_tables import engine_sql, tables_fit

VERSION = 4
OLDEST_SERVER = 140000
SCHEMA = "safepoint"

_VERSIONS = {1: "tables.sql", 2: "tables_2.sql", 3: "tables_3_placement.sql", 4: "tables_4_operators.sql"}
_FUNCTIONS = ("session_functions.sql", "placement_functions.sql", "run_functions.sql", "unit_functions.sql")
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,40}")


@dataclass(frozen=True, slots=True)
class Status:
    """`version`: None for a database that has no tables of ours. `engine`: what starts free runs there."""

    version: int | None
    server: str
    engine: Engine = Engine.NONE

    @property
    def is_current(self) -> bool:
        return self.version == VERSION


def check_name(schema: str) -> str:
    if not _NAME.fullmatch(schema):
        raise ValueError(f"schema={schema!r}: write a name of small letters, digits and _")
    return schema


def qualify(sql: str, schema: str) -> str:
    return sql if schema == SCHEMA else sql.replace("safepoint.", f"{schema}.")


@cache
def _script(name: str) -> str:
    return files("safepoint.storage.postgres").joinpath(name).read_text("utf-8")


@dataclass(frozen=True, slots=True)
class Found:
    """What `upgrade` finds. `tables`: the version of Procrastinate's tables, None if it has none that we made."""

    version: int | None = None
    engine: Engine | None = None
    tables: str | None = None


def upgrade_sql(found: Found | None = None, engine: Engine | None = None, schema: str = SCHEMA) -> str:
    """What `upgrade` would run in such a database, for those who run SQL themselves.

    `engine`: what is to start free runs from now on; None leaves it as it is, and is Procrastinate in a new database.
    """
    known = found or Found()
    wanted = engine or known.engine or Engine.PROCRASTINATE
    version = known.version or 0
    parts = [f"CREATE SCHEMA IF NOT EXISTS {check_name(schema)};"]
    parts += [qualify(_script(name), schema) for number, name in _VERSIONS.items() if number > version]
    parts += [qualify(_script(name), schema) for name in _FUNCTIONS]
    parts.append(qualify(engine_sql(wanted, known.tables), schema))
    parts.append(f"DELETE FROM {schema}.schema_version;")
    parts.append(f"INSERT INTO {schema}.schema_version VALUES ({VERSION});")
    return "\n".join(parts)


async def read_found(connection: Connection, schema: str) -> Found:
    version = await read_version(connection, schema)
    if version is None or version < 3:
        return Found(version)
    cursor = await connection.execute(f"SELECT name, version FROM {schema}.engine".encode())
    name, tables = await cursor.fetchone() or (Engine.NONE, None)
    return Found(version, Engine(name), tables)


async def read_version(connection: Connection, schema: str) -> int | None:
    cursor = await connection.execute("SELECT to_regclass(%s) IS NOT NULL", (f"{schema}.schema_version",))
    if not (await cursor.fetchone() or (False,))[0]:
        return None
    cursor = await connection.execute(f"SELECT max(version) FROM {schema}.schema_version".encode())
    found: int | None = (await cursor.fetchone() or (None,))[0]
    return found


async def check_schema(connection: Connection, schema: str) -> None:
    """Raises `StoreError` with one line that says what to do."""
    server = connection.info.server_version
    if server < OLDEST_SERVER:
        raise StoreError(f"the database is PostgreSQL {server // 10000}: Safepoint needs 14 or newer")
    version = await read_version(connection, schema)
    if version is None:
        raise StoreError("the database has no tables of Safepoint yet: run `safepoint db upgrade`")
    if version < VERSION:
        raise StoreError(f"the database has version {version} of the tables, not {VERSION}: run `safepoint db upgrade`")
    if version > VERSION:
        raise StoreError(f"the database has version {version} of the tables, this Safepoint has {VERSION}: update it")
    cursor = await connection.execute("SELECT pg_is_in_recovery(), current_setting('transaction_read_only')")
    replica, read_only = await cursor.fetchone() or (False, "off")
    if replica or read_only == "on":
        raise StoreError("the database is a read-only replica: give the address of its primary")
    cursor = await connection.execute(
        "SELECT has_table_privilege(%s, 'INSERT, UPDATE, DELETE'), current_user", (f"{schema}.run_records",)
    )
    may_write, role = await cursor.fetchone() or (False, "")
    if not may_write:
        raise StoreError(f"the role {role} may not write to the tables: grant it all on all tables in schema {schema}")
    if (await read_found(connection, schema)).engine is Engine.PROCRASTINATE and not await tables_fit(connection):
        raise StoreError(
            f"the tables of Procrastinate are gone, of another version, or not on the search_path of the role {role}: "
            "run `safepoint db upgrade` with a role that has the same search_path"
        )


async def upgrade(conninfo: str, *, engine: Engine | None = None, schema: str = SCHEMA) -> Status:
    """Bring the database up to date, Procrastinate's tables included. `engine`: as in `upgrade_sql`.

    Raises `StoreError`. Cancellation: it is as it was, or up to date.
    """
    check_name(schema)
    try:
        connection = await connect(conninfo, "safepoint db upgrade")
        async with connection, connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock(hashtextextended('safepoint schema', 0))")
            found = await read_found(connection, schema)
            if found.version is not None and found.version > VERSION:
                raise StoreError(
                    f"the database has version {found.version} of the tables, this Safepoint has {VERSION}"
                )
            await connection.execute(upgrade_sql(found, engine, schema).encode())
            return await _status(connection, schema)
    except psycopg.Error as error:
        raise StoreError(f"the database could not be brought up to date: {one_line(error)}") from error


async def status(conninfo: str, *, schema: str = SCHEMA) -> Status:
    """Raises `StoreError`. Cancellation: nothing has changed."""
    check_name(schema)
    try:
        async with await connect(conninfo, "safepoint db status") as connection:
            return await _status(connection, schema)
    except psycopg.Error as error:
        raise StoreError(f"the database can't be read: {one_line(error)}") from error


async def _status(connection: Connection, schema: str) -> Status:
    found = await read_found(connection, schema)
    return Status(found.version, str(connection.info.parameter_status("server_version")), found.engine or Engine.NONE)


async def find(conninfo: str, *, schema: str = SCHEMA) -> Found:
    """What `upgrade` would find. Raises `StoreError`. Cancellation: nothing has changed."""
    check_name(schema)
    try:
        async with await connect(conninfo, "safepoint db upgrade") as connection:
            return await read_found(connection, schema)
    except psycopg.Error as error:
        raise StoreError(f"the database can't be read: {one_line(error)}") from error


async def prune(conninfo: str, *, older_than: float, schema: str = SCHEMA, batch: int = 500) -> int:
    """Delete sessions that were not changed for so many seconds, and say how many. Open runs keep theirs.

    Each batch is a transaction of its own, and no run waits for it. Cancellation: whole batches are deleted.
    """
    check_name(schema)
    deleted, after = 0, ""
    count: int
    sql = qualify("SELECT last_id, deleted FROM safepoint.prune_sessions(%s, %s, %s)", schema).encode()
    try:
        async with await connect(conninfo, "safepoint db prune") as connection:
            await check_schema(connection, schema)
            while True:
                cursor = await connection.execute(sql, (older_than, after, batch))
                last, count = await cursor.fetchone() or (None, 0)
                deleted += count
                if last is None:
                    await connection.execute(qualify("SELECT safepoint.tidy()", schema).encode())
                    return deleted
                after = last
    except psycopg.Error as error:
        raise StoreError(f"the database could not be pruned: {one_line(error)}") from error


def one_line(error: psycopg.Error) -> str:
    """What the server or libpq said: neither repeats the password, nor, without its context, what was stored."""
    return " ".join((error.diag.message_primary or str(error)).split()) or type(error).__name__

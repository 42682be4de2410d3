"""`safepoint db`: the tables of a PostgreSQL database. A server never changes them by itself."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine
from typing import Annotated, Any, TypeVar

import typer

from safepoint.cli.options import REFUSED, fail
from safepoint.errors import StoreError
from safepoint.storage.placement import Engine

T = TypeVar("T")

commands = typer.Typer(no_args_is_help=True, help="The tables of a PostgreSQL database.")

Url = Annotated[
    str,
    typer.Option(
        "--store", envvar="SAFEPOINT_STORE", metavar="URL", help="postgresql://USER:PASSWORD@HOST:PORT/DATABASE"
    ),
]
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@commands.command()
def upgrade(
    store: Url = "",
    *,
    sql: Annotated[bool, typer.Option("--sql", help="Only show what would be run.")] = False,
    engine: Annotated[
        Engine | None, typer.Option(help="What starts free runs; in a new database procrastinate.")
    ] = None,
) -> None:
    """Make the tables, or bring them up to date, those of Procrastinate too. Repeating it is harmless."""
    schema = _schema()
    if sql:
        found = _run(schema.find(_checked(store))) if store else None
        typer.echo(schema.upgrade_sql(found, engine))
        return
    done = _run(schema.upgrade(_checked(store), engine=engine))
    typer.echo(f"The tables have version {done.version}; PostgreSQL {done.server}; free runs: {done.engine}.")


@commands.command()
def status(store: Url = "") -> None:
    """Say which version the tables have; exit code 1 if a server would refuse them."""
    schema = _schema()
    found = _run(schema.status(_checked(store)))
    if found.version is None:
        fail("the database has no tables of Safepoint yet: run `safepoint db upgrade`", REFUSED)
    if not found.is_current:
        wanted = f"this Safepoint needs {schema.VERSION}"
        fail(f"the tables have version {found.version}, {wanted}: run `safepoint db upgrade`", REFUSED)
    typer.echo(f"The tables have version {found.version} and are up to date; PostgreSQL {found.server}.")


@commands.command()
def prune(
    store: Url = "",
    *,
    older_than: Annotated[str, typer.Option(metavar="AGE", help="As 90d, 12h, 30m.")],
) -> None:
    """Delete sessions that were not changed for that long, with their runs. What is live is left alone."""
    found = re.fullmatch(r"(\d+)([smhd])", older_than)
    if found is None:
        fail(f"--older-than {older_than}: write a number and s, m, h or d, as 90d")
    deleted = _run(_schema().prune(_checked(store), older_than=int(found[1]) * _SECONDS[found[2]]))
    typer.echo(f"{deleted} sessions were deleted.")


def _checked(store: str) -> str:
    if not store.startswith(("postgresql://", "postgres://")):
        fail("write --store postgresql://USER:PASSWORD@HOST:PORT/DATABASE, or set SAFEPOINT_STORE")
    from safepoint.storage.postgres.address import check_address

    try:
        return check_address(store)
    except StoreError as error:
        fail(str(error))


def _schema() -> Any:  # Any: the module, which is there only with its extra
    try:
        from safepoint.storage.postgres import schema
    except ModuleNotFoundError as error:
        fail(f"PostgreSQL needs {error.name}: install safepoint[postgres]")
    return schema


def _run(work: Coroutine[Any, Any, T]) -> T:  # Any: what it yields
    try:
        return asyncio.run(work)
    except StoreError as error:
        fail(str(error))

"""`safepoint cluster`: what the processes of a cluster stand on."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from safepoint.cli.options import REFUSED, fail
from safepoint.cli.sanitize import sanitize
from safepoint.errors import StoreError

commands = typer.Typer(no_args_is_help=True, help="Processes on many machines that share a PostgreSQL.")


@commands.callback()
def before() -> None:
    """Keeps `check` a command of its own."""


@commands.command()
def check(
    store: Annotated[
        str,
        typer.Option(envvar="SAFEPOINT_STORE", metavar="URL", help="postgresql://USER:PASSWORD@HOST:PORT/DATABASE"),
    ] = "",
    listen_url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="A direct address of PostgreSQL, where --store leads to a pooler."),
    ] = None,
) -> None:
    """Look at the database, schema, clock, pooler, listener, peers and engine. Exits with 1 if one is wrong."""
    if not store.startswith(("postgresql://", "postgres://")):
        fail("write --store postgresql://USER:PASSWORD@HOST:PORT/DATABASE, or set SAFEPOINT_STORE")
    try:
        from safepoint.storage.postgres.address import check_address
    except ModuleNotFoundError as error:
        fail(f"PostgreSQL needs {error.name}: install safepoint[postgres]")
    try:
        is_fine = asyncio.run(_show(check_address(store), listen_url))
    except StoreError as error:
        fail(str(error))
    if not is_fine:
        raise typer.Exit(REFUSED)


async def _show(store: str, listen_url: str | None) -> bool:
    from safepoint.storage.postgres.health import findings

    is_fine = True
    async for found in findings(store, listen_url):
        word = {True: "ok", False: "wrong", None: "note"}[found.ok]
        typer.echo(sanitize(f"{found.part:10} {word:6} {found.text}"))
        is_fine = is_fine and found.ok is not False
    return is_fine

"""`safepoint keys`: make, list and revoke API keys. They take effect at once, also on a server that runs."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from safepoint.cli.options import fail

if TYPE_CHECKING:
    from safepoint.server.keys import Key, KeyFile

KEY_FILE = "keys.json"

commands = typer.Typer(no_args_is_help=True, help="API keys: who may call the server.")

Data = Annotated[Path, typer.Option("--data", help="the folder of the server that they are for")]
_DATA = Path(".safepoint")


@commands.command()
def add(
    name: Annotated[str, typer.Argument(help="what to call it, in lists and records")],
    *,
    user: Annotated[str | None, typer.Option(help="whose sessions it opens")] = None,
    admin: Annotated[bool, typer.Option("--admin", help="it opens everybody's")] = False,
    data: Data = _DATA,
) -> None:
    """Make a key and show it. It is not stored: this is the only time that it is shown."""
    with _keys(data) as keys:
        typer.echo(keys.add(name, user=user, admin=admin))
    typer.echo("Keep it now: it can't be shown again. Send it as `Authorization: Bearer KEY`.", err=True)


@commands.command("list")
def show(data: Data = _DATA) -> None:
    """List all keys, without the keys themselves."""
    with _keys(data) as keys:
        for key in keys.all():
            typer.echo(_line(key))


@commands.command()
def revoke(name: Annotated[str, typer.Argument(help="as `safepoint keys list` shows it")], data: Data = _DATA) -> None:
    """Refuse a key from now on, and all who logged in with it."""
    with _keys(data) as keys:
        typer.echo(_line(keys.revoke(name)))


@contextmanager
def _keys(data: Path) -> Generator[KeyFile]:
    from safepoint.server.keys import KeyFile

    try:
        yield KeyFile(data / KEY_FILE)
    except (ValueError, OSError) as error:
        fail(str(error))


def _line(key: Key) -> str:
    whose = "admin" if key.user is None else f"user {key.user}"
    made = time.strftime("%Y-%m-%d", time.localtime(key.created_at))
    return f"{key.name}\t{whose}\t{made}\t{'revoked' if key.revoked_at is not None else 'valid'}"

"""The command line: `safepoint serve`, and what operators ask a server over HTTP."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from safepoint.cli.keys import KEY_FILE, fail
from safepoint.cli.keys import commands as keys_commands
from safepoint.cli.limits import limits_of

app = typer.Typer(no_args_is_help=True, add_completion=False, help="The agent runtime you can stop.")
app.add_typer(keys_commands, name="keys")


@app.callback()
def _main() -> None:
    """The agent runtime you can stop."""


@app.command()
def serve(
    apps: Annotated[Path | None, typer.Argument(metavar="APPS_DIR", help="a folder with NAME/agent.py for each app")],
    host: Annotated[str, typer.Option(help="the address to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535)] = 8000,
    data: Annotated[Path, typer.Option(help="the folder for sessions, runs and keys")] = Path(".safepoint"),
    allowed_host: Annotated[
        list[str] | None, typer.Option(help="a name clients may call it by, besides loopback")
    ] = None,
    allow_origin: Annotated[
        list[str] | None, typer.Option(help="a page that may call it: https://… or regex:…")
    ] = None,
    limit: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="change a limit")] = None,
    *,
    insecure: Annotated[bool, typer.Option("--insecure", help="serve others than this machine without keys")] = False,
) -> None:
    """Serve agents over HTTP, SSE and WebSocket."""
    from safepoint.server.app import create_app
    from safepoint.server.apps import Catalog
    from safepoint.server.config import ServerConfig
    from safepoint.server.door import check_exposed
    from safepoint.server.keys import KeyFile
    from safepoint.server.origins import is_loopback
    from safepoint.server.serving import serve as serve_app
    from safepoint.sessions.sqlite import SqliteStore
    from safepoint.sessions.sqlite_records import SqliteRunBook

    logging.basicConfig(level=logging.INFO)
    keys = KeyFile(data / KEY_FILE)
    try:
        config = ServerConfig(
            limits=limits_of(limit or ()),
            allowed_hosts=tuple(allowed_host or ()),
            allowed_origins=tuple(allow_origin or ()),
            insecure=insecure,
        )
        check_exposed(f"--host {host}", config, keys, exposed=not is_loopback(host))
        data.mkdir(parents=True, exist_ok=True, mode=0o700)
        store = SqliteStore(data / "safepoint.db")
        catalog = Catalog.load(apps) if apps is not None else Catalog.of({})
        served = create_app(catalog, store=store, book=SqliteRunBook(store), config=config, keys=keys)
    except ValueError as error:
        fail(str(error))
    serve_app(served, host=host, port=port)

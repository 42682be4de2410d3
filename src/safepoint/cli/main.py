"""The command line: `safepoint serve`, and what operators ask a server over HTTP."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, add_completion=False, help="The agent runtime you can stop.")


@app.callback()
def _main() -> None:
    """The agent runtime you can stop."""


@app.command()
def serve(
    apps: Annotated[Path | None, typer.Argument(metavar="APPS_DIR", help="a folder with NAME/agent.py for each app")],
    host: Annotated[str, typer.Option(help="the address to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535)] = 8000,
    data: Annotated[Path, typer.Option(help="the folder for sessions and runs")] = Path(".safepoint"),
) -> None:
    """Serve agents over HTTP, SSE and WebSocket."""
    from safepoint.server.app import create_app
    from safepoint.server.apps import Catalog
    from safepoint.server.serving import serve as serve_app
    from safepoint.sessions.sqlite import SqliteStore
    from safepoint.sessions.sqlite_records import SqliteRunBook

    logging.basicConfig(level=logging.INFO)
    data.mkdir(parents=True, exist_ok=True, mode=0o700)
    store = SqliteStore(data / "safepoint.db")
    catalog = Catalog.load(apps) if apps is not None else Catalog.of({})
    serve_app(create_app(catalog, store=store, book=SqliteRunBook(store)), host=host, port=port)

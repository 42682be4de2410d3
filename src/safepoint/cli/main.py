"""The command line: `safepoint serve`, and what operators ask a server over HTTP."""

from __future__ import annotations

from importlib import metadata
from typing import Annotated

import typer

from safepoint.cli import admin
from safepoint.cli.keys import commands as keys_commands
from safepoint.cli.options import takes
from safepoint.cli.serve_options import ServeOptions

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # it would show local variables, and keys among them
    help="The agent runtime you can stop.",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"safepoint {metadata.version('safepoint')}")
        raise typer.Exit


@app.callback()
def before(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version, and exit.")
    ] = False,
) -> None:
    """What comes before a command."""


@app.command()
@takes(ServeOptions)
def serve(options: ServeOptions) -> None:
    """Serve agents over HTTP, SSE and WebSocket."""
    from safepoint.cli.serving import run_server

    run_server(options)


app.add_typer(keys_commands, name="keys")
admin.add_to(app)

"""The command line: `safepoint chat`, `tour`, `acp` and `serve`, and what operators ask a server over HTTP."""

from __future__ import annotations

from importlib import metadata
from typing import Annotated

import typer

from safepoint.cli import admin, auditing, freezing, top
from safepoint.cli.acp import AcpOptions, run_acp
from safepoint.cli.chat.command import ChatOptions, run_chat
from safepoint.cli.cluster import commands as cluster_commands
from safepoint.cli.db import commands as db_commands
from safepoint.cli.keys import commands as keys_commands
from safepoint.cli.mcp import McpOptions, run_mcp
from safepoint.cli.options import takes
from safepoint.cli.serve_options import ServeOptions, WorkerOptions

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
@takes(ChatOptions)
def chat(options: ChatOptions) -> None:
    """Talk to an agent in the terminal, stop it, resume it."""
    run_chat(options)


@app.command()
@takes(ServeOptions)
def serve(options: ServeOptions) -> None:
    """Serve agents over HTTP, SSE and WebSocket."""
    from safepoint.cli.serving import run_server

    run_server(options)


@app.command()
@takes(WorkerOptions)
def worker(options: WorkerOptions) -> None:
    """Work on runs that servers with the same PostgreSQL have accepted; serves nothing itself."""
    from safepoint.cli.serving import run_server
    from safepoint.server.config import Role

    run_server(options.as_server(), Role.WORKER)


@app.command()
@takes(AcpOptions)
def acp(options: AcpOptions) -> None:
    """Serve one agent to an editor, over stdin and stdout (Agent Client Protocol)."""
    run_acp(options)


@app.command()
@takes(McpOptions)
def mcp(options: McpOptions) -> None:
    """Serve agents, or Safepoint's own tools, to an MCP client on stdin and stdout."""
    run_mcp(options)


@app.command()
def tour(
    *,
    auto: Annotated[bool, typer.Option("--auto", help="Press the keys by itself.")] = False,
    only: Annotated[int | None, typer.Option("--only", min=1, max=6, help="One of the six stops.")] = None,
) -> None:
    """Stop an agent six times in two minutes; needs no model."""
    from safepoint.cli.tour import run_tour

    run_tour(auto=auto, only=only)


app.add_typer(keys_commands, name="keys")
app.add_typer(db_commands, name="db")
app.add_typer(cluster_commands, name="cluster")
admin.add_to(app)
freezing.add_to(app)
auditing.add_to(app)
top.add_to(app)

"""`safepoint mcp`: agents, and Safepoint's own tools, for an MCP client that starts this process.

Errors are found before the first frame, and told in one line on stderr.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from safepoint.cli.options import fail
from safepoint.storage.opening import FORMS

if TYPE_CHECKING:
    from safepoint.serving.apps import Catalog
    from safepoint.storage.protocol import Storage
    from safepoint.tools.base import BaseTool

_TO_A_SAFE_POINT = 1.0


@dataclass(frozen=True)
class McpOptions:
    """One field for each option, in the order of the help."""

    apps: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[APP]...", help="A folder with agent.py in it. Each is one tool."),
    ] = None
    tools: Annotated[
        list[str], typer.Option(metavar="NAMES", help="Safepoint's own tools: shell, files, fetch; commas between.")
    ] = field(default_factory=list[str])
    root: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where shell and files work; the current folder unless named.")
    ] = None
    read_only: Annotated[bool, typer.Option("--read-only", help="Files are read and listed, not written.")] = False
    store: Annotated[
        str,
        typer.Option(metavar="WHERE", help=f"Where sessions and runs are kept: {FORMS}."),
    ] = "memory"


def run_mcp(options: McpOptions) -> None:
    """Serve until the client leaves; returns then, or raises `typer.Exit` if it can't begin."""
    from safepoint._extras import missing

    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    try:
        from safepoint.protocols.mcp.stdio import serve_stdio
    except ModuleNotFoundError as error:
        fail(str(missing("safepoint mcp", "mcp", error)))
    from safepoint.serving.config import ServingConfig
    from safepoint.serving.run_manager import RunManager

    # Runs that another process left behind are not resumed here: this process lives as long as its client, which kills
    # it soon after a SIGTERM.
    config = ServingConfig(resume_on_start=False, shutdown_seconds=_TO_A_SAFE_POINT)
    catalog, storage = _catalog(options), _storage(options.store)
    try:
        asyncio.run(serve_stdio(RunManager(catalog, storage, config)))
    except ValueError as error:
        fail(str(error))


def _catalog(options: McpOptions) -> Catalog:
    from safepoint.protocols.mcp.direct_tool import APP, agent_of
    from safepoint.serving.apps import App, Catalog

    paths = options.apps or []
    for path in paths:
        if not (path if path.name == "agent.py" else path / "agent.py").is_file():
            fail(f"no app in {path}: write a folder with an agent.py in it")
    loaded = Catalog.of_paths(paths)
    for app in loaded:
        if app.error is not None:
            fail(f"the app {app.name} can't be served: {app.error}")
    tools, served = _tools(options), {app.name: app for app in loaded}
    if not tools and not served:
        fail("there is nothing to serve: name an APP, the folder of an agent.py, or --tools shell,files")
    if len(served) < len(paths) or APP in served:
        fail(f"each app needs a name of its own, which is its folder's, and none is {APP}: rename a folder")
    return Catalog({**served, APP: App(APP, agent_of(tools))} if tools else served)


def _tools(options: McpOptions) -> list[BaseTool]:
    names = [name.strip() for each in options.tools for name in each.split(",")]
    if (options.root is not None or options.read_only) and not {"shell", "files"} & set(names):
        fail("--root and --read-only are for --tools shell,files: agents bring tools of their own")
    if options.read_only and "shell" in names:
        fail("--read-only: a shell can write whatever it likes; leave shell out of --tools")
    root = options.root or Path()
    if not root.is_dir():
        fail(f"--root {root}: write a folder")
    return [tool for name in dict.fromkeys(names) for tool in _made(name, root, read_only=options.read_only)]


def _made(name: str, root: Path, *, read_only: bool) -> list[BaseTool]:
    from safepoint.errors import SafepointError
    from safepoint.tools import fetch, files, shell

    try:
        match name:
            case "shell":
                return [shell(cwd=root)]
            case "files":
                return files(root, read_only=read_only)
            case "fetch":
                return [fetch()]
            case _:
                fail(f"--tools {name}: write shell, files or fetch")
    except (SafepointError, ImportError) as error:
        fail(f"--tools {name}: {error}")


def _storage(where: str) -> Storage:
    """The storage, found to be readable."""
    from safepoint.errors import StoreError
    from safepoint.storage.opening import open_storage

    try:
        storage = open_storage("memory:" if where == "memory" else where)
        asyncio.run(storage.check())
    except StoreError as error:
        fail(f"--store: {error}")
    return storage

"""A real MCP server, written with the official SDK: over stdio, or over HTTP on the port that it is given or prints.

What happens inside is written to a file, one line each, with the time: a test reads when a tool heard of its end.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

import anyio
from mcp.server.mcpserver import Context, MCPServer

DIARY = Path(sys.argv[1])
server = MCPServer("diary")


def note(word: str) -> None:
    with DIARY.open("a") as file:
        file.write(f"{word} {time.monotonic()}\n")


@server.tool()
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
async def waits(ctx: Context) -> str:
    """Wait until it is cancelled."""
    note("begun")
    await ctx.report_progress(1, 2, "half way")
    try:
        await anyio.sleep(3600)
    except anyio.get_cancelled_exc_class():
        note("told")
        raise
    return "never"


@server.tool()
def blocks() -> str:
    """Hear of nothing: a plain function runs to its end."""
    note("blocked")
    time.sleep(0.2)
    note("went_on")
    return "done"


@server.tool()
async def who() -> int:
    """The process of this server."""
    return os.getpid()


async def over_http() -> None:
    import socket

    import uvicorn

    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", int(sys.argv[3]) if len(sys.argv) > 3 else 0))
        listening.listen(128)
        app = server.streamable_http_app()
        config = uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1)
        print(f"READY {listening.getsockname()[1]}", flush=True)
        await uvicorn.Server(config).serve(sockets=[listening])


if __name__ == "__main__":
    if sys.argv[2] == "http":
        asyncio.run(over_http())
    else:
        server.run("stdio")

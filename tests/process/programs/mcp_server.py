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
from mcp.server.mcpserver import Audio, Context, Image, MCPServer
from mcp_types import BlobResourceContents, EmbeddedResource, TextResourceContents, ToolAnnotations

DIARY = Path(sys.argv[1])
server = MCPServer("diary", instructions="Write one line a day.")


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


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
async def reads(ctx: Context) -> str:
    """Wait the first time that it is called, and answer the second time."""
    note("reading")
    if not DIARY.with_suffix(".read").exists():
        DIARY.with_suffix(".read").touch()
        await ctx.report_progress(1, 4)
        await ctx.report_progress(3)
        await anyio.sleep(3600)
    return "dear diary"


@server.tool(annotations=ToolAnnotations(destructive_hint=True, idempotent_hint=True))
async def burns() -> str:
    """Burn the diary."""
    note("burnt")
    await anyio.sleep(3600)
    return "ashes"


@server.tool(structured_output=False)
async def shows() -> list[object]:
    """Show what is between the pages."""
    text = TextResourceContents(uri="diary://today", text="a fine day")
    pressed = BlobResourceContents(uri="diary://flowers/rose.pdf", mime_type="application/pdf", blob="JVBERg==")
    drawn = BlobResourceContents(uri="diary://flowers/rose.jpg", mime_type="image/jpeg", blob="/9j/")
    return [
        "a picture:",
        Image(data=b"\x89PNG", format="png"),
        Audio(data=b"RIFF", format="wav"),
        *(EmbeddedResource(resource=each) for each in (text, pressed, drawn)),
    ]


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

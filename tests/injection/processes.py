"""Tools that work outside the loop: processes, shells, and servers that are asked."""

from __future__ import annotations

import asyncio
from typing import Any

import httpcore2
from mcp.server.mcpserver import MCPServer

from safepoint.testing import call, say
from safepoint.tools import fetch, mcp_tools, shell
from tests.injection.parts import A_MOMENT, agent
from tests.process.process_tools import ends

SHELL = shell()


async def shell_tool() -> None:
    """What it leaves running is ended with it, also when nobody stops it."""
    command = "setsid -f sleep 3600; echo started"
    await agent(call("shell", command=command), say("done"), tools=[SHELL]).run("go")


async def tool_in_a_process() -> None:
    """Each start of Python takes long: it is left to the long proofs."""
    await agent(call("ends", how="returns"), say("done"), tools=[ends]).run("go")


def _server() -> MCPServer[Any]:  # Any: its lifespan
    server: MCPServer[Any] = MCPServer("sample")

    @server.tool()
    async def add(a: int, b: int) -> int:
        return a + b

    return server


async def mcp_tool() -> None:
    async with mcp_tools(_server) as tools:
        await agent(call("add", a=1, b=2), say("done"), tools=tools).run("go")


class SlowLine(httpcore2.AsyncMockStream):
    """A connection on which everything takes a moment."""

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        await asyncio.sleep(A_MOMENT)
        return await super().read(max_bytes, timeout)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        await asyncio.sleep(A_MOMENT)

    async def aclose(self) -> None:
        await asyncio.sleep(0)


async def page_fetched() -> None:
    async def resolve(host: str, port: int) -> list[str]:
        await asyncio.sleep(A_MOMENT)
        return ["93.184.216.34"]

    async def connect(address: str, port: int) -> httpcore2.AsyncNetworkStream:
        await asyncio.sleep(A_MOMENT)
        return SlowLine([b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n", b"hello", b"world"])

    one = fetch(resolve=resolve, connect=connect)
    await agent(call("fetch", url="http://page.test/"), say("done"), tools=[one]).run("go")

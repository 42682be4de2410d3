"""Tools that work outside the loop: processes, shells, and servers that are asked."""

from __future__ import annotations

from typing import Any

from mcp.server.mcpserver import MCPServer

from safepoint.testing import call, say
from safepoint.tools import mcp_tools, shell
from tests.injection.parts import agent
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

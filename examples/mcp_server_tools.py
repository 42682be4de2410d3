"""The tools of an MCP server: a cut call is announced to it, and the session can be used at once."""

import asyncio

from mcp.server.mcpserver import MCPServer

from safepoint import Agent
from safepoint.testing import ScriptedModel, call, say
from safepoint.tools import mcp_tools

server = MCPServer("sums")
begun = asyncio.Event()
told = asyncio.Event()


@server.tool()
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
async def add_slowly(a: int, b: int) -> int:
    """Add two numbers, tomorrow."""
    begun.set()
    try:
        await asyncio.sleep(86400)
    except asyncio.CancelledError:
        told.set()
        raise
    return a + b


async def main() -> None:
    # For a server elsewhere: mcp_tools("https://…/mcp"), or mcp_tools(["python", "server.py"]).
    async with mcp_tools(lambda: server) as tools:
        model = ScriptedModel(call("add_slowly", a=1, b=2), call("add", a=1, b=2), say("Three."))
        agent = Agent("clerk", model=model, tools=tools)
        async with agent.start("1 + 2?") as run:
            await begun.wait()
            run.cancel()
        await told.wait()
        entry = run.result.ledger[0]
        print(entry.name, "is", entry.state, "and", "remote" if entry.remote else "here")
        print((await agent.run("once more, quickly")).text)


asyncio.run(main())

"""The MCP servers that a client brings to a session: their tools are added to the agent's, for that session."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any, Final, TypeAlias

from acp import schema

from safepoint.agent.agent import Agent
from safepoint.agent.base import BaseAgent
from safepoint.protocols.acp.rpc import INVALID_PARAMS, RpcError
from safepoint.tools import mcp_tools
from safepoint.tools.base import BaseTool

AnyAgent: TypeAlias = BaseAgent[Any, Any]  # Any: agents of every kind
ClientServer: TypeAlias = schema.McpServerStdio | schema.HttpMcpServer | schema.SseMcpServer | schema.AcpMcpServer

OPENING_SECONDS: Final = 30.0


async def agent_with_servers(agent: AnyAgent, servers: Sequence[ClientServer], stack: AsyncExitStack) -> AnyAgent:
    """The agent with the servers' tools beside its own; the stack closes the servers.

    Raises `RpcError` that names the server which failed, or which the agent can't take.
    Cancellation: what was opened is on the stack.
    """
    if not isinstance(agent, Agent):
        raise _refused(servers[0], "this agent is made of several, which share no tools")
    plain_agent: Agent[Any, Any] = agent  # Any: as above  # pyright: ignore[reportUnknownVariableType]  # of any kind
    tools: list[BaseTool] = [tool for tool in plain_agent.tools.values() if tool is not plain_agent.output_tool]
    for server in servers:
        tools += await _opened(server, stack)
    try:
        return plain_agent.for_run({"tools": tools})
    except ValueError as error:  # two tools of one name
        raise _refused(servers[-1], str(error)) from error


async def _opened(server: ClientServer, stack: AsyncExitStack) -> Sequence[BaseTool]:
    """Cancellation: as above."""
    if not isinstance(server, schema.McpServerStdio):
        raise _refused(server, "only servers that are started by a command are taken")
    env = {each.name: each.value for each in server.env}
    try:
        async with asyncio.timeout(OPENING_SECONDS):
            found = mcp_tools([server.command, *server.args], env=env, prefix=_prefix(server.name))
            return await stack.enter_async_context(found)
    except TimeoutError as error:
        raise _refused(server, f"it did not answer within {OPENING_SECONDS:g} s") from error
    except Exception as error:  # the server, its command or the missing extra may raise anything
        raise _refused(server, str(error) or type(error).__name__) from error


def _prefix(name: str) -> str:
    """Two servers may have tools of one name. Providers take letters, digits, _ and - in a name."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)[:32] + "_"


def _refused(server: ClientServer, why: str) -> RpcError:
    return RpcError(INVALID_PARAMS, f"Invalid params: the MCP server {server.name!r} can't be used: {why}")

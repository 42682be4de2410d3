"""What an MCP server has beside tools, and what it asks of its client; in the same process."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

from mcp import MCPError
from mcp.server.lowlevel import Server
from mcp_types import (
    CONNECTION_CLOSED,
    ListPromptsResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    PaginatedRequestParams,
    ReadResourceRequestParams,
    ReadResourceResult,
)

from safepoint.errors import McpFailed
from safepoint.testing import call, say
from safepoint.tools import McpFeatures, McpQuestion, McpSampling, mcp_tools
from tests.injection.parts import A_MOMENT, agent
from tests.tools.mcp_servers import Asking, library


async def mcp_resources_and_prompts() -> None:
    server = mcp_tools(library)
    async with server:
        await server.resources()
        await server.read("book://one")
        await server.prompts()
        await server.prompt("review", subject="this")


async def mcp_resource_tools() -> None:
    replies = call("list_resources"), call("read_resource", uri="page://7"), say("done")
    server = mcp_tools(library)
    async with server:
        await agent(*replies, tools=server.resource_tools()).run("go")


async def mcp_server_asks_in_its_call() -> None:
    """In the old protocol the server waits for the answer while it works on the call."""
    async with mcp_tools(lambda: Asking().server, era="legacy", features=_features()) as tools:
        await agent(call("person"), say("done"), tools=tools).run("go")


async def mcp_server_asks_in_its_result() -> None:
    """In the new protocol the request is over, and is sent again with the answer."""
    replies = [call("person"), call("model"), call("folders")], say("done")
    async with mcp_tools(lambda: Asking().server, features=_features()) as tools:
        await agent(*replies, tools=tools).run("go")


def _features() -> McpFeatures:
    async def elicit(question: McpQuestion) -> dict[str, str]:
        await asyncio.sleep(A_MOMENT)
        return {"size": "large"}

    async def sample(request: McpSampling) -> str:
        await asyncio.sleep(A_MOMENT)
        return "roses"

    return McpFeatures(elicit=elicit, sample=sample, roots=[Path("/")])


async def mcp_server_lost_between_requests() -> None:
    """A read ends with the server gone, so that what comes next connects again."""

    async def listed(_: object, params: PaginatedRequestParams | None) -> ListResourcesResult:
        return ListResourcesResult(resources=[])

    async def templates(_: object, params: PaginatedRequestParams | None) -> ListResourceTemplatesResult:
        return ListResourceTemplatesResult(resource_templates=[])

    async def prompts(_: object, params: PaginatedRequestParams | None) -> ListPromptsResult:
        return ListPromptsResult(prompts=[])

    async def read(_: object, params: ReadResourceRequestParams) -> ReadResourceResult:
        raise MCPError(CONNECTION_CLOSED, "the process has ended")

    frail: Server[Any] = Server(
        "frail",
        on_list_tools=Asking().list_tools,
        on_list_resources=listed,
        on_list_resource_templates=templates,
        on_list_prompts=prompts,
        on_read_resource=read,
    )
    server = mcp_tools(lambda: frail)
    async with server:
        for following in (server.resources, server.prompts, lambda: server.read("book://two")):
            with suppress(McpFailed):
                await server.read("book://one")
            with suppress(McpFailed):
                await following()

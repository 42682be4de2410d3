"""The SDK's server with our tools: it speaks both eras of the protocol, we answer `tools/list` and `tools/call`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any, Protocol, TypeAlias

from mcp import MCPError
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp_types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    InputRequiredResult,
    ListToolsResult,
    PaginatedRequestParams,
    Tool,
)
from starlette.requests import Request

from safepoint.protocols.mcp.app_tool import AppTool
from safepoint.protocols.mcp.direct_tool import DirectTool, tools_of
from safepoint.protocols.mcp.exchange import Exchange
from safepoint.protocols.mcp.requests import Requests, hear_cancels
from safepoint.serving.apps import Catalog
from safepoint.serving.principal import LOCAL, Principal
from safepoint.serving.run_manager import RunManager

_INSTRUCTIONS = (
    "Each tool is an agent. Cancel a request to stop its agent at once; what it did until then is kept. Give the "
    "`session` of a result to go on with that conversation."
)

Context: TypeAlias = ServerRequestContext[Requests, Any]  # Any: the HTTP request, or None


class ServedTool(Protocol):
    """`tool`: what a client is told of it."""

    @property
    def tool(self) -> Tool: ...
    async def call(
        self, exchange: Exchange, params: CallToolRequestParams, /
    ) -> CallToolResult | InputRequiredResult: ...


def served_tools(catalog: Catalog) -> dict[str, ServedTool]:
    """A tool for each app that can be served, and one for each of Safepoint's own that are served beside them.

    Raises ValueError for two of one name.
    """
    served: list[ServedTool] = []
    for app in catalog:
        if app.agent is not None:
            served += [DirectTool(each) for each in tools_of(app.agent)] or [AppTool(app)]
    found: dict[str, ServedTool] = {}
    for each in served:
        if each.tool.name in found:
            raise ValueError(f"two tools are called {each.tool.name!r}: rename the app")
        found[each.tool.name] = each
    return found


def build(
    manager: RunManager,
    requests: Requests | None = None,
    caller: Callable[[Request | None], Principal] = lambda _: LOCAL,
) -> Server[Requests]:
    """`requests`: of all connections, where one server serves several; else each connection has its own.

    `caller`: of an HTTP request. Without HTTP there is one: the program that has started this process.
    Raises ValueError for two tools of one name.
    """
    tools: Mapping[str, ServedTool] = served_tools(manager.catalog)

    @asynccontextmanager
    async def lifespan(_: Server[Requests]) -> AsyncGenerator[Requests]:
        yield requests if requests is not None else Requests()

    async def list_tools(context: Context, params: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=[each.tool for each in tools.values()])

    async def call_tool(context: Context, params: CallToolRequestParams) -> CallToolResult | InputRequiredResult:
        """Cancellation: the run is stopped NOW, and that is recorded."""
        served = tools.get(params.name)
        if served is None:
            raise MCPError(INVALID_PARAMS, f"Unknown tool: {params.name[:140]}")
        with context.lifespan_context.open(context) as request:
            return await served.call(Exchange(manager, caller(context.request), context, request), params)

    server = Server(
        "safepoint",
        version=version("safepoint"),
        instructions=_INSTRUCTIONS,
        lifespan=lifespan,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )
    server.middleware.append(hear_cancels)
    return server

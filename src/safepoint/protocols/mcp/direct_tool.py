"""Safepoint's own tools for other people's agents: one call of a tool is a run that makes that call and no other.

The run has an agent like any other, with a model that is told by the message which call to make. So the ladder, the
sweep of processes, threads that are left behind and the ledger hold for a call that comes from another framework. Its
session lives as long as the call.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
from mcp_types import CallToolRequestParams, CallToolResult, Tool, ToolAnnotations

from safepoint.agent.agent import Agent
from safepoint.agent.base import BaseAgent
from safepoint.agent.model import CallDelta, Chunk, Finish, ModelRequest, TextDelta
from safepoint.errors import SafepointError
from safepoint.history.parts import Message, Text, ToolResult
from safepoint.protocols.mcp.exchange import Exchange
from safepoint.protocols.mcp.results import blocks, failed, result_of
from safepoint.serving.managed_run import ManagedRun
from safepoint.serving.submission import Submission
from safepoint.tools.base import BaseTool
from safepoint.tools.options import Effect

APP = "safepoint-tools"


class OneCall:
    """A `Model` that makes the call that the message describes, and is done when that has a result."""

    name = "one-call"

    @asynccontextmanager
    async def stream(self, request: ModelRequest, /) -> AsyncGenerator[AsyncIterator[Chunk]]:
        """Cancellation: there is nothing to close."""
        yield self._chunks(request.messages[-1])

    async def _chunks(self, last: Message) -> AsyncGenerator[Chunk]:
        if last.role != "user":
            yield TextDelta("done")
            yield Finish("end_turn")
            return
        wanted = json.loads(last.text)
        yield CallDelta(0, None, wanted["tool"], json.dumps(wanted["arguments"]))
        yield Finish("tool_calls")


def agent_of(tools: Sequence[BaseTool]) -> Agent[Any, Any]:  # Any: as agents are declared
    """The agent that carries out direct calls of these tools."""
    return Agent("tools", model=OneCall(), tools=tools, retries=0)


def tools_of(agent: BaseAgent[Any, Any]) -> list[BaseTool]:  # Any: agents of every kind
    """The tools of such an agent; none of any other."""
    is_ours = isinstance(agent, Agent) and isinstance(agent.models[0], OneCall)
    return list(agent.tools.values()) if is_ours else []


class DirectTool:
    """A tool of the server that is a tool of Safepoint."""

    def __init__(self, tool: BaseTool) -> None:
        effect = tool.options.effect
        self.tool = Tool(
            name=tool.name,
            description=tool.spec.description,
            input_schema=dict(tool.spec.parameters),
            annotations=ToolAnnotations(
                read_only_hint=effect is Effect.PURE, idempotent_hint=effect in (Effect.PURE, Effect.IDEMPOTENT)
            ),
        )

    async def call(self, exchange: Exchange, params: CallToolRequestParams) -> CallToolResult:
        """Cancellation: the call is stopped as its ladder says; what is left of it is swept."""
        key = exchange.key(APP, str(uuid.uuid4()))
        wanted = json.dumps({"tool": params.name, "arguments": params.arguments or {}})
        try:
            managed = await exchange.submit(key, Submission((Text(wanted),), on_disconnect="detach"), new=True)
        except (SafepointError, ValueError) as error:
            return failed(str(error))
        try:
            await exchange.follow(managed)
            return _result(managed)
        finally:
            if managed.over.is_set:  # else it is being stopped by the server, which ends
                with anyio.CancelScope(shield=True):
                    await exchange.manager.delete(key)


def _result(managed: ManagedRun) -> CallToolResult:
    """What the tool gave; without that, how the run ended."""
    found = result_of(managed)
    messages = managed.run.result.messages if managed.run.ended else []
    for part in (part for message in messages for part in message.parts if isinstance(part, ToolResult)):
        return CallToolResult(content=blocks(part.content, part.parts), is_error=part.is_error, _meta=found.meta)
    return CallToolResult(content=found.content, is_error=True, _meta=found.meta)

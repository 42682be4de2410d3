"""A server of the Model Context Protocol in this process, with agents that a test scripts, and clients of the SDK."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from mcp import Client
from mcp_types import CallToolResult, TextContent

from safepoint import Agent, ToolContext, tool
from safepoint.agent.base import BaseAgent
from safepoint.protocols.mcp.requests import Requests
from safepoint.protocols.mcp.server import build
from safepoint.serving.apps import App, Catalog
from safepoint.serving.config import ServingConfig
from safepoint.serving.managed_run import ManagedRun
from safepoint.serving.principal import LOCAL, Principal
from safepoint.serving.run_manager import RunManager
from safepoint.storage.memory import MemoryStorage

Mode = Literal["legacy", "auto"]
MODES: tuple[Mode, ...] = ("legacy", "auto")


@dataclass
class Nap:
    """A tool that sleeps until it is cut. `began` is set by its first line, `cleaned` by its last."""

    began: asyncio.Event = field(default_factory=asyncio.Event)
    cleaned: bool = False

    def tool(self) -> Any:  # Any: a tool of a local function
        @tool
        async def nap() -> str:
            """Sleep."""
            self.began.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.cleaned = True
            return "rested"

        return nap


@tool(effect="irreversible")
async def sign(text: str, ctx: ToolContext[None]) -> str:
    """Sign, if a person agrees."""
    said = await ctx.interrupt({"question": f"Sign {text}?"})
    return f"they said {said}"


class World:
    """One run manager, and the server of its apps. `who`: the caller of all requests."""

    def __init__(
        self,
        agents: Mapping[str, BaseAgent[Any, Any]],  # Any: agents of every kind
        *,
        who: Principal = LOCAL,
        description: str | None = None,
        manager: RunManager | None = None,
    ) -> None:
        catalog = Catalog({name: App(name, agent, description=description) for name, agent in agents.items()})
        self.manager = manager or RunManager(catalog, MemoryStorage(), ServingConfig())
        self.requests = Requests()
        self.server = build(self.manager, None, lambda _: who)

    @asynccontextmanager
    async def client(self, mode: Mode = "legacy", **options: Any) -> AsyncGenerator[Client]:  # Any: as the SDK has it
        async with Client(self.server, mode=mode, raise_exceptions=False, **options) as client:
            yield client

    @property
    def run(self) -> ManagedRun:
        """The only one there was."""
        (found,) = self.manager.runs.values()
        return found


def agent(name: str, model: Any, *tools: Any, **options: Any) -> Agent[Any, Any]:  # Any: whatever the test scripts
    return Agent(name, model=model, tools=tools, **options)


def text_of(result: CallToolResult) -> str:
    (block,) = result.content
    assert isinstance(block, TextContent)
    return block.text


def structured(result: CallToolResult) -> dict[str, Any]:  # Any: JSON values
    found: dict[str, Any] | None = result.structured_content  # Any: as above
    assert found is not None
    return found


async def cancelled(call: asyncio.Task[Any]) -> None:  # Any: a result that never comes
    """Cancel the client's call, which is what a client does to cancel its request."""
    call.cancel()
    with suppress(asyncio.CancelledError):
        await call
    assert call.cancelled()

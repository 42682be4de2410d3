"""Composites whose children look around and then post something, and that behave the same in every process.

Each child makes three model calls: it calls `look` (pure, with a safe point named "page" inside), then `post` (it has
an effect), then it answers. The first child takes 0.1 s for each call, the last one 1 s.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from safepoint import (
    Agent,
    BaseAgent,
    Handoff,
    Hooks,
    Loop,
    Parallel,
    Sequential,
    ToolContext,
    ToolResult,
    tool,
)
from safepoint.agent.model import CallDelta, Chunk, Finish, ModelRequest, TextDelta
from safepoint.tools.base import BaseTool

# On the virtual clock a number of seconds is an order of events, and takes no time.
A_MOMENT, HALF_A_SECOND, A_SECOND, TWO_SECONDS = 0.1, 0.5, 1.0, 2.0


class Worker:
    """A model that reads from the conversation how far it has come."""

    def __init__(self, who: str, last_call: str | None = None) -> None:
        self.name = f"model of {who}"
        self.calls = 0
        self._tools = [f"look_{who}", f"post_{who}", *([last_call] if last_call is not None else [])]
        self._answer = f"{who} is done"

    @asynccontextmanager
    async def stream(self, request: ModelRequest, /) -> AsyncGenerator[AsyncIterator[Chunk]]:
        self.calls += 1
        yield self._chunks(request)

    async def _chunks(self, request: ModelRequest) -> AsyncGenerator[Chunk]:
        results = [part.name for message in request.messages for part in message.parts if isinstance(part, ToolResult)]
        ahead = [name for name in self._tools if name not in results]
        await asyncio.sleep(0)
        if ahead:
            yield CallDelta(0, f"call_{ahead[0]}", ahead[0], "{}")
            yield Finish("tool_calls", 1, 1)
        else:
            yield TextDelta(self._answer)
            yield Finish("end_turn", 1, 1)


@dataclass
class World:
    """What was done, and whom to tell when the first child has answered."""

    log: list[str] = field(default_factory=list[str])
    on_first_answer: Callable[[], object] = lambda: None


class _Tells(Hooks):
    def __init__(self, world: World) -> None:
        self._world = world

    def after_run(self, run: object, text: str) -> None:
        self._world.on_first_answer()


def worker(world: World, who: str, seconds: float, *, tells: bool = False, last_call: str | None = None) -> Agent:
    tools: list[BaseTool] = [_look(world, who, seconds), _post(world, who, seconds)]
    hooks = [_Tells(world)] if tells else []
    return Agent(who, model=Worker(who, last_call), tools=tools, hooks=hooks)


def _look(world: World, who: str, seconds: float) -> BaseTool:
    async def look(ctx: ToolContext) -> str:
        """Look around."""
        world.log.append(f"look {who}")
        await asyncio.sleep(seconds)
        await ctx.safe_point("page")
        return "seen"

    return tool(name=f"look_{who}", effect="pure")(look)


def _post(world: World, who: str, seconds: float) -> BaseTool:
    async def post() -> str:
        """Post it."""
        await asyncio.sleep(seconds)
        world.log.append(f"post {who}")
        return "posted"

    return tool(name=f"post_{who}")(post)


def build(shape: str, world: World) -> BaseAgent[None, Any]:  # Any: outputs of every type
    first = worker(world, "first", 0.1, tells=True, last_call="transfer_to_last" if shape == "Handoff" else None)
    last = worker(world, "last", 1.0)
    match shape:
        case "Sequential":
            return Sequential("root", first).then(last)
        case "Parallel":
            return Parallel("root", [first, last])
        case "Parallel, one at a time":
            return Parallel("root", [first, last], limit=1)
        case "Loop":
            return Loop("root", first, until=lambda done: done.number == 2, max_rounds=3)
        case "Handoff":
            return Handoff("root", first, to={first: [last]})
        case _:
            raise ValueError(shape)

"""A small world that can be stopped at any place and continued in another process.

The model's replies depend on the conversation alone, so a process that never saw the first half plays the second half
of the same script. Each place of the script can be given a `stop`: the world calls it there, once, and waits to be
stopped.

    step 1   say "one",   look(1) and act(1) at once
    step 2   say "two",   act(2) and act(3) at once
    step 3   say "done"
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field

from safepoint import Agent, ToolContext, tool
from safepoint.agent.model import CallDelta, Chunk, Finish, ModelRequest, TextDelta
from safepoint.tools.base import BaseTool

SCRIPT: list[tuple[str, list[tuple[str, int]]]] = [
    ("one", [("look", 1), ("act", 1)]),
    ("two", [("act", 2), ("act", 3)]),
    ("done", []),
]
PLACES = (
    "model 1",
    "model 2",
    "model 3",
    "before look 1",
    "before act 1",
    "after act 1",
    "before act 2",
    "after act 3",
)
SHAPES = ("async", "thread", "sub-agent", "sub-sub-agent")


@dataclass
class World:
    """What happened, and where to stop. `effects` is what reached the outside world."""

    place: str | None = None
    stop: Callable[[], object] = lambda: None
    # NOW and FORCE cut the place itself; a safe point lets it go on.
    cuts: bool = True
    effects: list[int] = field(default_factory=list[int])
    reached: bool = False

    def arrive(self, place: str) -> bool:
        """Stop here if this is the place; True if whoever arrived is to wait until it is cut."""
        if place != self.place or self.reached:
            return False
        self.reached = True
        self.stop()
        return self.cuts

    async def pass_by(self, place: str) -> None:
        if self.arrive(place):
            await asyncio.get_running_loop().create_future()


class ScriptByHistory:
    """Plays the step that the conversation is at."""

    name = "script"

    def __init__(self, world: World, script: list[tuple[str, list[tuple[str, int]]]]) -> None:
        self._world = world
        self._script = script

    def stream(self, request: ModelRequest, /) -> AbstractAsyncContextManager[AsyncIterator[Chunk]]:
        said = [message for message in request.messages if message.role == "assistant"]
        return self._playing(len(said))

    @asynccontextmanager
    async def _playing(self, step: int) -> AsyncGenerator[AsyncIterator[Chunk]]:
        yield self._chunks(step)

    async def _chunks(self, step: int) -> AsyncGenerator[Chunk]:
        text, calls = self._script[step]
        yield TextDelta(text[:1])
        await self._world.pass_by(f"model {step + 1}")
        yield TextDelta(text[1:])
        for index, (name, x) in enumerate(calls):
            argument = '{"input": "work"}' if name not in ("look", "act") else f'{{"x": {x}}}'
            yield CallDelta(index, f"call_{step + 1}_{index + 1}", name, argument)
        yield Finish("tool_calls" if calls else "end_turn", input_tokens=10, output_tokens=5)


def async_tools(world: World) -> list[BaseTool]:
    @tool(effect="pure")
    async def look(x: int) -> str:
        """Look, and change nothing."""
        await world.pass_by(f"before look {x}")
        return f"saw {x}"

    @tool
    async def act(x: int) -> str:
        """Change the world."""
        await world.pass_by(f"before act {x}")
        world.effects.append(x)
        await world.pass_by(f"after act {x}")
        return f"did {x}"

    return [look, act]


def thread_tools(world: World) -> list[BaseTool]:
    def pass_by(context: ToolContext, place: str) -> None:
        if world.arrive(place):
            while True:
                context.check()
                time.sleep(0)

    @tool(effect="pure")
    def look(x: int, context: ToolContext) -> str:
        """Look, and change nothing."""
        pass_by(context, f"before look {x}")
        return f"saw {x}"

    @tool
    def act(x: int, context: ToolContext) -> str:
        """Change the world."""
        pass_by(context, f"before act {x}")
        world.effects.append(x)
        pass_by(context, f"after act {x}")
        return f"did {x}"

    return [look, act]


def build(shape: str, world: World) -> Agent:
    """The same work, at the root or one or two levels down."""
    tools = thread_tools(world) if shape == "thread" else async_tools(world)
    worker = Agent("worker", model=ScriptByHistory(world, SCRIPT), tools=tools)
    if shape in ("async", "thread"):
        return worker
    quiet = World()
    middle = Agent("middle", model=ScriptByHistory(quiet, _handing_to("worker")), tools=[worker.as_tool()])
    if shape == "sub-agent":
        return middle
    return Agent("root", model=ScriptByHistory(quiet, _handing_to("middle")), tools=[middle.as_tool()])


def _handing_to(name: str) -> list[tuple[str, list[tuple[str, int]]]]:
    return [("I hand it on", [(name, 0)]), ("all done", [])]

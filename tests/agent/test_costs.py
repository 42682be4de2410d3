"""What a run and a stop cost, counted and not timed: turns of the loop, tasks, calls of Python functions, garbage.

The numbers are ceilings, a little above what was counted when they were written. Raise one only with a reason: they are
independent of how busy the machine is, so a test that fails here has found more work.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import FrameType

import pytest

from safepoint import Agent, tool
from safepoint.agent.model import CallDelta, Chunk, Finish, ModelRequest, TextDelta


@tool
async def nothing() -> None:
    """Do nothing."""


class Instant:
    """Answers without waiting: with so many tool calls first, if any."""

    name = "instant"

    def __init__(self, tools: int = 0) -> None:
        self._tools = tools

    @asynccontextmanager
    async def stream(self, request: ModelRequest, /) -> AsyncGenerator[AsyncIterator[Chunk]]:
        yield self._chunks(self._tools if request.messages[-1].role == "user" else 0)

    async def _chunks(self, tools: int) -> AsyncGenerator[Chunk]:
        for place in range(tools):
            yield CallDelta(place, f"call_{place}", "nothing", "{}")
        if not tools:
            yield TextDelta("done")
        yield Finish("tool_calls" if tools else "end_turn", input_tokens=1, output_tokens=1)


class Silent:
    """Says a word and then nothing; `reached` is set there."""

    name = "silent"

    def __init__(self) -> None:
        self.reached = asyncio.Event()

    @asynccontextmanager
    async def stream(self, _request: ModelRequest, /) -> AsyncGenerator[AsyncIterator[Chunk]]:
        yield self._chunks()

    async def _chunks(self) -> AsyncGenerator[Chunk]:
        yield TextDelta("well")
        self.reached.set()
        await asyncio.get_running_loop().create_future()


class CountingLoop(asyncio.SelectorEventLoop):
    turns = 0

    def _run_once(self) -> None:
        self.turns += 1
        super()._run_once()  # type: ignore[misc]  # asyncio's own; nothing else tells how often the loop turns


@dataclass
class Cost:
    turns: int = 0
    tasks: int = 0
    calls: int = 0
    garbage: int = 0


async def cost_of(what: Callable[[], Awaitable[object]]) -> Cost:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, CountingLoop)
    cost = Cost()

    def count(frame: FrameType, event: str, _arg: object) -> None:
        if event == "call":
            cost.calls += 1
            cost.tasks += frame.f_code.co_name == "_keep"

    gc.collect()
    gc.disable()
    try:
        turns = loop.turns
        sys.setprofile(count)
        await what()
        sys.setprofile(None)
        cost.turns = loop.turns - turns
        for _ in range(4):  # callbacks of tasks that are done
            await asyncio.sleep(0)
        cost.garbage = gc.collect()
    finally:
        sys.setprofile(None)
        gc.enable()
    return cost


def counted(what: Callable[[], Awaitable[object]]) -> Cost:
    """With caches filled: the fewest turns of several tries, because the watchdog's ping makes the loop turn too."""

    async def main() -> Cost:
        for _ in range(3):
            await what()
        costs = [await cost_of(what) for _ in range(5)]
        return min(costs, key=lambda cost: cost.turns)

    with asyncio.Runner(loop_factory=CountingLoop) as runner:
        return runner.run(main())


@pytest.mark.parametrize(
    ("tools", "turns", "tasks", "calls"),
    [(0, 3, 2, 440), (1, 4, 4, 830), (10, 4, 13, 2500)],
    ids=["plain", "one tool", "ten tools"],
)
def test_a_run_that_waits_for_nothing_takes_so_many_turns_tasks_and_calls(
    tools: int, turns: int, tasks: int, calls: int
) -> None:
    agent = Agent("instant", model=Instant(tools), tools=[nothing])
    cost = counted(lambda: agent.run("go"))
    assert (cost.turns, cost.tasks) == (turns, tasks)
    assert cost.calls <= calls


@pytest.mark.parametrize("tools", [0, 1, 10])
def test_a_run_leaves_nothing_for_the_garbage_collector(tools: int) -> None:
    agent = Agent("instant", model=Instant(tools), tools=[nothing])
    assert counted(lambda: agent.run("go")).garbage == 0


def test_a_streamed_run_takes_at_most_one_turn_more() -> None:
    agent = Agent("instant", model=Instant())

    async def read() -> None:
        async for _ in agent.stream("go"):
            pass

    assert counted(read).turns <= 4


def test_a_stop_takes_so_many_calls() -> None:
    model = Silent()
    agent = Agent("silent", model=model)

    async def main() -> int:
        await stopped()
        return await stopped()

    async def stopped() -> int:
        model.reached.clear()
        calls = 0

        def count(_frame: FrameType, event: str, _arg: object) -> None:
            nonlocal calls
            calls += event == "call"

        async with agent.start("go") as run:
            await model.reached.wait()
            sys.setprofile(count)
            run.cancel()
            result = await run.wait()
            assert result.messages
            sys.setprofile(None)
        return calls

    with asyncio.Runner(loop_factory=CountingLoop) as runner:
        assert runner.run(main()) <= 420

"""What a whole run costs when its model and its tool cost nothing: a multiple of awaiting the two directly.

By hand: the same model object is streamed, the chunks are joined, the tool is awaited, the model is streamed again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from time import perf_counter

from bench.models import InstantModel
from bench.sample import side_by_side
from bench.table import Table, micros, times
from safepoint import Agent, tool
from safepoint.agent.model import Model, ModelRequest, TextDelta
from safepoint.history.parts import Message, ToolResult, user_message

ROUNDS = 1000
ASKED = user_message("go")
ANSWERED = Message("tool", (ToolResult("call_0", "nothing", "done, no result"),))


@tool
async def nothing() -> None:
    """Do nothing."""


async def stream(model: Model, *messages: Message) -> str:
    async with model.stream(ModelRequest(messages)) as chunks:
        return "".join([chunk.text async for chunk in chunks if isinstance(chunk, TextDelta)])


async def without_tool(model: Model) -> str:
    return await stream(model, ASKED)


async def with_tool(model: Model) -> str:
    await stream(model, ASKED)
    await nothing()
    return await stream(model, ASKED, ANSWERED)


async def run(agent: Agent) -> str:
    return (await agent.run("go")).text


async def timed(what: Callable[[], Awaitable[str]]) -> float:
    began = perf_counter()
    text = await what()
    ended = perf_counter()
    assert text == "done"
    return ended - began


async def measure(table: Table) -> None:
    for tools, by_hand in (0, without_tool), (1, with_tool):
        model = InstantModel(*["nothing"] * tools)
        agent = Agent("instant", model=model, tools=[nothing])
        ours, bare = await side_by_side(
            partial(timed, partial(run, agent)), partial(timed, partial(by_hand, model)), rounds=ROUNDS, warm_up=100
        )
        for label, percent in ("p50", 50), ("p99", 99):
            floor, cost = bare.percentile(percent), ours.percentile(percent)
            table.add(f"instant model, {tools} tools", label, micros(floor), micros(cost), times(cost / floor))


def main() -> None:
    table = Table("whole run", "", "by hand", "safepoint", "ratio")
    asyncio.run(measure(table))
    table.show()


if __name__ == "__main__":
    main()

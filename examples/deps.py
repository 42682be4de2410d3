"""Give tools what they need: typed dependencies, one value per run."""

import asyncio
from dataclasses import dataclass

from safepoint import Agent, ToolContext, tool
from safepoint.testing import ScriptedModel, call, say


@dataclass
class Shop:
    prices: dict[str, int]


@tool(effect="pure")
async def price(item: str, ctx: ToolContext[Shop]) -> int:
    """The price of an item."""
    return ctx.deps.prices[item]


async def main() -> None:
    agent = Agent[Shop]("clerk", model=ScriptedModel(call("price", item="lamp"), say("It costs 30.")), tools=[price])
    result = await agent.run("How much is the lamp?", deps=Shop({"lamp": 30}))
    print(result.ledger[0].content, "-", result.text)


asyncio.run(main())

"""A tool asks a person: the run ends, and is resumed with the answer."""

import asyncio

from safepoint import Agent, ToolContext, tool
from safepoint.testing import ScriptedModel, call, say


@tool(effect="irreversible")
async def pay(amount: int, ctx: ToolContext) -> str:
    """Pay an invoice."""
    answer = await ctx.interrupt(f"Pay {amount}?")
    return "paid" if answer == "yes" else "not paid"


async def main() -> None:
    agent = Agent("clerk", model=ScriptedModel(call("pay", amount=30), say("It is paid.")), tools=[pay])
    paused = await agent.run("Pay the bill.")
    print(paused.stop_reason, "-", paused.questions[0].payload)
    assert paused.checkpoint is not None
    result = await agent.resume(paused.checkpoint, answers={paused.questions[0].id: "yes"})
    print(result.ledger[0].content, "-", result.text)


asyncio.run(main())

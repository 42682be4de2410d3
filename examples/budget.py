"""A budget stops a run that would go on for ever; with a larger one it can continue."""

import asyncio

from safepoint import Agent, Budget, Limit, tool
from safepoint.testing import ScriptedModel, call


@tool(effect="pure")
async def search(q: str) -> str:
    """Search."""
    return "nothing found"


async def main() -> None:
    agent = Agent("stubborn", model=ScriptedModel(call("search", q="it"), repeat=True), tools=[search])
    for budget in (Budget(repeats=2), Budget(tool_calls=Limit(soft=4, hard=6)), Budget(tokens=300), Budget(steps=3)):
        result = await agent.run("Find it.", budget=budget)
        why = result.cancellation.reason.text if result.cancellation is not None else ""
        print(result.stop_reason, len(result.ledger), "calls", why)

    assert result.checkpoint is not None
    async with agent.start(checkpoint=result.checkpoint, budget=Budget(steps=5)) as run:
        pass
    print("with two steps more:", run.result.stop_reason, len(run.result.ledger), "calls")


asyncio.run(main())

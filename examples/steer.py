"""Add a message to a running conversation without stopping anything."""

import asyncio

from safepoint import Agent, tool
from safepoint.testing import ScriptedModel, call, say


async def main() -> None:
    searching, found = asyncio.Event(), asyncio.Event()

    @tool(effect="pure")
    async def search(q: str) -> str:
        """Search."""
        searching.set()
        await found.wait()
        return "three hotels"

    model = ScriptedModel(call("search", q="hotels"), say("The cheapest is the Rose."))
    agent = Agent("travel", model=model, tools=[search])
    async with agent.start("Find a hotel.") as run:
        await searching.wait()
        receipt = run.steer("The cheapest one, please.")
        found.set()
        print("the message has", await receipt.wait())
    print("the model saw:", model.requests[-1].messages[-1].text)
    print(run.result.text)


asyncio.run(main())

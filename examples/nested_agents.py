"""A sub-agent is part of its caller's tree: a recursive request is checked at the sub-agent's own safe points."""

import asyncio

from safepoint import Agent, SafePoint, tool
from safepoint.testing import ScriptedModel, call, say

reading = asyncio.Event()


@tool(effect="pure")
async def read_page(url: str) -> str:
    """Read a page."""
    reading.set()
    await asyncio.sleep(0.05)
    return f"the text of {url}"


async def main() -> None:
    pages = [call("read_page", url=f"example.org/{number}") for number in range(100)]
    researcher = Agent("researcher", model=ScriptedModel(*pages, say("I read it all.")), tools=[read_page])
    writer_model = ScriptedModel(call("researcher", input="Read everything."), say("Here is the article."))
    writer = Agent("writer", model=writer_model, tools=[researcher.as_tool()])

    async with writer.start("Write an article.") as run:
        await reading.wait()
        for node in run.tree.walk():
            print("live:", node.path)
        receipt = run.cancel(SafePoint.AFTER_TOOLS, recursive=True, reason="the article is off")
        print("outcome:", await receipt.wait())
    entry = run.result.ledger[0]
    print(f"{entry.name} was {entry.state}; nothing was cut")


asyncio.run(main())

"""A tool that is cut closes what it opened, and finishes the one write that must not be torn."""

import asyncio

from safepoint import Agent, ToolContext, tool
from safepoint.testing import ScriptedModel, call

writing = asyncio.Event()
pages: list[str] = []


@tool(grace=0.5)
async def print_report(count: int, ctx: ToolContext) -> str:
    """Print the pages of a report."""
    print("printer on")
    try:
        for number in range(count):
            async with ctx.shield(1):  # a page is printed whole or not at all
                writing.set()
                await asyncio.sleep(0.05)
                pages.append(f"page {number}")
    finally:
        await asyncio.sleep(0.01)  # clean-up may wait, within the grace
        print("printer off")
    return f"{count} pages"


async def main() -> None:
    agent = Agent("printer", model=ScriptedModel(call("print_report", count=1000)), tools=[print_report])
    async with agent.start("Print the report.") as run:
        await writing.wait()
        run.cancel(reason="out of paper")
    print(pages, "printed; the call was", run.result.ledger[0].state)
    print("left behind:", list(run.result.orphans))


asyncio.run(main())

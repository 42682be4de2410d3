"""A tool reports its progress: readers of the events see it, the model does not."""

import asyncio

from safepoint import Agent, ToolContext, tool
from safepoint.events import ToolOutputStreamed
from safepoint.testing import ScriptedModel, call, say


@tool(effect="pure")
async def copy(pages: int, ctx: ToolContext) -> str:
    """Copy a book."""
    for page in range(1, pages + 1):
        await asyncio.sleep(0.01)
        ctx.tell(f"page {page} of {pages}\n")
    return "copied"


async def main() -> None:
    model = ScriptedModel(call("copy", pages=3), say("Copied."))
    async with Agent("monk", model=model, tools=[copy]).start("copy it") as run:
        async for event in run.events():
            if isinstance(event, ToolOutputStreamed):
                print(event.text, end="")
    print(run.result.text)


asyncio.run(main())

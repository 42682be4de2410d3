"""All calls of one reply at once, two at a time, or one by one."""

import asyncio

from safepoint import Agent, tool
from safepoint.testing import ScriptedModel, call, run_virtual, say


@tool(effect="pure")
async def fetch(page: int) -> str:
    """Fetch a page, in one second."""
    await asyncio.sleep(1)
    return f"page {page}"


async def main() -> None:
    clock = asyncio.get_running_loop().time
    for limit in (None, 2, 1):
        pages = [call("fetch", page=page) for page in range(4)]
        model = ScriptedModel(pages, say("Read."))
        began = clock()
        await Agent("reader", model=model, tools=[fetch], max_parallel_tools=limit).run("Read all four.")
        print(f"max_parallel_tools={limit}: {clock() - began:g} s")


run_virtual(main)  # on a clock that jumps, so that the seconds cost nothing

"""Stop a run, keep its checkpoint as bytes, and resume it: finished work is not repeated."""

import asyncio

from safepoint import Agent, Checkpoint, SafePoint, tool
from safepoint.testing import ScriptedModel, call, say


@tool
async def pack(item: str) -> str:
    """Put an item into the box."""
    print("packing", item)
    return f"{item} is in the box"


async def main() -> None:
    model = ScriptedModel(
        [call("pack", item="lamp"), call("pack", item="book")], call("pack", item="cup"), say("Packed.")
    )
    agent = Agent("packer", model=model, tools=[pack], max_parallel_tools=1)
    async with agent.start("Pack my things.") as run:
        run.cancel(SafePoint.AFTER_TOOL, reason="lunch")
    for entry in run.result.ledger:
        print(entry.args["item"], "is", entry.state)

    assert run.result.checkpoint is not None
    data = run.result.checkpoint.to_bytes()
    print("kept as", len(data), "bytes")
    result = await agent.resume(Checkpoint.from_bytes(data))
    print(result.text)


asyncio.run(main())

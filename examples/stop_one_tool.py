"""Stop one tool call and let the rest of the run go on; the model is told the truth about it."""

import asyncio

from safepoint import Agent, tool
from safepoint.testing import ScriptedModel, call, say

busy: set[str] = set()
both_busy = asyncio.Event()


@tool(effect="pure")
async def search(place: str) -> str:
    """Search one place."""
    busy.add(place)
    if len(busy) == 2:
        both_busy.set()
    await asyncio.sleep(0.1 if place == "library" else 3600)
    return f"found it in the {place}"


async def main() -> None:
    model = ScriptedModel(
        [call("search", place="attic"), call("search", place="library")], say("It is in the library.")
    )
    agent = Agent("seeker", model=model, tools=[search])
    async with agent.start("Find the map.") as run:
        await both_busy.wait()
        attic = next(node for node in run.tree.walk() if node.kind == "tool_call")
        print("stopping", attic.path)
        print("outcome:", await attic.cancel(reason="nobody goes up there").wait())
        result = await run.wait()
    for part in result.messages[2].parts:
        if part.kind == "tool_result":
            print(f"{part.state}: {part.content}")
    print(result.stop_reason, "with:", result.text)


asyncio.run(main())

"""A tool with an undo: when a call is cut, its effect is taken back, and the ledger says so."""

import asyncio

from safepoint import Agent, tool
from safepoint.testing import ScriptedModel, call

reserved: set[str] = set()
waiting = asyncio.Event()


async def release(room: str) -> None:
    reserved.discard(room)
    print("released", room)


@tool(undo=release)
async def reserve(room: str) -> str:
    """Reserve a room and wait until the hotel confirms it."""
    reserved.add(room)
    print("reserved", room)
    waiting.set()
    await asyncio.sleep(3600)
    return f"room {room} is confirmed"


async def main() -> None:
    agent = Agent("travel", model=ScriptedModel(call("reserve", room="101")), tools=[reserve])
    async with agent.start("Book a room.") as run:
        await waiting.wait()
        run.cancel(reason="the trip is off")
    result = run.result.messages[-2].parts[0]
    assert result.kind == "tool_result"
    print("the model will read:", result.content)
    print("still reserved:", sorted(reserved))


asyncio.run(main())

"""Continue a finished run from an earlier step: what it did since is undone where it can be, and listed."""

import asyncio

from safepoint import Agent, tool
from safepoint.testing import ScriptedModel, call, say

rooms: set[str] = set()


async def release(city: str) -> None:
    rooms.discard(city)


@tool(undo=release)
async def book(city: str) -> str:
    """Book a room."""
    rooms.add(city)
    return f"booked in {city}"


@tool(effect="irreversible")
async def write_to(friend: str) -> str:
    """Send a letter."""
    return f"a letter to {friend} is on its way"


async def main() -> None:
    model = ScriptedModel(
        call("book", city="Rome"),
        [call("book", city="Oslo"), call("write_to", friend="Ann")],
        say("Rome and Oslo are booked."),
    )
    result = await Agent("traveller", model=model, tools=[book, write_to]).run("Plan a journey.")
    print(result.text, sorted(rooms))

    earlier = result.at(1)
    print("since then:", [entry.name for entry in earlier.since])
    agent = Agent("traveller", model=ScriptedModel(say("Only Rome, then.")), tools=[book, write_to])
    fork = await agent.resume(earlier, message="Leave out Oslo.")
    print(fork.text, sorted(rooms))
    for entry in fork.taken_back:
        print(f"{entry.name}: {entry.state}")


asyncio.run(main())

"""A tool tells the model what was wrong and asks it to try again."""

import asyncio

from safepoint import Agent, Retry, tool
from safepoint.testing import ScriptedModel, call, say


@tool
async def book(day: int) -> str:
    """Book a table for a day of this month."""
    if day < 15:
        raise Retry("that day is over, take one from the 15th on")
    return f"booked for the {day}th"


async def main() -> None:
    agent = Agent(
        "waiter", model=ScriptedModel(call("book", day=3), call("book", day=20), say("Booked.")), tools=[book]
    )
    result = await agent.run("A table, please.")
    for entry in result.ledger:
        print(entry.state, "-", entry.error or entry.content)
    print(result.text)


asyncio.run(main())

"""Rewind a turn: its messages and state changes are removed, and the effects that remain are listed."""

import asyncio

from safepoint import Agent, tool
from safepoint.sessions import MemoryStore, Session
from safepoint.testing import ScriptedModel, call, say


@tool
async def send(to: str) -> str:
    """Send a letter."""
    return "sent"


async def main() -> None:
    session = await Session.create(MemoryStore())
    agent = Agent("clerk", model=ScriptedModel(say("Hello."), call("send", to="Bob"), say("Sent.")), tools=[send])
    await agent.run("Hi.", session=session)
    await agent.run("Write to Bob.", session=session)
    print(len(session.messages), "messages")
    rewound = await session.rewind()
    print(len(session.messages), "messages; still in the world:", [effect.name for effect in rewound.effects])


asyncio.run(main())

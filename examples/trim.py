"""Show the model the end of a long conversation only, or a summary of what came before; what is stored stays whole."""

import asyncio
from collections.abc import Sequence

from safepoint import Agent, Message, Text, keep_last
from safepoint.sessions import MemoryStore, Session
from safepoint.testing import ScriptedModel, say


async def with_a_summary(messages: list[Message]) -> Sequence[Message]:
    """Keep the last exchange, and say in one line what came before. A model may be asked for that line."""
    await asyncio.sleep(0)  # NOW would cut this wait
    if len(messages) <= 3:
        return messages
    summary = Message("user", (Text(f"(Before this: {len(messages) - 1} messages about the weather.)"),))
    return [summary, Message("assistant", (Text("I remember."),)), messages[-1]]


async def main() -> None:
    session = await Session.create(MemoryStore())
    model = ScriptedModel(say("It rains."), repeat=True)
    for day in range(5):
        await Agent("weather", model=model, trim=keep_last(3)).run(f"Day {day}?", session=session)
    print(f"stored: {len(session.messages)} messages, seen by the model: {len(model.requests[-1].messages)}")

    await Agent("weather", model=model, trim=with_a_summary).run("And tomorrow?", session=session)
    print("seen:", [message.text for message in model.requests[-1].messages])
    print(f"stored: {len(session.messages)} messages")


asyncio.run(main())

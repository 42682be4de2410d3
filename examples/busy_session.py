"""A message for a session whose run is live: refuse it, put it in line, let it join, or let it take over."""

import asyncio

from safepoint import Agent
from safepoint.errors import SessionBusy
from safepoint.sessions import MemoryStore, Session, SessionDispatcher
from safepoint.testing import ScriptedModel, say, stall


async def main() -> None:
    reached = asyncio.Event()
    model = ScriptedModel([say("Once upon a"), stall(reached.set)], say("The end."), say("You are welcome."))
    agent = Agent("teller", model=model)
    dispatcher = SessionDispatcher(await Session.create(MemoryStore()))

    async with asyncio.TaskGroup() as group:
        story = group.create_task(dispatcher.send(agent, "Tell me a story."))
        await reached.wait()
        try:
            await dispatcher.send(agent, "Hello?")  # if_busy="reject" is the default
        except SessionBusy as error:
            print("rejected:", error)
        thanks = group.create_task(dispatcher.send(agent, "Thank you.", if_busy="queue"))
        await asyncio.sleep(0)
        short = group.create_task(dispatcher.send(agent, "Make it short.", if_busy="interrupt"))
    for sent in (story.result(), short.result(), thanks.result()):
        print(f"{sent.delivery}: {sent.result.stop_reason}, {sent.result.text!r}")


asyncio.run(main())

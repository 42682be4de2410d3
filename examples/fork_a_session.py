"""A session is made, found again, forked to try something else, and deleted."""

import asyncio

from safepoint import Agent
from safepoint.errors import SessionNotFound
from safepoint.sessions import MemoryStore, Session
from safepoint.testing import ScriptedModel, say


async def main() -> None:
    store = MemoryStore()
    session = await Session.create(store, "trip", state={"budget": 500})
    agent = Agent("planner", model=ScriptedModel(say("Rome or Oslo?"), say("Rome it is."), say("Oslo it is.")))
    await agent.run("Plan a trip.", session=session)

    other = await session.fork("trip, another way")
    await agent.run("Rome.", session=session)
    await agent.run("Oslo.", session=other)
    for one in (session, await Session.load(store, "trip, another way")):
        print(one.id, one.state, [message.text for message in one.messages])

    await other.delete()
    print(await store.list_ids())
    try:
        await Session.load(store, "trip, another way")
    except SessionNotFound as error:
        print(error)


asyncio.run(main())

"""A conversation in a SQLite file: another process loads it and continues."""

import asyncio
import tempfile
from pathlib import Path

from safepoint import Agent, ToolContext, tool
from safepoint.sessions import Session, SqliteStore
from safepoint.testing import ScriptedModel, call, say


@tool
async def remember(name: str, ctx: ToolContext) -> str:
    """Remember the user's name."""
    assert isinstance(ctx.session, Session)
    ctx.session.state["name"] = name
    return "noted"


async def first(path: Path) -> None:
    store = SqliteStore(path)
    session = await Session.create(store, "ann")
    agent = Agent("host", model=ScriptedModel(call("remember", name="Ann"), say("Hello Ann!")), tools=[remember])
    print((await agent.run("I am Ann.", session=session)).text)
    await store.aclose()


async def second(path: Path) -> None:
    store = SqliteStore(path)
    session = await Session.load(store, "ann")
    print(len(session.messages), "messages, state", session.state)
    print((await Agent("host", model=ScriptedModel(say("You are Ann."))).run("Who am I?", session=session)).text)
    await store.aclose()


with tempfile.TemporaryDirectory() as folder:
    asyncio.run(first(Path(folder) / "chat.db"))
    asyncio.run(second(Path(folder) / "chat.db"))

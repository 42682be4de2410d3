"""When each message was said, and which run began a turn: kept by every store, through stops, resumes and forks."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from pathlib import Path

import pytest

from safepoint import Agent, SafePoint, tool
from safepoint.history.json_codec import encode_message
from safepoint.history.parts import user_message
from safepoint.sessions import MemoryStore, Session, SqliteStore
from safepoint.sessions.store import Store
from safepoint.testing import ScriptedModel, call, run_virtual, say, stall

# The tables of the first version, as files of users have them.
VERSION_1 = """
CREATE TABLE sessions (id TEXT PRIMARY KEY, state TEXT NOT NULL, epoch INTEGER NOT NULL DEFAULT 0, owner TEXT,
    claimant TEXT, renewed REAL);
CREATE TABLE messages (session TEXT NOT NULL, place INTEGER NOT NULL, body TEXT NOT NULL,
    PRIMARY KEY (session, place)) WITHOUT ROWID;
CREATE TABLE runs (session TEXT NOT NULL, number INTEGER NOT NULL, run_id TEXT NOT NULL, agent TEXT NOT NULL,
    place INTEGER NOT NULL, ended INTEGER NOT NULL, stop_reason TEXT, checkpoint_id TEXT, checkpoint BLOB,
    state_before TEXT NOT NULL, PRIMARY KEY (session, number));
CREATE TABLE calls (session TEXT NOT NULL, run_id TEXT NOT NULL, number INTEGER PRIMARY KEY AUTOINCREMENT,
    call_id TEXT NOT NULL, entry TEXT NOT NULL, memory TEXT, UNIQUE (session, run_id, call_id));
CREATE TABLE late (session TEXT NOT NULL, number INTEGER PRIMARY KEY AUTOINCREMENT, call_id TEXT, name TEXT,
    content TEXT);
PRAGMA user_version=1;
"""


@tool
async def wait(seconds: float) -> str:
    """Wait."""
    await asyncio.sleep(seconds)
    return "waited"


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "sessions.db")


def test_a_message_has_the_time_at_which_it_was_said(store: Store) -> None:
    async def main() -> None:
        agent = Agent("a", model=ScriptedModel(call("wait", seconds=5), say("done")), tools=[wait])
        session = await Session.create(store, "s")
        await agent.run("go", session=session)
        asked, called, result, answered = session.times
        assert asked <= called < called + 5 <= result <= answered
        assert (await Session.load(store, "s")).times == session.times
        assert (await session.fork("t")).times == session.times
        await store.aclose()

    run_virtual(main)


def test_a_turn_that_was_stopped_and_continued_keeps_its_origin_and_its_times(store: Store) -> None:
    async def main() -> None:
        silent = asyncio.Event()
        model = ScriptedModel(call("wait", seconds=5), [say("half"), stall(silent.set)], say("whole"))
        agent = Agent("a", model=model, tools=[wait])
        session = await Session.create(store, "s")
        run = agent.start("go", session=session)
        async with run:
            await silent.wait()
            await run.cancel(SafePoint.NOW).wait()
        before = session.times
        assert session.checkpoint is not None
        result = await agent.resume(session.checkpoint, session=session)
        assert result.text == "whole"
        (turn,) = session.runs
        assert (turn.run_id, turn.origin) == (result.run_id, run.id)
        assert session.times[:3] == before[:3]
        assert (await Session.load(store, "s")).runs[0].origin == run.id
        await store.aclose()

    run_virtual(main)


def test_a_file_of_the_first_version_is_read_and_written_on(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    with sqlite3.connect(path) as old:
        old.executescript(VERSION_1)
        old.execute("INSERT INTO sessions (id, state) VALUES ('s', '{}')")
        said = json.dumps(encode_message(user_message("hi")))
        old.execute("INSERT INTO messages VALUES ('s', 0, ?)", (said,))
        row = ("s", 1, "run_1", "a", 0, 1, "end_turn", "{}")
        old.execute(
            "INSERT INTO runs (session, number, run_id, agent, place, ended, stop_reason, state_before)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            row,
        )
    old.close()

    async def main() -> None:
        store = SqliteStore(path)
        session = await Session.load(store, "s")
        assert [message.text for message in session.messages] == ["hi"]
        assert (session.times, session.runs[0].origin) == ((0.0,), "run_1")
        agent = Agent("a", model=ScriptedModel(say("hello")))
        await agent.run("again", session=session)
        again = await Session.load(store, "s")
        assert [run.origin for run in again.runs] == ["run_1", again.runs[1].run_id]
        await store.aclose()

    run_virtual(main)


def test_listeners_hear_facts_once_they_are_stored_and_not_after_they_have_left(store: Store) -> None:
    async def main() -> None:
        heard: list[tuple[str, int]] = []
        agent = Agent("a", model=ScriptedModel(say("one"), say("two")))
        session = await Session.create(store, "s")

        def hear(facts: tuple[object, ...]) -> None:
            heard.extend((type(fact).__name__, len(session.messages)) for fact in facts)

        leave = session.listen(hear)
        await agent.run("go", session=session)
        assert [heard[0], heard[-1]] == [("Opened", 1), ("Ended", 2)]
        leave()
        before = list(heard)
        await agent.run("again", session=session)
        assert heard == before
        await store.aclose()

    run_virtual(main)

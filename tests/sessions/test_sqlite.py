"""What only the SQLite store has: a file, other processes, locks, and rows that somebody else has spoilt."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from safepoint import Agent, Message, Resume, Text, tool
from safepoint.errors import SessionBusy, StoreCorrupt, StoreError
from safepoint.sessions import Session, SqliteStore
from safepoint.testing import ScriptedModel, call, run_virtual, say

HOLDER = """
import asyncio, sys
from safepoint.sessions import SqliteStore

async def main():
    store = SqliteStore(sys.argv[1])
    await store.claim("s", "somebody else")
    print("claimed", flush=True)
    sys.stdin.readline()
    await store.release("s", "somebody else")
    await store.aclose()

asyncio.run(main())
"""


def greeter() -> Agent:
    return Agent("greeter", model=ScriptedModel(say("hello"), repeat=True))


def test_the_file_and_its_side_files_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    async def main() -> None:
        store = SqliteStore(tmp_path / "a.db")
        await Session.create(store, "s")
        modes = {name: stat.S_IMODE(os.stat(tmp_path / name).st_mode) for name in os.listdir(tmp_path)}
        assert set(modes.values()) == {0o600}, modes
        await store.aclose()

    run_virtual(main)


def test_a_session_that_another_process_holds_is_busy_until_it_is_released(tmp_path: Path) -> None:
    path = tmp_path / "a.db"

    async def create() -> None:
        store = SqliteStore(path)
        await Session.create(store, "s")
        await store.aclose()

    async def refused(pid: int) -> None:
        store = SqliteStore(path)
        session = await Session.load(store, "s")
        with pytest.raises(SessionBusy, match=f"in process {pid}"):
            await greeter().run("hi", session=session)
        with pytest.raises(SessionBusy):
            await session.rewind()
        assert session.messages == ()
        await store.aclose()

    async def works() -> None:
        store = SqliteStore(path)
        assert (await greeter().run("hi", session=await Session.load(store, "s"))).text == "hello"
        await store.aclose()

    run_virtual(create)
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "claimed\n"
        run_virtual(lambda: refused(holder.pid))
        holder.communicate("go\n", timeout=30)
    run_virtual(works)


def test_a_session_whose_process_was_killed_is_free(tmp_path: Path) -> None:
    path = tmp_path / "a.db"

    async def create() -> None:
        store = SqliteStore(path)
        await Session.create(store, "s")
        await store.aclose()

    async def works() -> None:
        store = SqliteStore(path)
        assert (await greeter().run("hi", session=await Session.load(store, "s"))).text == "hello"
        await store.aclose()

    run_virtual(create)
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        holder.kill()
        holder.wait()
        run_virtual(works)


@pytest.mark.timeout(60)
def test_a_worker_renews_its_lease_while_it_holds_something_and_its_run_is_silent(tmp_path: Path) -> None:
    async def main() -> None:
        store, path = SqliteStore(tmp_path / "a.db", lease=0.003), tmp_path / "a.db"

        def counter() -> int:
            with sqlite3.connect(path) as db:
                [(found,)] = db.execute("SELECT counter FROM workers").fetchall()
            db.close()
            return int(found)

        await Session.create(store, "s")
        await store.claim("s", "me")
        first = counter()
        while counter() == first:
            pass
        await store.release("s", "me")
        free = counter()
        await asyncio.to_thread(time.sleep, 0.1)
        assert counter() <= free + 1  # one renewal may have been under way
        await store.aclose()

    asyncio.run(main())


def test_one_store_serves_one_loop_after_another(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "a.db")
    sessions: list[Session] = []

    async def first() -> None:
        sessions.append(await Session.create(store, "s"))
        await greeter().run("one", session=sessions[0])

    async def last() -> None:
        assert [m.text for m in (await Session.load(store, "s")).messages] == ["one", "hello", "two", "hello"]
        await store.aclose()

    run_virtual(first)
    assert greeter().run_sync("two", session=sessions[0]).text == "hello"
    run_virtual(last)


def test_a_locked_file_is_a_clear_error_in_time_and_nothing_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "a.db"

    async def main() -> None:
        store = SqliteStore(path, timeout=0.05)
        session = await Session.create(store, "s")
        await greeter().run("before", session=session)
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match=r"locked"):
            await greeter().run("now", session=session)
        other.execute("ROLLBACK")
        other.close()
        assert [message.text for message in session.messages] == ["before", "hello"]
        await greeter().run("after", session=session)
        assert [m.text for m in (await store.load("s")).messages] == ["before", "hello", "after", "hello"]
        await store.aclose()

    run_virtual(main)


def test_a_file_that_is_locked_when_the_store_is_opened_can_be_used_later(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")

    async def main() -> None:
        store = SqliteStore(path, timeout=0.05)
        with pytest.raises(StoreError, match=r"locked"):
            await Session.create(store, "s")
        other.execute("ROLLBACK")
        other.close()
        await Session.create(store, "s")
        await store.aclose()

    run_virtual(main)


def test_a_file_that_is_no_database_is_a_clear_error_and_stays_what_it_is(tmp_path: Path) -> None:
    path = tmp_path / "letter.txt"
    path.write_text("Dear reader, " * 100)

    async def main() -> None:
        store = SqliteStore(path)
        with pytest.raises(StoreError, match="not a database"):
            await Session.create(store, "s")
        await store.aclose()

    run_virtual(main)
    assert path.read_text() == "Dear reader, " * 100


def test_a_file_of_a_later_version_is_refused_and_stays_what_it_is(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with sqlite3.connect(path) as other:
        other.execute("PRAGMA user_version=99")
    other.close()

    async def main() -> None:
        store = SqliteStore(path)
        with pytest.raises(StoreError, match="version 99"):
            await store.list_ids()
        await store.aclose()

    run_virtual(main)


def test_a_stop_writes_its_own_turn_and_not_the_conversation_again(tmp_path: Path) -> None:
    def written() -> int:
        with sqlite3.connect(tmp_path / "a.db") as db:
            ((size,),) = db.execute("SELECT length(checkpoint) FROM runs")
        db.close()
        return int(size)

    async def main() -> None:
        store = SqliteStore(tmp_path / "a.db")
        reached = asyncio.Event()

        @tool
        async def wait() -> str:
            """Wait for ever."""
            reached.set()
            await asyncio.Event().wait()
            return "never"

        words = Text("word " * 2000)
        past = [Message("user" if place % 2 == 0 else "assistant", (words,)) for place in range(20)]
        session = await Session.create(store, "s", history=past)
        agent = Agent("a", model=ScriptedModel(call("wait"), say("done")), tools=[wait])
        async with agent.start("go", session=session) as first:
            await reached.wait()
            first.cancel()
        stopped = session.checkpoint
        assert stopped is not None
        assert len(stopped.to_bytes()) > 20 * 10_000
        assert written() < 10_000
        assert (await store.load("s")).runs[-1].checkpoint == stopped
        reached.clear()
        async with agent.start(checkpoint=Resume(stopped, on_unknown="rerun"), session=session) as again:
            await reached.wait()
            assert written() < 10_000
            assert (await store.load("s")).runs[-1].continued == stopped
            again.cancel()
        assert written() < 10_000
        assert (await store.load("s")).runs == session.runs
        await store.aclose()

    run_virtual(main)


def test_a_bad_time_out_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"timeout=-1"):
        SqliteStore(tmp_path / "a.db", timeout=-1)


@pytest.mark.parametrize(
    "spoil",
    [
        "UPDATE messages SET body = 'nonsense' WHERE place = 1",
        'UPDATE messages SET body = \'{"role": "king", "parts": []}\' WHERE place = 1',
        "UPDATE messages SET body = '[]' WHERE place = 1",
        "DELETE FROM messages WHERE place = 1",
        "UPDATE sessions SET state = '{'",
        "UPDATE sessions SET state = '[]'",
        "UPDATE runs SET state_before = 'x'",
        "UPDATE runs SET checkpoint = x'00ff'",
        "UPDATE calls SET entry = '{}'",
        "UPDATE calls SET memory = '{}'",
        "UPDATE calls SET memory = '[]'",
        f"UPDATE messages SET body = '{'[' * 100_000}' WHERE place = 1",
        "UPDATE sessions SET owner = x'ff'",
        "UPDATE sessions SET owner = 'rubbish'",
    ],
)
def test_rows_that_were_spoilt_are_told_and_left_as_they_are(spoil: str, tmp_path: Path) -> None:
    from tests.sessions.test_failing_stores import worker

    path = tmp_path / "a.db"

    def dump() -> list[str]:
        with sqlite3.connect(path) as db:
            lines = list(db.iterdump())
        db.close()
        return lines

    async def main() -> None:
        store = SqliteStore(path)
        await worker([]).run("work", session=await Session.create(store, "s"))
        with sqlite3.connect(path) as other:
            assert other.execute(spoil).rowcount > 0
        other.close()
        before = dump()
        with pytest.raises(StoreCorrupt, match="'s'"):
            await greeter().run("hi", session=await Session.load(store, "s"))
        assert dump() == before
        await store.aclose()

    run_virtual(main)


@pytest.mark.parametrize("state", ["[]", "nonsense", "[" * 100_000])
def test_a_state_that_was_spoilt_is_told_by_whoever_lists_states(state: str, tmp_path: Path) -> None:
    path = tmp_path / "a.db"

    async def main() -> None:
        store = SqliteStore(path)
        await Session.create(store, "s")
        with sqlite3.connect(path) as other:
            other.execute("UPDATE sessions SET state = ?", (state,))
        other.close()
        with pytest.raises(StoreCorrupt, match="'s'"):
            await store.states()
        assert await store.list_ids() == ["s"]
        await store.aclose()

    run_virtual(main)

"""A run whose end could not be stored: what its session shows meanwhile, and that the end is stored after all."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from safepoint import Agent, check_history, tool
from safepoint.agent.result import RunResult
from safepoint.errors import SessionBusy, StoreError
from safepoint.history.parts import Message, Notice
from safepoint.sessions import MemoryStore, Session, SqliteStore, Store
from safepoint.sessions.store import Change
from safepoint.testing import ScriptedModel, call, run_virtual, say
from tests.sessions.stores import Wrapped

# Seconds of a virtual clock: how long another process has the lock, and until an end is tried again at the latest.
A_LOCK, RETRIES = 25.0, 10.0


def waits(reached: asyncio.Event) -> Agent:
    @tool
    async def wait() -> str:
        """Wait for ever."""
        reached.set()
        await asyncio.Event().wait()
        return "never"

    return Agent("one", model=ScriptedModel(call("wait"), say("and on"), repeat=True), tools=[wait])


def notices(messages: tuple[Message, ...]) -> str:
    return " ".join(part.text for message in messages for part in message.parts if isinstance(part, Notice))


async def stopped(session: Session, meanwhile: Callable[[], object]) -> RunResult[object]:
    """A run that is cancelled in the middle of a call, after `meanwhile` has made the storage fail."""
    reached = asyncio.Event()
    async with waits(reached).start("go", session=session) as run:
        await reached.wait()
        meanwhile()
        await run.cancel(reason="enough").wait()
    return run.result


async def check_known(store: Store, session: Session, result: RunResult[object]) -> None:
    """Whoever looks in this process sees how the run ended."""
    assert isinstance(result.save_error, StoreError)
    for one in (session, await Session.load(store, "s")):
        assert one.messages == tuple(result.messages)
        check_history(one.messages)
        assert "enough" in notices(one.messages)
        assert "died" not in notices(one.messages)
        assert one.checkpoint == result.checkpoint


async def check_stored(store: Store, session: Session, result: RunResult[object]) -> None:
    """As soon as the storage works, the next run does, and the end is there as it was."""
    answer = await Agent("next", model=ScriptedModel(say("hello"))).run("and now?", session=session)
    assert answer.text == "hello"
    stored = await store.load("s")
    assert stored.messages[: len(result.messages)] == tuple(result.messages)
    assert stored.runs[0].stop_reason == "cancelled"
    assert "died" not in notices(stored.messages)
    check_history(stored.messages)


@asynccontextmanager
async def sqlite(path: Path) -> AsyncGenerator[tuple[SqliteStore, sqlite3.Connection]]:
    """A store with little patience, and another process that may hold the lock of its file."""
    store = SqliteStore(path, timeout=0.02)
    other = sqlite3.connect(path, isolation_level=None)
    try:
        yield store, other
    finally:
        other.close()
        await store.aclose()


def test_a_locked_file_loses_no_end_and_the_session_says_what_is_known(tmp_path: Path) -> None:
    async def main() -> None:
        async with sqlite(tmp_path / "a.db") as (store, other):
            session = await Session.create(store, "s")
            result = await stopped(session, lambda: other.execute("BEGIN IMMEDIATE"))
            await check_known(store, session, result)
            with pytest.raises(StoreError, match="locked"):
                await Agent("next", model=ScriptedModel()).run("too early", session=session)
            await check_known(store, session, result)
            other.execute("ROLLBACK")
            await check_stored(store, session, result)

    run_virtual(main)


def test_the_end_is_stored_without_another_run_and_each_delay_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with sqlite(tmp_path / "a.db") as (store, other):
            session = await Session.create(store, "s")
            result = await stopped(session, lambda: other.execute("BEGIN IMMEDIATE"))
            await asyncio.sleep(A_LOCK)
            assert not (await store.load("s")).runs[-1].ended
            other.execute("ROLLBACK")
            await asyncio.sleep(RETRIES)
            stored = await store.load("s")
            assert (stored.messages, stored.runs[-1].checkpoint) == (tuple(result.messages), result.checkpoint)
            assert not session.end_is_pending
            await store.claim("s", "another")  # it was given back

    with caplog.at_level(logging.WARNING, "safepoint"):
        run_virtual(main)
    assert "could not be stored, and is tried again" in caplog.text
    assert "s late" in caplog.text


def test_another_process_reads_a_valid_history_that_says_what_is_known_and_no_more(tmp_path: Path) -> None:
    async def main() -> None:
        async with sqlite(tmp_path / "a.db") as (store, other), sqlite(tmp_path / "a.db") as (elsewhere, _):
            session = await Session.create(store, "s")
            result = await stopped(session, lambda: other.execute("BEGIN IMMEDIATE"))
            seen = await Session.load(elsewhere, "s")
            check_history(seen.messages)
            assert "died" not in notices(seen.messages)
            assert "not ended, or its end was not stored" in notices(seen.messages)
            other.execute("ROLLBACK")
            if session.end_is_pending:
                with pytest.raises(SessionBusy):  # its process lives, and will store the end
                    await Agent("next", model=ScriptedModel()).run("too early", session=seen)
            await session.store_end()
            await check_stored(elsewhere, seen, result)

    run_virtual(main)


def test_a_store_that_raises_once_is_asked_again_at_once() -> None:
    async def main() -> None:
        store = Wrapped(MemoryStore())
        session = await Session.create(store, "s")
        result = await stopped(session, lambda: store.fail_at("append", store.counts["append"] + 1))
        assert result.save_error is None
        assert session.messages == tuple(result.messages) == (await store.load("s")).messages
        await check_stored(store, session, result)

    run_virtual(main)


def test_a_store_that_goes_on_failing_is_asked_until_it_works() -> None:
    async def main() -> None:
        store = Wrapped(MemoryStore())
        session = await Session.create(store, "s")
        result = await stopped(session, lambda: store.fail_from("append", store.counts["append"] + 1))
        await check_known(store, session, result)
        store.before = lambda name, number: None
        await asyncio.sleep(RETRIES)
        assert not session.end_is_pending
        await check_stored(store, session, result)

    run_virtual(main)


def test_a_write_that_happened_although_it_failed_is_not_made_twice() -> None:
    class Forgetful(Wrapped):
        """Does what it is told, and says that it failed."""

        async def append(self, session_id: str, epoch: int, changes: Sequence[Change]) -> None:
            await super().append(session_id, epoch, changes)
            if self.lies:
                raise StoreError("no answer")

        lies = False

    async def main() -> None:
        store = Forgetful(MemoryStore())
        session = await Session.create(store, "s")

        def lie() -> None:
            store.lies = True

        result = await stopped(session, lie)
        assert result.save_error is None, "the second try finds it there"
        store.lies = False
        await check_stored(store, session, result)

    run_virtual(main)


def test_a_session_that_was_deleted_or_taken_over_is_not_asked_again() -> None:
    async def main() -> None:
        store = MemoryStore()
        session = await Session.create(store, "s")
        reached = asyncio.Event()
        async with waits(reached).start("go", session=session) as run:
            await reached.wait()
            await store.delete("s")
            await run.cancel().wait()
        assert isinstance(run.result.save_error, StoreError)
        assert not session.end_is_pending

    run_virtual(main)

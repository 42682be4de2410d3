"""What only a SQLite storage has: a file, a writer and a reader beside it, and a lock that others may hold."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, cast

import pytest

from safepoint.errors import SessionExists, StoreError
from safepoint.storage.operations import AddNote, CreateSession, Share
from safepoint.storage.run_records import RunRecord, RunState
from safepoint.storage.shared_state import Note
from safepoint.storage.sqlite.storage import SqliteStorage

Synchronous = Literal["NORMAL", "FULL"]


def with_storage(path: Path, body: Callable[[SqliteStorage], Awaitable[None]], *, timeout: float = 10.0) -> None:
    async def main() -> None:
        storage = SqliteStorage(path, timeout=timeout)
        try:
            await body(storage)
        finally:
            await storage.aclose()

    asyncio.run(main())


def write_on_another_loop(storage: SqliteStorage, session_id: str) -> None:
    """Blocks this loop until the writer has answered; what was submitted before is answered before."""
    thread = threading.Thread(target=lambda: asyncio.run(storage.sessions.create(session_id, {})))
    thread.start()
    thread.join()


@contextmanager
def locked(path: Path) -> Generator[sqlite3.Connection]:
    """As if another process held the write lock."""
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        yield other
    finally:
        other.execute("ROLLBACK")
        other.close()


def test_after_a_clean_end_the_database_is_one_file(tmp_path: Path) -> None:
    async def body(storage: SqliteStorage) -> None:
        await storage.sessions.create("s", {"x": 1})
        await storage.sessions.load("s")
        assert len(os.listdir(tmp_path)) > 1

    for _ in range(20):
        with_storage(tmp_path / "a.db", body)
        assert os.listdir(tmp_path) == ["a.db"]
        with sqlite3.connect(tmp_path / "a.db") as db:
            assert db.execute("SELECT count(*) FROM sessions").fetchone() == (1,)
            db.execute("DELETE FROM sessions")
        db.close()


def test_readers_wait_for_no_writer(tmp_path: Path) -> None:
    path = tmp_path / "a.db"

    async def body(storage: SqliteStorage) -> None:
        await storage.sessions.create("s", {"x": 1})
        await storage.runs.accept(RunRecord("r", "s", RunState.PAUSED, 1.0, storage.worker), since=0)
        with locked(path):
            writing = asyncio.ensure_future(storage.sessions.create("t", {}))
            async with asyncio.timeout(5):
                assert (await storage.sessions.load("s")).state == {"x": 1}
                assert await storage.sessions.list_ids() == ["s"]
                assert await storage.runs.get("r") is not None
                assert await storage.shared.shared(["app"]) == {}
                await storage.check()
            assert not writing.done()
        await writing
        assert await storage.sessions.list_ids() == ["s", "t"]

    with_storage(path, body, timeout=60)


def test_a_storage_that_is_opened_while_another_process_writes_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "a.db"

    async def create(storage: SqliteStorage) -> None:
        await storage.sessions.create("s", {"x": 1})

    async def read(storage: SqliteStorage) -> None:
        with locked(path):
            async with asyncio.timeout(5):
                assert (await storage.sessions.load("s")).state == {"x": 1}

    with_storage(path, create)
    with_storage(path, read, timeout=60)


def test_a_file_that_is_deleted_or_replaced_is_noticed_by_the_next_use(tmp_path: Path) -> None:
    path, away = tmp_path / "a.db", tmp_path / "away.db"

    async def body(storage: SqliteStorage) -> None:
        await storage.sessions.create("s", {})
        await storage.sessions.load("s")
        os.rename(path, away)
        with pytest.raises(StoreError, match="is gone"):
            await storage.check()
        await _noticed(storage, "is gone")
        path.write_bytes(b"another file")
        with pytest.raises(StoreError, match="was replaced"):
            await storage.check()
        os.rename(away, path)
        await storage.check()
        await storage.sessions.create("back", {})
        assert await storage.sessions.list_ids() == ["back", "s"]

    with_storage(path, body)


async def _noticed(storage: SqliteStorage, words: str) -> None:
    """Each connection looks at the path again after half a second, and from then on with every use."""

    async def use_for_ever(use: Callable[[], Awaitable[object]]) -> None:
        while True:
            await use()

    async with asyncio.timeout(5):  # a second, on a quiet machine
        for use in (storage.sessions.list_ids, lambda: storage.shared.note("s", Note(1.0, {}))):
            with pytest.raises(StoreError, match=words):
                await use_for_ever(use)


def test_units_of_one_pass_of_the_loop_share_a_transaction_and_fail_alone(tmp_path: Path) -> None:
    async def body(storage: SqliteStorage) -> None:
        await storage.sessions.create("s", {})
        before = storage.transactions
        units = [storage.commit(Share("app", {f"n{number}": number})) for number in range(20)]
        twice = storage.commit(AddNote("s", Note(1.0, {})), CreateSession("s", {}))
        results = await asyncio.gather(*units[:10], twice, *units[10:], return_exceptions=True)
        assert storage.transactions - before == 1
        assert isinstance(results[10], SessionExists)
        assert len(await storage.shared.shared(["app"])) == 20
        assert await storage.shared.notes("s") == []

    with_storage(tmp_path / "a.db", body)


def test_a_caller_that_is_cancelled_leaves_its_write_and_the_next_read_waits_for_it(tmp_path: Path) -> None:
    path = tmp_path / "a.db"

    async def body(storage: SqliteStorage) -> None:
        await storage.sessions.create("s", {})
        with locked(path):
            writing = asyncio.ensure_future(storage.sessions.create("t", {"x": 1}))
            await asyncio.sleep(0)
            writing.cancel()
            await asyncio.wait({writing})
            assert writing.cancelled()
            reading = asyncio.ensure_future(storage.sessions.load("t"))
            await storage.sessions.load("s")
            assert not reading.done()
        assert (await reading).state == {"x": 1}

    with_storage(path, body, timeout=60)


@pytest.mark.parametrize(("synchronous", "expected"), [("NORMAL", 1), ("FULL", 2)])
def test_how_much_is_survived_is_an_option(tmp_path: Path, synchronous: Synchronous, expected: int) -> None:
    async def main() -> None:
        storage = SqliteStorage(tmp_path / "a.db", synchronous=synchronous)
        writer = storage._writer  # pyright: ignore[reportPrivateUsage]  # the setting is its connection's own
        found = await writer.submit(lambda db: db.execute("PRAGMA synchronous").fetchone()).future
        assert found == (expected,)
        await storage.aclose()

    asyncio.run(main())
    with pytest.raises(ValueError, match="NORMAL"):
        SqliteStorage(tmp_path / "b.db", synchronous=cast("Synchronous", "OFF"))


def test_a_reader_waits_for_no_write_whose_cancelled_caller_was_answered_in_that_moment(tmp_path: Path) -> None:
    """The answer is on its way to the loop when the caller is cancelled: it finds a future that has ended."""

    async def body(storage: SqliteStorage) -> None:
        await storage.sessions.create("s", {})
        writing = asyncio.ensure_future(storage.commit(CreateSession("t", {"x": 1})))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        write_on_another_loop(storage, "later")
        writing.cancel()
        with suppress(asyncio.CancelledError):
            await writing
        async with asyncio.timeout(20):
            assert (await storage.sessions.load("t")).state == {"x": 1}

    with_storage(tmp_path / "a.db", body)


def test_a_reader_waits_for_the_write_of_a_caller_that_was_cancelled(tmp_path: Path) -> None:
    async def body(storage: SqliteStorage) -> None:
        await storage.sessions.create("s", {})
        with locked(tmp_path / "a.db"):
            writing = asyncio.ensure_future(storage.commit(CreateSession("t", {"x": 1})))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            writing.cancel()
            with suppress(asyncio.CancelledError):
                await writing
            reading = asyncio.ensure_future(storage.sessions.load("t"))
            done, _ = await asyncio.wait({reading}, timeout=0.1)
            assert not done
        assert (await reading).state == {"x": 1}

    with_storage(tmp_path / "a.db", body)

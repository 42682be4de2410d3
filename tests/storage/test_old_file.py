"""A file that an earlier version wrote opens, is brought up to date, and reads as it was."""

from __future__ import annotations

import asyncio
import shutil
import socket
import sqlite3
import time
from collections.abc import Awaitable, Callable
from functools import reduce
from pathlib import Path

import pytest

from safepoint.errors import SessionBusy, StoreCorrupt, StoreError
from safepoint.sessions import Session, Stored
from safepoint.storage.loop_codec import decode
from safepoint.storage.reducer import apply
from safepoint.storage.run_records import RunRecord, RunState
from safepoint.storage.sqlite.schema import VERSION
from safepoint.storage.sqlite.storage import SqliteStorage
from safepoint.testing.conformance.store_maker import plain
from tests.storage import old_contents as old

FILE = Path(__file__).parent / "data" / old.NAME
REAL_RECORD = (Path(__file__).parents[1] / "turns" / "record_1.bin").read_bytes()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    copy = tmp_path / "old.db"
    shutil.copy(FILE, copy)
    return copy


def with_storage(
    path: Path, body: Callable[[SqliteStorage], Awaitable[None]], *, clock: Callable[[], float] = time.monotonic
) -> None:
    async def main() -> None:
        storage = SqliteStorage(path, lease=60, clock=clock)
        try:
            await body(storage)
        finally:
            await storage.aclose()

    asyncio.run(main())


def test_every_session_is_as_it_was(path: Path) -> None:
    async def body(storage: SqliteStorage) -> None:
        assert await storage.sessions.list_ids() == sorted(old.SESSIONS)
        for id, changes in old.SESSIONS.items():
            expected = reduce(apply, changes, Stored((), {}))
            found = plain(await storage.sessions.load(id))
            # A file keeps no difference between tuples and lists in a checkpoint's values.
            assert found == plain(expected), id

    with_storage(path, body)


def test_every_record_and_request_is_as_it_was(path: Path) -> None:
    async def body(storage: SqliteStorage) -> None:
        for fields in old.RECORDS:
            kept = {name: value for name, value in fields.items() if name != "renewed"}
            kept["state"] = RunState(fields["state"])
            expected = RunRecord(**kept)
            assert await storage.runs.get(expected.run_id) == expected
        for run_id in {run_id for run_id, _, _ in old.WANTED}:
            wanted = [(ask, answer) for each, ask, answer in old.WANTED if each == run_id]
            found = await storage.runs.cancel_requests(run_id)
            assert [(each.ask, each.answer, each.acknowledged) for each in found] == [(*each, False) for each in wanted]
        touched = await storage.runs.touched("app/ann/")
        assert touched == {
            **{each["session"]: each["created_at"] for each in old.RECORDS},
            **{
                "app/ann/empty": 170.0,
                "app/ann/ended": 150.0,
            },
        }

    with_storage(path, body)


def test_shared_values_notes_and_loops_are_as_they_were(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("DELETE FROM turn_claims")
        db.execute("INSERT INTO turn_loops VALUES ('real', ?)", (REAL_RECORD,))
    db.close()

    async def body(storage: SqliteStorage) -> None:
        for place, values in old.SHARED.items():
            assert await storage.shared.shared([place]) == values
        for session, notes in old.NOTES.items():
            assert [(note.at, note.body) for note in await storage.shared.notes(session)] == notes
        assert await storage.loops.read("real") == decode(REAL_RECORD)
        assert (await storage.loops.open("real", "me")).stored == decode(REAL_RECORD)
        for id in old.LOOPS:
            with pytest.raises(StoreCorrupt, match="left as"):
                await storage.loops.open(id, "me")

    with_storage(path, body)


def test_an_owner_of_then_that_is_gone_is_dead_at_once_and_one_elsewhere_after_a_lease(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("DELETE FROM turn_loops")
        for table, column in (("sessions", "owner"), ("run_records", "owner"), ("turn_claims", "owner")):
            db.execute(f"UPDATE {table} SET {column} = replace({column}, '{{host}}', ?)", (socket.gethostname(),))
    db.close()
    now = [0.0]

    async def body(storage: SqliteStorage) -> None:
        await storage.sessions.claim("app/ann/open", "me")
        await storage.loops.open("other", "me")
        dead = {record.run_id for record in await storage.runs.orphans()}
        assert dead == {"run_queued", "run_paused"}
        with pytest.raises(SessionBusy, match="in process 1"):
            await storage.sessions.claim("app/ann/resumed", "me")
        with pytest.raises(StoreError, match="in process 1"):
            await storage.loops.open("loop", "me")
        now[0] += 60
        await storage.sessions.claim("app/ann/resumed", "me")
        await storage.loops.open("loop", "me")
        dead = {record.run_id for record in await storage.runs.orphans()}
        assert dead == {"run_queued", "run_live", "run_paused", "run_suspended"}

    with_storage(path, body, clock=lambda: now[0])


def test_a_session_of_then_goes_on_now(path: Path) -> None:
    async def body(storage: SqliteStorage) -> None:
        session = await Session.load(storage, "app/ann/stopped")
        assert session.checkpoint is not None
        session.state["new"] = 1
        await session.save_state()
        assert (await storage.sessions.load("app/ann/stopped")).state["new"] == 1

    with_storage(path, body)


def test_the_file_has_the_tables_of_a_new_one(path: Path, tmp_path: Path) -> None:
    async def opened(storage: SqliteStorage) -> None:
        await storage.check()

    with_storage(path, opened)
    with_storage(tmp_path / "new.db", opened)

    def tables(file: Path) -> dict[str, list[tuple[object, ...]]]:
        with sqlite3.connect(file) as db:
            assert db.execute("PRAGMA user_version").fetchone() == (VERSION,)
            names = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'")]
            found = {name: sorted(row[1:] for row in db.execute(f"PRAGMA table_info({name})")) for name in names}
        db.close()
        return found

    assert tables(path) == tables(tmp_path / "new.db")

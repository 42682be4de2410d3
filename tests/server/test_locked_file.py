"""A server whose database another process has locked: what it answers meanwhile, and what is there afterwards."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from fastapi import FastAPI

from safepoint import Agent, check_history, tool
from safepoint._core.points import SafePoint
from safepoint._core.reasons import Reason
from safepoint.server import create_app
from safepoint.serving.ids import SessionKey
from safepoint.serving.managed_run import ManagedRun
from safepoint.serving.principal import LOCAL
from safepoint.serving.run_lookup import RunLookup
from safepoint.serving.run_manager import RunManager
from safepoint.sessions import SqliteStorage
from safepoint.storage.run_records import RunState
from safepoint.testing import ScriptedModel, call, run_virtual, say
from tests.server.server_process import PATIENCE, ServerProcess, submission

# Seconds of a virtual clock: how long another process has the lock, and until an end is tried again at the latest.
A_LOCK, RETRIES = 25.0, 10.0
KEY = SessionKey("worker", "ann", "s")


def with_host(path: Path, body: Callable[[RunManager, sqlite3.Connection, asyncio.Event], Awaitable[None]]) -> None:
    reached = asyncio.Event()

    @tool
    async def wait() -> str:
        """Wait for ever."""
        reached.set()
        await asyncio.Event().wait()
        return "never"

    async def main() -> None:
        storage = SqliteStorage(path, timeout=0.02)
        agent = Agent("worker", model=ScriptedModel(call("wait"), say("done"), repeat=True), tools=[wait])
        app: FastAPI = create_app({"worker": agent}, storage=storage)
        manager: RunManager = app.state.manager
        await manager.create(KEY, None)
        other = sqlite3.connect(path, isolation_level=None)
        try:
            await body(manager, other, reached)
        finally:
            other.close()
            await storage.aclose()

    run_virtual(main)


def test_a_lock_of_25_seconds_loses_no_end_and_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def body(manager: RunManager, other: sqlite3.Connection, reached: asyncio.Event) -> None:
        managed = await manager.submit(LOCAL, KEY, submission("s", "go"))
        assert isinstance(managed, ManagedRun)
        await reached.wait()
        other.execute("BEGIN IMMEDIATE")
        managed.ask(SafePoint.NOW, Reason("enough"))
        await managed.over.wait()
        assert managed.outcome == "cancelled"
        async with asyncio.timeout(5):  # readers wait for no lock
            check_history((await manager.view(KEY)).messages)
            shown = await RunLookup(manager).session(KEY)
        end = shown.events[-1].end
        assert end is not None
        assert end.stop_reason == "cancelled"
        await asyncio.sleep(A_LOCK)
        record = await manager.storage.runs.get(managed.id)
        assert record is not None
        assert record.state is RunState.LIVE, "neither the session nor the record has an end"
        assert not (await manager.storage.sessions.load(KEY.stored_as)).runs[-1].ended
        other.execute("ROLLBACK")
        await asyncio.sleep(RETRIES)
        stored, record = await manager.storage.sessions.load(KEY.stored_as), await manager.storage.runs.get(managed.id)
        assert record is not None
        assert (record.state, record.outcome) == (RunState.ENDED, "cancelled")
        assert stored.messages == tuple(managed.run.result.messages)
        check_history(stored.messages)
        next_one = await manager.submit(LOCAL, KEY, submission("s", "more"))
        assert isinstance(next_one, ManagedRun)
        await next_one.over.wait()
        assert next_one.outcome == "end_turn"

    with caplog.at_level(logging.WARNING, "safepoint"):
        with_host(tmp_path / "a.db", body)
    assert "could not be stored, and is tried again" in caplog.text
    assert "is not stored yet" in caplog.text
    assert "s late" in caplog.text


def test_a_database_that_is_deleted_under_a_server_is_told_within_a_second(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server:
        server.create("s")
        assert server.run("s", "note one").status == 200
        [path] = (tmp_path / "data").glob("safepoint.db")
        path.unlink()
        deadline = time.monotonic() + PATIENCE  # a second, on a quiet machine
        while server.get("/apps/worker/users/ann/sessions/s").status != 503:
            assert time.monotonic() < deadline, "nobody has noticed"
            time.sleep(0.05)
        assert server.run("s", "note two").status == 503
        assert server.post("/apps/worker/users/ann/sessions/t").status == 503
        assert server.get("/health").status == 200
        assert server.did().count("note two") == 0


def test_a_server_that_was_told_to_end_leaves_one_file(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server:
        for number in range(4):
            server.create(f"s{number}")
            assert server.run(f"s{number}", "note one").status == 200
            assert server.terminate() == 0
            left = sorted(path.name for path in (tmp_path / "data").iterdir() if path.name.startswith("safepoint.db"))
            assert left == ["safepoint.db"]
            server.start()
        assert len(server.get("/apps/worker/users/ann/sessions").body) == 4

"""A deploy: a server that is told to end hands its live runs to another one, which continues them under their ids."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from safepoint.storage.postgres.schema import upgrade
from safepoint.storage.postgres.storage import PostgresStorage
from safepoint.storage.workers import WorkerRow
from tests.server.server_process import PATIENCE, ServerProcess, calls_and_results, texts
from tests.storage.postgres.postgres_server import PostgresServer

pytestmark = pytest.mark.postgres

RUNS = 6


@pytest.fixture(scope="module")
def database() -> Iterator[PostgresServer]:
    started = PostgresServer()
    yield started
    started.close()


@pytest.fixture
def url(database: PostgresServer) -> str:
    address = database.new_database()
    asyncio.run(upgrade(address))
    return address


def server(folder: Path, url: str, *options: str) -> ServerProcess:
    return ServerProcess(folder, data=False, options=("--store", url, *options))


def workers(url: str) -> list[WorkerRow]:
    async def read() -> list[WorkerRow]:
        storage = PostgresStorage(url)
        try:
            return await storage.workers.all()
        finally:
            await storage.aclose()

    return asyncio.run(read())


def ended(server: ServerProcess, run: str) -> dict[str, object]:
    deadline = time.monotonic() + PATIENCE
    while (found := server.get(f"/runs/{run}").body)["state"] != "ended":
        assert time.monotonic() < deadline, found
        time.sleep(0.02)
    return dict(found)


def test_live_and_queued_runs_go_on_elsewhere_while_the_old_server_is_still_there(tmp_path: Path, url: str) -> None:
    with server(tmp_path, url) as here:
        sessions = [f"s{number}" for number in range(RUNS)]
        for session in sessions:
            here.create(session)
            here.run_in_thread(session, f"note {session}; nap 1.5", onDisconnect="detach")
        runs = {session: here.run_of(session, "live") for session in sessions}
        here.run_in_thread("s0", "note later", ifBusy="queue", onDisconnect="detach")
        runs["later"] = here.run_of("s0", "queued")
        # It ends only when it is forced, so the old server is still draining while the others have moved.
        here.create("long")
        here.run_in_thread("long", "stubborn 8", onDisconnect="detach")
        here.until_did("stubborn begins")
        here.until_did("nap begins", RUNS)
        with server(tmp_path, url) as there:
            assert here.process is not None
            here.process.send_signal(signal.SIGTERM)
            found = {name: ended(there, run) for name, run in runs.items()}
            assert here.process.poll() is None, "the runs waited for the end of their old process"
            assert sorted(row.draining for row in workers(url)) == [False, True]
            assert {name: each["outcome"] for name, each in found.items()} == dict.fromkeys(runs, "end_turn")
            for session in sessions:
                calls, results = calls_and_results(there.events(session))
                assert sorted(calls) == sorted(results)
            assert texts(there.events("s1")) == ["note s1; nap 1.5", "done "]
            did = there.did()
            assert [did.count(f"note {session}") for session in (*sessions, "later")] == [1] * (RUNS + 1)
            here.terminate()


def test_a_server_that_leaves_takes_nothing_new(tmp_path: Path, url: str) -> None:
    with server(tmp_path, url) as here:
        here.create("long")
        here.run_in_thread("long", "stubborn 4", onDisconnect="detach")
        here.until_did("stubborn begins")
        here.create("other")
        assert here.process is not None
        here.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + PATIENCE
        while not any(row.draining for row in workers(url)):
            assert time.monotonic() < deadline
        assert here.run("other", "note refused").status == 503
        with psycopg.connect(url) as connection:  # a run without an owner, which the server would find by looking
            connection.execute(
                "INSERT INTO safepoint.run_records"
                " (run_id, session, state, created_at, owner, request, epoch, asked_by)"
                " SELECT 'run_free', session, 'suspended', 0, '', request, 0, asked_by"
                " FROM safepoint.run_records LIMIT 1"
            )
        here.process.wait(PATIENCE)
        here.process = None
        with psycopg.connect(url) as connection:
            found = connection.execute("SELECT owner FROM safepoint.run_records WHERE run_id = 'run_free'").fetchone()
        assert found == ("",), "a server that leaves has taken a run"


def test_a_run_that_was_live_in_three_servers_when_they_died_ends_with_an_error_and_can_go_on(
    tmp_path: Path, url: str
) -> None:
    with server(tmp_path, url) as here:
        here.create("deadly")
        here.run_in_thread("deadly", "stall", onDisconnect="detach")
        run = here.run_of("deadly", "live")
        here.until_did("stall")
        here.kill()
        for lives in (2, 3):
            here.start()
            assert here.run_of("deadly", "live") == run
            here.until_did("stall", lives)
            here.kill()
        here.start()
        found = ended(here, run)
        assert found["outcome"] == "error"
        assert "3 workers in a row died" in str(found["reason"])
        assert here.post(f"/runs/{run}:resume").status == 200, "its checkpoint is gone"
        here.until_did("stall", 4)

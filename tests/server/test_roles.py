"""Processes with one role each: one accepts runs, others work on them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from safepoint.storage.postgres.schema import upgrade
from tests.server.server_process import APPS, PATIENCE, ServerProcess, calls_and_results, texts
from tests.storage.postgres.postgres_server import PostgresServer

pytestmark = pytest.mark.postgres


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


def api(folder: Path, url: str, *options: str) -> ServerProcess:
    return ServerProcess(folder, data=False, options=("--store", url, "--role", "api", *options))


def worker(folder: Path, url: str, *options: str) -> ServerProcess:
    return ServerProcess(folder, data=False, command=("safepoint", "worker"), options=("--store", url, *options))


def ended(server: ServerProcess, run: str) -> dict[str, object]:
    deadline = time.monotonic() + PATIENCE
    while (found := server.get(f"/runs/{run}").body)["state"] != "ended":
        assert time.monotonic() < deadline, found
        time.sleep(0.02)
    return dict(found)


def test_one_process_accepts_another_works_and_the_client_notices_nothing(tmp_path: Path, url: str) -> None:
    with api(tmp_path, url) as front, worker(tmp_path, url) as back:
        front.create("s")
        answer = front.run("s", "note a; nap 0.1")
        assert answer.status == 200
        calls, results = calls_and_results(answer.body)
        assert (len(calls), sorted(calls)) == (2, sorted(results))
        assert texts(front.events("s")) == ["note a; nap 0.1", "done "]
        assert [front.run("s", f"note {name}", ifBusy="queue").status for name in "bc"] == [200, 200]
        assert [line for line in front.did() if line.startswith("note")] == ["note a", "note b", "note c"]
        assert back.post("/run", {}).status == 404
        assert back.get("/ready").status == 200
        assert 'safepoint_runs_total{outcome="end_turn"} 3' in back.get("/metrics").body
        assert 'safepoint_runs_picked_up_total{how="accepted"} 3' in back.get("/metrics").body
        assert 'safepoint_store_seconds_count{operation="commit"}' in back.get("/metrics").body
        assert "safepoint_runs_total{" not in front.get("/metrics").body


def test_a_cancel_at_the_front_stops_the_run_at_the_back(tmp_path: Path, url: str) -> None:
    with api(tmp_path, url) as front, worker(tmp_path, url):
        front.create("s")
        sent = front.run_in_thread("s", "note a; nap 60")
        run = front.run_of("s", "live")
        front.until_did("nap begins")
        stopped = front.post(f"/runs/{run}:cancel", {"reason": "enough", "waitSeconds": 10})
        assert stopped.status == 200, stopped
        assert stopped.body["runs"][0]["outcome"] == "stopped"
        assert ended(front, run)["outcome"] == "cancelled"
        assert sent.answer().status == 200


def test_a_killed_worker_loses_nothing(tmp_path: Path, url: str) -> None:
    with api(tmp_path, url) as front, worker(tmp_path, url) as first:
        front.create("s")
        front.run_in_thread("s", "note a; nap 1.5")
        run = front.run_of("s", "live")
        front.until_did("nap begins")
        first.kill()
        with worker(tmp_path, url):
            assert ended(front, run)["outcome"] == "end_turn"
            assert front.did().count("note a") == 1


def test_a_server_without_room_leaves_runs_to_others(tmp_path: Path, url: str) -> None:
    full = ServerProcess(tmp_path, data=False, options=("--store", url, "--local-slots", "1", "--job-slots", "1"))
    with full as front, worker(tmp_path, url) as back:
        for session in ("one", "two", "three"):
            front.create(session)
        sent = [front.run_in_thread(session, "nap 1") for session in ("one", "two", "three")]
        assert [each.answer().status for each in sent] == [200, 200, 200]
        counts = [
            server.get("/metrics").body.count('safepoint_runs_total{outcome="end_turn"}') for server in (front, back)
        ]
        assert counts == [1, 1], "one of them has worked on all"


@pytest.mark.parametrize("command", [("serve", "--role", "api"), ("worker",)])
def test_a_role_that_needs_a_shared_storage_is_refused_in_one_line(command: tuple[str, ...]) -> None:
    name, *options = command
    line = [sys.executable, "-m", "safepoint", name, str(APPS), *options, "--store", "memory", "--port", "0"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "need a storage that many processes share: write --store postgresql://" in done.stderr

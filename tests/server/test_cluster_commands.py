"""`ps --workers`, `drain`, `move` and `cluster check`, on real processes."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from safepoint.storage.postgres.schema import upgrade
from tests.server.server_process import PATIENCE, ServerProcess
from tests.server.test_roles import api, ended, worker
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


def safepoint(*args: str) -> tuple[int, str]:
    line = [sys.executable, "-m", "safepoint", *args]
    done = subprocess.run(line, capture_output=True, text=True, timeout=PATIENCE, check=False)
    return done.returncode, done.stdout + done.stderr


def at(server: ServerProcess) -> tuple[str, str]:
    return "--url", f"http://127.0.0.1:{server.port}"


def workers(server: ServerProcess) -> dict[int, dict[str, object]]:
    """By process id; those that work."""
    rows = server.get("/workers").body["workers"]
    return {row["pid"]: row for row in rows if row["room"]}


def pid(server: ServerProcess) -> int:
    assert server.process is not None
    return server.process.pid


def test_workers_are_listed_a_run_moves_to_a_named_one_and_a_drained_one_gives_up_all(tmp_path: Path, url: str) -> None:
    hurried = "--shutdown-seconds", "1"
    with api(tmp_path, url) as front, worker(tmp_path, url, *hurried) as one, worker(tmp_path, url, *hurried) as two:
        deadline = time.monotonic() + PATIENCE
        while len(workers(front)) < 2:
            assert time.monotonic() < deadline
        ids = {each: str(workers(front)[pid(each)]["id"]) for each in (one, two)}
        code, text = safepoint("ps", "--workers", *at(front))
        assert (code, [name in text for name in ids.values()]) == (0, [True, True])
        assert "0/100" in text
        front.create("s")
        front.run_in_thread("s", "note a; nap 60")
        run = front.run_of("s", "live")
        front.until_did("nap begins")
        owner = next(each for each in (one, two) if workers(front)[pid(each)]["live"] == 1)
        other = two if owner is one else one
        code, text = safepoint("move", run, "--to", ids[owner], *at(front))
        assert (code, "in the worker" in text) == (1, True)
        code, text = safepoint("move", run, "--to", ids[other], "--wait", "20", *at(front))
        assert (code, text) == (0, f"{run} moved to {ids[other]}\n")
        assert ended(front, run)["outcome"] == "end_turn"
        code, text = safepoint("move", run, *at(front))
        assert (code, "only a live run moves" in text) == (1, True)

        front.run_in_thread("s", "note b; nap 60")
        run = front.run_of("s", "live")
        front.until_did("nap begins", 2)
        owner = next(each for each in (one, two) if workers(front)[pid(each)]["live"] == 1)
        code, text = safepoint("drain", ids[owner], *at(front))
        assert code == 0, text
        assert ended(front, run)["outcome"] == "end_turn"
        assert workers(front)[pid(owner)]["draining"] is True
        assert owner.get("/ready").status == 503
        assert [line for line in front.did() if line.startswith("note")] == ["note a", "note b"]
        assert safepoint("drain", "nobody", *at(front))[0] == 1


def test_a_run_that_nobody_can_take_says_for_which_app_it_waits(tmp_path: Path, url: str) -> None:
    with api(tmp_path, url) as front:
        front.create("s")
        front.run_in_thread("s", "note a")
        run = front.run_of("s", "queued")
        code, text = safepoint("ps", "--workers", *at(front))
        assert (code, "1 of worker waiting for app worker, which no worker has" in text) == (0, True), text
        code, text = safepoint("ps", "--json", *at(front))
        [shown] = json.loads(text)
        assert (shown["runId"], shown["waitsFor"]) == (run, "app worker")
        assert "waiting for app worker" in safepoint("ps", *at(front))[1]
        assert 'safepoint_waiting_runs{app="worker"} 1' in front.get("/metrics").body
        with worker(tmp_path, url):
            assert ended(front, run)["outcome"] == "end_turn"


def test_a_cluster_is_checked_line_by_line(url: str, database: PostgresServer) -> None:
    code, text = safepoint("cluster", "check", "--store", url)
    parts = [line.split()[:2] for line in text.splitlines()]
    assert code == 0, text
    assert parts == [
        ["database", "ok"],
        ["schema", "ok"],
        ["clock", "ok"],
        ["pooler", "ok"],
        ["listener", "ok"],
        ["peers", "note"],
        ["engine", "ok"],
    ]
    code, text = safepoint("cluster", "check", "--store", database.new_database())
    assert (code, "run `safepoint db upgrade`" in text) == (1, True)
    code, text = safepoint("cluster", "check", "--store", "postgresql://x:secret@127.0.0.1:1/x")
    assert (code, "Connection refused" in text, "secret" in text) == (1, True, False)


def test_what_is_wrong_with_the_database_is_told_in_one_line_before_a_socket_is_served(
    url: str, database: PostgresServer, tmp_path: Path
) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE ROLE guest LOGIN")
        connection.execute("GRANT USAGE ON SCHEMA safepoint TO guest")
        connection.execute("GRANT SELECT ON ALL TABLES IN SCHEMA safepoint TO guest")
    lost = database.new_database()
    asyncio.run(upgrade(lost))
    with psycopg.connect(lost, autocommit=True) as connection:
        connection.execute("DROP TABLE procrastinate_jobs CASCADE")
    for address, words in (
        (url.replace("safepoint@", "guest@"), "the role guest may not write to the tables"),
        (lost, "the tables of Procrastinate are gone"),
        (database.new_database(), "run `safepoint db upgrade`"),
        ("postgresql://safepoint@127.0.0.1:1/x", "Connection refused"),
    ):
        code, text = safepoint("serve", "--store", address, "--port", "0")
        assert (code, text.count("\n"), words in text) == (2, 1, True), text

"""One fault at a time, between real servers and a real database: who goes on, who stops, and what is told."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from safepoint.storage.run_records import RunRecord
from tests.cluster.workers import Moment, broken_histories, moments, open_runs, records, repeated, worker
from tests.server.server_process import PATIENCE, ServerProcess, message, session_path
from tests.storage.postgres.postgres_server import PostgresServer
from tests.storage.postgres.tcp_proxy import TcpProxy

pytestmark = pytest.mark.postgres

LEASE = 1.0


def until(holds: Callable[[], object], patience: float = PATIENCE) -> None:
    deadline = time.monotonic() + patience
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def send(server: ServerProcess, name: str, seconds: float) -> None:
    """A run of three effects that take so long each; it is live when this returns."""
    server.post(session_path(name, app="chain"))
    body = message(name, f"chain {name} {seconds}", appName="chain", onDisconnect="detach")
    connection = server.begin("POST", "/run_sse", body)
    assert connection.status == 200
    connection.close()


def all_over(url: str) -> list[RunRecord]:
    until(lambda: not open_runs(url))
    return records(url)


def effects(folder: Path) -> list[Moment]:
    return [each for each in moments(folder) if not each.what.endswith("cut")]


def check_taken_over_once(folder: Path, url: str, names: Sequence[str], old: int, since: float, *, back: float) -> None:
    """Each run went on at another worker, once, and the old one has started nothing since 2/3 of its lease."""
    found = all_over(url)
    assert {record.outcome for record in found} == {"end_turn"}
    assert {record.epoch for record in found} == {1}, "taken over more than once, or not at all"
    done = effects(folder)
    assert repeated([each.what for each in done]) == []
    assert sorted(each.what for each in done) == sorted(f"{name} {step}" for name in names for step in range(3))
    late = [each for each in done if each.pid == old and each.at > since + LEASE * 2 / 3 + 0.2]
    assert late == [], f"the fault was from {since} to {back}"
    assert broken_histories(url) == []


def test_a_worker_that_cannot_reach_the_database_for_two_leases_loses_its_runs_once(
    tmp_path: Path, database: PostgresServer, url: str
) -> None:
    with TcpProxy(database.port).running() as proxy:
        through = database.url(url.rpartition("/")[2], proxy.port)
        here = worker(tmp_path, through, "--deadline", "1", "--patience", "2")
        with here, worker(tmp_path, url):
            names = [f"cut{number}" for number in range(6)]
            for number, name in enumerate(names):
                send(here, name, 0.4 + number / 10)
            until(lambda: len(effects(tmp_path)) >= len(names))
            assert here.process is not None
            old, since = here.process.pid, time.monotonic()
            proxy.silent = True
            time.sleep(2 * LEASE)
            proxy.silent = False
            proxy.cut_all()
            check_taken_over_once(tmp_path, url, names, old, since, back=time.monotonic())
            send(here, "after", 0.05)  # and it works again
            assert all_over(url)


def test_a_worker_that_stands_still_for_three_leases_starts_nothing_when_it_goes_on(tmp_path: Path, url: str) -> None:
    here = worker(tmp_path, url)
    with here, worker(tmp_path, url):
        names = [f"still{number}" for number in range(12)]
        for number, name in enumerate(names):
            send(here, name, 0.5 + number / 10)
        until(lambda: len(effects(tmp_path)) >= len(names))
        assert here.process is not None
        old, since = here.process.pid, time.monotonic()
        here.process.send_signal(signal.SIGSTOP)
        time.sleep(3 * LEASE)
        here.process.send_signal(signal.SIGCONT)
        check_taken_over_once(tmp_path, url, names, old, since, back=time.monotonic())

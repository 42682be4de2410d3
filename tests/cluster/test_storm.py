"""Workers are killed, pushes are lost, late and doubled, clocks are wrong: nothing is lost or repeated."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.storm import Storm
from tests.cluster.workers import Workers, silence_pushes
from tests.storage.postgres.postgres_server import PostgresServer
from tests.storage.postgres.tcp_proxy import TcpProxy

pytestmark = pytest.mark.postgres


@pytest.mark.timeout(120)
def test_workers_are_killed_and_no_run_is_lost_and_no_effect_repeated(tmp_path: Path, url: str) -> None:
    with Workers(tmp_path, url, 3) as workers:
        storm = Storm(workers.all, runs=60, seconds=0.2)
        storm.play(kill_every=1.5)
        storm.check(url)
        assert storm.kills >= 2


@pytest.mark.timeout(120)
def test_clocks_an_hour_off_that_jump_change_nothing(tmp_path: Path, url: str) -> None:
    clocks = [("--ahead", "3600", "--jumps", "3600"), ("--ahead", "-3600", "--jumps", "3600"), ("--jumps", "3600")]
    with Workers(tmp_path, url, 3, each=clocks) as workers:
        storm = Storm(workers.all, runs=40, seconds=0.2, seed=8)
        storm.play(kill_every=2.0)
        storm.check(url)


@pytest.mark.timeout(120)
def test_pushes_that_are_all_lost_cost_time_and_nothing_else(tmp_path: Path, url: str) -> None:
    silence_pushes(url)
    with Workers(tmp_path, url, 3) as workers:
        storm = Storm(workers.all, runs=40, seconds=0.2, seed=7)
        storm.play(kill_every=2.0)
        storm.check(url)


@pytest.mark.timeout(120)
def test_pushes_that_come_late_and_twice_change_nothing(tmp_path: Path, database: PostgresServer, url: str) -> None:
    with TcpProxy(database.port).running() as proxy:
        proxy.delay, proxy.doubled = 1.0, True
        late = database.url(url.rpartition("/")[2], proxy.port)
        with Workers(tmp_path, url, 3, "--listen-url", late) as workers:
            storm = Storm(workers.all, runs=40, seconds=0.2, seed=7)
            storm.play(kill_every=3.0)
            storm.check(url)


@pytest.mark.proof
@pytest.mark.timeout(900)
def test_a_thousand_runs_and_thirty_kills(tmp_path: Path, url: str) -> None:
    with Workers(tmp_path, url, 3) as workers:
        storm = Storm(workers.all, runs=1000, seconds=0.8, at_once=16, seed=1)
        storm.play(kill_every=3.0)
        print(f"kill -9 of a random worker every 3 s: {storm.check(url)}")
        assert storm.kills >= 30

"""The primary is lost and a streaming replica takes its place: the address names both, and no run fails."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
from pathlib import Path

import psycopg
import pytest

from safepoint.storage.postgres.schema import upgrade
from tests.cluster.test_faults import all_over, effects, send, until
from tests.cluster.workers import Workers, broken_histories, repeated
from tests.storage.postgres.postgres_server import PostgresServer, free_port

pytestmark = [pytest.mark.postgres, pytest.mark.proof]

RUNS = 20


class Replica(PostgresServer):
    """Follows another server until it is promoted."""

    def __init__(self, primary: PostgresServer) -> None:
        self.__dict__.update(primary.__dict__)
        self._folder = Path(tempfile.mkdtemp(prefix="safepoint-replica-"))
        if self._as:
            os.chown(self._folder, self._as["user"], self._as["group"])
        where = ("-h", "127.0.0.1", "-p", str(primary.port), "-U", "safepoint")
        self._run("pg_basebackup", *where, "-R", "-X", "stream", "--checkpoint=fast")
        self.port = free_port()
        self.start()

    def promote(self) -> None:
        self._run("pg_ctl", "promote", "-w")


def streams(primary: PostgresServer) -> bool:
    with psycopg.connect(primary.url()) as connection:
        return connection.execute("SELECT state FROM pg_stat_replication").fetchall() == [("streaming",)]


@pytest.mark.timeout(300)
def test_a_failover_to_a_replica_fails_no_run_and_makes_no_second_owner(tmp_path: Path) -> None:
    primary = PostgresServer()
    try:
        name = primary.new_database().rpartition("/")[2]
        asyncio.run(upgrade(primary.url(name)))
        replica = Replica(primary)
        until(lambda: streams(primary))
        both = f"127.0.0.1:{primary.port},127.0.0.1:{replica.port}"
        url = f"postgresql://safepoint@{both}/{name}?target_session_attrs=read-write"
        try:
            with Workers(tmp_path, url, 2, "--lease", "30") as workers:
                names = [f"over{number}" for number in range(RUNS)]
                for number, each in enumerate(names):
                    send(workers.all[number % 2], each, 2.0)
                until(lambda: len(effects(tmp_path)) >= RUNS)
                primary.kill()
                time.sleep(1.0)
                replica.promote()
                found = all_over(replica.url(name))
                assert {record.outcome for record in found} == {"end_turn"}
                assert len(found) == RUNS
                assert repeated([each.what for each in effects(tmp_path)]) == []
                assert broken_histories(replica.url(name)) == []
                print(f"failover: {RUNS} live runs, epochs {sorted({record.epoch for record in found})}")
        finally:
            replica.close()
    finally:
        primary.close()
        shutil.rmtree(tmp_path, ignore_errors=True)

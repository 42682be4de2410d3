"""What a cluster costs that does nothing, and how it goes on after a death: PostgreSQL, a real one from a wheel.

idle       statements in a second while a worker has 1,000 live runs that only wait
records    begin a run, look for orphans, list the open runs: with 100,000 open records against with 100
take-over  from the kill of a worker with 1,000 live runs until another one has continued the last of them
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import psycopg

from bench.sample import Sample, side_by_side
from bench.table import Table, millis, times, verdict
from safepoint.storage.postgres.schema import upgrade
from safepoint.storage.postgres.storage import PostgresStorage
from safepoint.storage.run_records import RunRecord, RunState
from tests.cluster.workers import WORKER_APPS, worker
from tests.server.server_process import message, session_path
from tests.storage.postgres.postgres_server import PostgresServer

RUNS = 1000
FEW, MANY = 100, 100_000
LEASE = 10.0
SECONDS = 10.0
AIM_IDLE, AIM_RECORDS, AIM_TAKE_OVER = 2.0, 1.3, LEASE + 2.0


def new_database(server: PostgresServer) -> str:
    url = server.new_database()
    asyncio.run(upgrade(url))
    return url


def sql(url: str, statement: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description is not None else []


# -- records -----------------------------------------------------------------------------------------------------------


async def costs(url: str, count: int) -> Callable[[str], Awaitable[float]]:
    """Of one operation each, by its name, in a database with so many open records of another worker."""
    storage = PostgresStorage(url)
    await storage.sessions.create("mine", {})
    sql(
        url,
        "INSERT INTO safepoint.workers (id, process, lease, lease_until) VALUES ('other', '', 9e9, 'infinity')"
        " ON CONFLICT DO NOTHING",
    )
    sql(
        url,
        "INSERT INTO safepoint.run_records (run_id, session, state, created_at, owner, request, epoch, asked_by)"
        f" SELECT 'r' || n, 'app/u/' || n, 'live', n, 'other', '{{}}', 0, '' FROM generate_series(1, {count}) n",
    )
    sql(url, "ANALYZE safepoint.run_records")
    numbers = iter(range(1_000_000))

    async def once(what: str) -> float:
        began = perf_counter()
        if what == "begin":
            number = next(numbers)
            record = RunRecord(f"m{number}", "mine", RunState.LIVE, time.time(), storage.worker, {}, by="")
            await storage.runs.accept(record, since=0.0)
            took = perf_counter() - began
            await storage.runs.move(record.run_id, RunState.ENDED, epoch=0)
            return took
        if what == "sweep":
            await storage.runs.orphans(waiting=False)
            await storage.runs.still_open(waiting=False, owner=storage.worker)
        else:
            await storage.workers.all()
        return perf_counter() - began

    return once


async def records(few: str, many: str) -> dict[str, tuple[Sample, Sample]]:
    small, large = await costs(few, FEW), await costs(many, MANY)
    found: dict[str, tuple[Sample, Sample]] = {}
    for what in ("begin", "sweep", "ps"):

        async def in_large(what: str = what) -> float:
            return await large(what)

        async def in_small(what: str = what) -> float:
            return await small(what)

        found[what] = await side_by_side(in_large, in_small, rounds=100 if what != "ps" else 20, warm_up=5)
    return found


# -- idle, and take-over -----------------------------------------------------------------------------------------------


def statements(url: str) -> int:
    """Committed or rolled back, of this database."""
    [(count,)] = sql(
        url, "SELECT (xact_commit + xact_rollback)::int FROM pg_stat_database WHERE datname = current_database()"
    )
    assert isinstance(count, int)
    return count


def live(url: str) -> int:
    [(count,)] = sql(url, "SELECT count(*)::int FROM safepoint.run_records WHERE state = 'live'")
    assert isinstance(count, int)
    return count


def idle_and_take_over(folder: Path, url: str) -> tuple[float, float]:
    """Statements in a second, and seconds."""
    options = ("--lease", str(LEASE), "--heartbeat", "1")
    here, there = (worker(folder, url, *options, apps=WORKER_APPS) for _ in range(2))
    with here:
        for number in range(RUNS):
            here.post(session_path(f"s{number}"))
            here.begin("POST", "/run_sse", message(f"s{number}", "nap 3000", onDisconnect="detach")).close()
        while here.did().count("nap begins") < RUNS:
            time.sleep(0.5)
        time.sleep(3.0)
        before, own = statements(url), 2  # those of this function
        time.sleep(SECONDS)
        rate = (statements(url) - before - own) / SECONDS
        with there:
            began = perf_counter()
            here.kill()
            while True:
                [(count,)] = sql(
                    url, "SELECT count(*)::int FROM safepoint.run_records WHERE state = 'live' AND epoch = 1"
                )
                if count == RUNS or perf_counter() - began > 120:
                    break
                time.sleep(0.1)
            return rate, perf_counter() - began


def main() -> None:
    table = Table("1,000 live runs, 100,000 open records", "measured", "aim", "")
    database = PostgresServer()
    try:
        found = asyncio.run(records(new_database(database), new_database(database)))
        for what, (large, small) in found.items():
            ratio = large.p50 / small.p50
            told = f"{what}: {MANY:,} open records ÷ {FEW} ({millis(large.p50)} ÷ {millis(small.p50)})"
            table.add(told, times(ratio), f"≤ {times(AIM_RECORDS)}", verdict(ratio, AIM_RECORDS))
        with TemporaryDirectory() as name:
            rate, took = idle_and_take_over(Path(name), new_database(database))
        table.add("idle live runs: transactions in a second", f"{rate:.1f}", f"≤ {AIM_IDLE}", verdict(rate, AIM_IDLE))
        aim = f"≤ {AIM_TAKE_OVER:.0f} s"
        table.add("take-over of all of them", f"{took:.1f} s", aim, verdict(took, AIM_TAKE_OVER))
    finally:
        database.close()
    table.show()


if __name__ == "__main__":
    main()

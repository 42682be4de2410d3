"""What a cancel costs that reaches the wrong process: on B against on A, over HTTP, with SQLite and with PostgreSQL.

Two real servers share a storage. A has a run in the middle of an async tool; the time is that of the client's request,
until the outcome is known and recorded. PostgreSQL is a real server on this machine, from a wheel. The aims are those
of a quiet machine, and of a storage that pushes: without pushes, the owner and the asker each look every 50 ms.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from bench.sample import Sample, side_by_side
from bench.table import Table, millis, verdict
from safepoint.storage.postgres.schema import upgrade
from tests.server.server_process import ServerProcess
from tests.storage.postgres.postgres_server import PostgresServer

ROUNDS = 60
WARM_UP = 5
AIM_P50, AIM_P99 = 0.005, 0.015
_numbers = count(1)


def cancels(owner: ServerProcess, asked: ServerProcess) -> Callable[[], Awaitable[float]]:
    """Seconds of one cancel of one live run of the owner."""

    async def once() -> float:
        session, naps = f"s{next(_numbers)}", owner.did().count("nap begins")
        owner.create(session)
        caller = owner.run_in_thread(session, "nap 60")
        owner.until_did("nap begins", naps + 1)
        began = perf_counter()
        answer = asked.cancel(session)
        took = perf_counter() - began
        [run] = answer.body["runs"]
        if (run["outcome"], run["durable"]) != ("stopped", True):
            raise RuntimeError(f"not stopped: {answer.body}")
        caller.answer()
        return took

    return once


def measure(folder: Path, options: Sequence[str], *, data: bool) -> tuple[Sample, Sample]:
    """Of cancels on B and on A, turn by turn."""
    with ServerProcess(folder, data=data, options=options) as a, ServerProcess(folder, data=data, options=options) as b:
        return asyncio.run(side_by_side(cancels(a, b), cancels(a, a), rounds=ROUNDS, warm_up=WARM_UP))


def add(table: Table, storage: str, on_b: Sample, on_a: Sample, *, has_aim: bool) -> None:
    for name, there, here, aim in (("p50", on_b.p50, on_a.p50, AIM_P50), ("p99", on_b.p99, on_a.p99, AIM_P99)):
        more = there - here
        wanted = (f"≤ {millis(aim)}", verdict(more, aim)) if has_aim else ("", "")
        table.add(f"{storage}, {name}", millis(here), millis(there), millis(more), *wanted)


def main() -> None:
    table = Table("a cancel of a run of A", "on A", "on B", "more", "aim", "")
    with TemporaryDirectory() as name:
        add(table, "SQLite", *measure(Path(name), (), data=True), has_aim=False)
    database = PostgresServer()
    try:
        url = database.new_database()
        asyncio.run(upgrade(url))
        with TemporaryDirectory() as name:
            add(table, "PostgreSQL", *measure(Path(name), ("--store", url), data=False), has_aim=True)
    finally:
        database.close()
    table.show()


if __name__ == "__main__":
    main()

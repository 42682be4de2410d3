"""What PostgreSQL costs beside SQLite: the two units of work of a served run, and whole runs, by 1 and by 16 clients.

PostgreSQL is a real server on this machine, from a wheel, and commits to the disk (`synchronous_commit = on`). A unit
is what `POST /run` commits: a run that is accepted, claims its session and opens; and its end. The aims are those of
`POST /run` as a whole, most of which is the same on both: here, with the storage alone, they are harder to meet.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from bench.models import SteppingModel
from bench.table import Table, verdict
from safepoint import Agent
from safepoint.agent.journal import Ended, Opened
from safepoint.agent.result import StopReason
from safepoint.agent.usage import Usage
from safepoint.history.parts import user_message
from safepoint.sessions.session import Session
from safepoint.storage import operations as op
from safepoint.storage.postgres.schema import upgrade
from safepoint.storage.postgres.storage import PostgresStorage
from safepoint.storage.protocol import Storage
from safepoint.storage.run_records import RunRecord, RunState
from safepoint.storage.session_data import Released
from safepoint.storage.sqlite.storage import SqliteStorage
from tests.storage.postgres.postgres_server import PostgresServer

SECONDS = 2.0
ROUNDS = 3
AIMS = {1: 0.5, 16: 0.8}
Client = Callable[[Storage, str], Awaitable[Callable[[], Awaitable[object]]]]


async def units(storage: Storage, id: str) -> Callable[[], Awaitable[object]]:
    """The two units of work of a run, and nothing else."""
    (version,) = await storage.commit(op.CreateSession(id, {}))
    number, said = 0, user_message("hello")

    async def once() -> None:
        nonlocal number, version
        number += 1
        run_id, now = f"{id}-{number}", time.time()
        record = RunRecord(run_id, id, RunState.LIVE, now, storage.worker, {"text": "hello"})
        opened = Opened(run_id, "worker", 2 * number - 2, (said,), at=now)
        claim = op.ClaimSession(id, run_id, version)
        epoch, *_ = await storage.commit(
            claim, op.AppendChanges(id, None, [opened], 1), op.AcceptRun(record, now - 86400, only_first=True)
        )
        ended = Ended(run_id, StopReason.END_TURN, 2 * number - 2, (said, said), (), Usage(), None, at=now)
        end = op.AppendChanges(id, epoch, [ended, Released(run_id)], 2)
        await storage.commit(end, op.MoveRun(run_id, RunState.ENDED, 0, {"ended_at": now, "outcome": "end_turn"}))
        version = type(version)(epoch, 2)

    return once


async def runs(storage: Storage, id: str) -> Callable[[], Awaitable[object]]:
    """A whole run of an instant agent in a session."""
    session = await Session.create(storage, id)
    agent = Agent("instant", model=SteppingModel("nothing", 0))
    return lambda: agent.run("go", session=session)


async def rate(storage: Storage, client: Client, clients: int, name: str) -> float:
    """How many times a second all clients together do it."""
    each = [await client(storage, f"{name}-{number}") for number in range(clients)]
    for once in each:
        await once()
    done, until = 0, perf_counter() + SECONDS

    async def work(once: Callable[[], Awaitable[object]]) -> None:
        nonlocal done
        while perf_counter() < until:
            await once()
            done += 1

    began = perf_counter()
    await asyncio.gather(*map(work, each))
    return done / (perf_counter() - began)


async def measure(table: Table, server: PostgresServer, folder: Path) -> None:
    url = server.new_database()
    await upgrade(url)
    postgres, sqlite = PostgresStorage(url), SqliteStorage(folder / "bench.db")
    for what, client in ("the two units of a run", units), ("a run in a session", runs):
        for clients, aim in AIMS.items():
            found: list[tuple[float, float]] = []
            for number in range(ROUNDS):  # side by side: another program on this machine slows both
                name = f"{what}-{clients}-{number}"
                found.append((await rate(sqlite, client, clients, name), await rate(postgres, client, clients, name)))
            ours, other = sorted(found, key=lambda pair: pair[1] / pair[0])[ROUNDS // 2]
            ratio = other / ours
            shown = (f"{ours:.0f}/s", f"{other:.0f}/s", f"{ratio:.2f} ×", f"≥ {aim} ×", verdict(aim, ratio))
            table.add(f"{what}, {clients} clients", *shown)
    await postgres.aclose()
    await sqlite.aclose()


def main() -> None:
    table = Table("PostgreSQL beside SQLite", "SQLite", "PostgreSQL", "ratio", "aim", "")
    server = PostgresServer()
    try:
        with TemporaryDirectory() as name:
            asyncio.run(measure(table, server, Path(name)))
    finally:
        server.close()
    table.show()


if __name__ == "__main__":
    main()

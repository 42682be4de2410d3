"""A cancel request travels by its row, a push and a look: whichever of them fail, it takes effect or says so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from safepoint import Agent
from safepoint._core.reasons import Reason
from safepoint.server.config import ServerConfig
from safepoint.serving.apps import Catalog
from safepoint.serving.cancel_requests import StopRequest
from safepoint.serving.cancel_service import Cancelled, cancel_all
from safepoint.serving.lease_guard import OUT_OF_REACH
from safepoint.serving.lease_sweeper import LeaseSweeper
from safepoint.serving.managed_run import ManagedRun
from safepoint.serving.remote_cancel import cancel_records
from safepoint.serving.run_manager import RunManager
from safepoint.storage.placement import Engine
from safepoint.storage.postgres.schema import upgrade
from safepoint.storage.postgres.storage import PostgresStorage
from safepoint.storage.run_records import RunState
from safepoint.testing import ScriptedModel, say, stall
from tests.server.test_transactions import KEY, over, submit
from tests.storage.postgres.postgres_server import PostgresServer
from tests.storage.postgres.tcp_proxy import TcpProxy
from tests.storage.postgres.test_postgres_storage import sql

pytestmark = pytest.mark.postgres

NEVER = 300.0


@pytest.fixture
def url(url: str) -> str:
    """Workers here look for free runs themselves: no engine starts any."""
    asyncio.run(upgrade(url, engine=Engine.NONE))
    return url


NOBODY = "postgresql://safepoint@127.0.0.1:1/nothing"
PATIENT = StopRequest(wait_seconds=20.0)


class Worker:
    """A server's inside: runs, and what it hears of other processes."""

    def __init__(self, storage: PostgresStorage, model: ScriptedModel, beat: float = NEVER) -> None:
        self.storage = storage
        config = ServerConfig(heartbeat_seconds=beat)
        self.manager = RunManager(Catalog.of({"worker": Agent("worker", model=model)}), storage, config)
        self.sweeper = LeaseSweeper(self.manager)

    async def cancel(self, run_id: str, request: StopRequest = PATIENT) -> Cancelled:
        """As a client of this process asks for it."""
        record = await self.storage.runs.get(run_id)
        assert record is not None
        [cancelled] = await cancel_records(self.manager, [record], request, Reason("enough"))
        return cancelled


@asynccontextmanager
async def cluster(
    owner: PostgresStorage, asker: PostgresStorage, *, beat: float = NEVER
) -> AsyncGenerator[tuple[Worker, Worker, ManagedRun]]:
    """Two workers, and a live run of the first one in the middle of a reply."""
    reached = asyncio.Event()
    here = Worker(owner, ScriptedModel([say("x"), stall(reached.set)]), beat)
    there = Worker(asker, ScriptedModel(say("done")))
    try:
        async with asyncio.timeout(50):
            await here.sweeper.start()
            await here.manager.create(KEY, {})
            managed = await submit(here.manager, "go")
            await reached.wait()
            yield here, there, managed
    finally:
        await here.sweeper.stop()
        await owner.aclose()
        await asker.aclose()


async def pushed(storage: PostgresStorage) -> None:
    async with storage.changes(worker=storage.worker) as rounds:
        while not storage.is_pushed:
            await anext(rounds)


def lose_pushes(url: str) -> None:
    function = sql(url, "SELECT pg_get_functiondef('safepoint.request_cancel'::regproc)")[0][0]
    sql(url, str(function).replace("pg_notify('safepoint_'", "pg_notify('nobody_'"))


async def stops(there: Worker, managed: ManagedRun) -> None:
    cancelled = await there.cancel(managed.id)
    assert (cancelled.outcome, cancelled.durable) == ("stopped", True)
    fields = {"askId", "touched", "orphans", "usage", "cutUsage", "nextUsage", "stoppedAt"}
    assert fields == set(cancelled.receipt_fields)
    assert (await over(managed)).outcome == "cancelled"


def test_a_push_alone_is_enough(url: str) -> None:
    async def main() -> None:
        async with cluster(PostgresStorage(url, lease=NEVER), PostgresStorage(url)) as (here, there, managed):
            await pushed(here.storage)
            await stops(there, managed)

    asyncio.run(main())


def test_without_a_push_the_renewal_of_the_lease_is_enough(url: str) -> None:
    async def main() -> None:
        async with cluster(PostgresStorage(url, lease=2.0), PostgresStorage(url)) as (here, there, managed):
            await pushed(here.storage)
            lose_pushes(url)
            await stops(there, managed)

    asyncio.run(main())


def test_without_a_push_or_a_renewal_the_beat_is_enough(url: str) -> None:
    async def main() -> None:
        workers = PostgresStorage(url, lease=NEVER), PostgresStorage(url)
        async with cluster(*workers, beat=0.5) as (here, there, managed):
            await pushed(here.storage)
            lose_pushes(url)
            await stops(there, managed)

    asyncio.run(main())


def test_without_a_listener_on_either_side_the_rows_are_looked_at(url: str) -> None:
    async def main() -> None:
        workers = (PostgresStorage(url, lease=NEVER, listen_url=NOBODY) for _ in range(2))
        async with cluster(*workers) as (here, there, managed):
            await stops(there, managed)
            assert (here.manager.is_pushed, there.manager.is_pushed) == (False, False)

    asyncio.run(main())


def test_a_listener_that_is_cut_off_misses_no_request(server: PostgresServer, url: str) -> None:
    async def main() -> None:
        with TcpProxy(server.port).running() as proxy:
            through = server.url(url.rpartition("/")[2], proxy.port)
            owner = PostgresStorage(url, lease=NEVER, listen_url=through)
            async with cluster(owner, PostgresStorage(url)) as (here, there, managed):
                await pushed(here.storage)
                proxy.cut_all()
                await stops(there, managed)

    asyncio.run(main())


def test_a_request_that_could_not_be_stored_is_told_as_not_durable(server: PostgresServer, url: str) -> None:
    async def main() -> None:
        with TcpProxy(server.port).running() as proxy:
            through = server.url(url.rpartition("/")[2], proxy.port)
            asker = PostgresStorage(through, listen_url=url, patience=300.0)
            async with cluster(PostgresStorage(url, lease=NEVER), asker) as (here, there, managed):
                record = await asker.runs.get(managed.id)
                assert record is not None
                await pushed(asker)
                proxy.silent = True
                [told] = await cancel_records(there.manager, [record], PATIENT, Reason("enough"))
                assert (told.outcome, told.durable) == (None, False)
                proxy.silent = False
                proxy.cut_all()
                [told] = await cancel_all(here.manager, [managed], PATIENT, Reason("enough"))
                assert (told.outcome, told.durable) == ("stopped", True)

    asyncio.run(main())


def test_a_run_whose_owner_is_dead_is_settled_by_the_cancel(url: str) -> None:
    async def main() -> None:
        async with cluster(PostgresStorage(url, lease=NEVER), PostgresStorage(url)) as (here, there, managed):
            await here.sweeper.stop()
            gone = "UPDATE safepoint.workers SET lease_until = clock_timestamp() - interval '1 s' WHERE id = %s"
            sql(url, gone, here.storage.worker)
            cancelled = await there.cancel(managed.id)
            assert (cancelled.outcome, cancelled.durable) == ("stopped", True)
            record = await there.storage.runs.get(managed.id)
            assert record is not None
            assert (record.state, record.outcome, record.epoch) == (RunState.ENDED, "cancelled", 1)
            managed.ask(StopRequest().at, Reason("it was taken over"))
            await managed.over.wait()

    asyncio.run(main())


def test_a_worker_without_its_database_stops_its_runs_before_another_has_them(server: PostgresServer, url: str) -> None:
    async def main() -> None:
        with TcpProxy(server.port).running() as proxy:
            through = server.url(url.rpartition("/")[2], proxy.port)
            owner = PostgresStorage(through, lease=2.0, deadline=1.0, patience=2.0)
            async with cluster(owner, PostgresStorage(url)) as (_, there, managed):
                proxy.silent = True
                while not await there.storage.runs.orphans():
                    assert managed.reason in (None, OUT_OF_REACH)
                request = managed.run.node.request()
                assert managed.reason == OUT_OF_REACH or (request is not None and request.reason == OUT_OF_REACH)
                await there.sweeper.once()
                assert (await over(there.manager.runs[managed.id])).outcome == "end_turn"
                proxy.silent = False
                proxy.cut_all()
                await managed.over.wait()
                record = await there.storage.runs.get(managed.id)
                assert record is not None
                assert (record.outcome, record.epoch, record.owner) == ("end_turn", 1, there.storage.worker)

    asyncio.run(main())

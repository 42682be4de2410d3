"""Who is alive, and how a worker hears of what others have written: by a push, or by looking."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from safepoint.storage import operations as op
from safepoint.storage.lease import Process
from safepoint.storage.postgres.storage import PostgresStorage
from safepoint.storage.postgres.worker_lease import LeaseState, WorkerLease
from safepoint.storage.protocol import Storage
from safepoint.storage.run_records import RunState
from safepoint.testing.conformance.storage_maker import record
from tests.storage.postgres.postgres_server import PostgresServer
from tests.storage.postgres.tcp_proxy import TcpProxy
from tests.storage.postgres.test_postgres_storage import sql, stored

pytestmark = pytest.mark.postgres


def two(url: str, body: Callable[[PostgresStorage, PostgresStorage], Awaitable[None]], **options: object) -> None:
    async def main() -> None:
        one, other = (PostgresStorage(url, **options) for _ in range(2))  # type: ignore[arg-type]  # options of it
        try:
            async with asyncio.timeout(50):
                await body(one, other)
        finally:
            await one.aclose()
            await other.aclose()

    asyncio.run(main())


# -- leases ------------------------------------------------------------------------------------------------------------


def test_a_lease_counts_from_when_its_renewal_was_sent() -> None:
    now = 100.0
    lease = WorkerLease(9.0, clock=lambda: now)
    assert (lease.state, lease.begun) == (LeaseState.HELD, False)
    lease.renewed(100.0)
    for now, state in ((105.9, "held"), (106.1, "doubtful"), (108.9, "doubtful"), (109.0, "over"), (500.0, "over")):
        assert lease.state == state, now
    lease.renewed(499.0)
    lease.renewed(300.0)  # an older answer that comes late
    assert lease.left() == 8.0


def test_a_lease_is_renewed_while_its_owner_does_nothing_and_without_a_row_for_each_run(url: str) -> None:
    async def body(storage: PostgresStorage) -> None:
        for number in range(50):
            await storage.runs.accept(record(storage, f"run_{number}", f"s{number}"), since=0)
        written = storage.transactions
        [(first,)] = sql(url, "SELECT lease_until FROM safepoint.workers")
        async with storage.changes(worker=storage.worker) as rounds:
            for _ in range(4):  # each renewal is a round
                await anext(rounds)
        [(later,)] = sql(url, "SELECT lease_until FROM safepoint.workers")
        assert later > first  # type: ignore[operator]  # times
        assert storage.lease.state is LeaseState.HELD
        assert storage.transactions == written
        assert sql(url, "SELECT count(*) FROM safepoint.workers") == [(1,)]

    stored(url, body, lease=1.0)


def test_what_a_process_owned_that_is_gone_from_this_machine_is_free_at_once(url: str) -> None:
    async def body(one: PostgresStorage, other: PostgresStorage) -> None:
        await one.sessions.create("s", {})
        await one.sessions.claim("s", "me")
        await one.runs.accept(record(one), since=0)
        here = Process.current()
        gone = Process(here.boot, here.namespace, 999_999_999, "never")
        sql(url, "UPDATE safepoint.workers SET process = %s", str(gone))
        await other.sessions.claim("s", "another")
        assert [each.run_id for each in await other.runs.orphans()] == ["run_1"]

    two(url, body, lease=300.0)


@pytest.mark.parametrize("elsewhere", ["another boot", "another namespace"])
def test_a_pid_of_another_boot_or_namespace_says_nothing(url: str, elsewhere: str) -> None:
    async def body(one: PostgresStorage, other: PostgresStorage) -> None:
        await one.runs.accept(record(one), since=0)
        here = Process.current()
        boot, namespace = (elsewhere, here.namespace) if "boot" in elsewhere else (here.boot, elsewhere)
        sql(url, "UPDATE safepoint.workers SET process = %s", str(Process(boot, namespace, 999_999_999, "never")))
        assert await other.runs.orphans() == []

    two(url, body, lease=300.0)


def test_a_worker_that_closes_in_order_frees_what_it_owned(url: str) -> None:
    async def body(one: PostgresStorage, other: PostgresStorage) -> None:
        await one.runs.accept(record(one), since=0)
        assert await other.runs.orphans() == []
        await one.aclose()
        assert [each.run_id for each in await other.runs.orphans()] == ["run_1"]
        await other.runs.take("run_1", other.worker, epoch=0)
        await other.runs.move("run_1", RunState.ENDED, epoch=1)
        await other.aclose()
        sql(url, "SELECT safepoint.tidy()")
        assert sql(url, "SELECT count(*) FROM safepoint.workers") == [(0,)]

    two(url, body, lease=300.0)


# -- pushes ------------------------------------------------------------------------------------------------------------


async def listening(storage: PostgresStorage) -> None:
    async with storage.changes(worker=storage.worker) as rounds:
        await anext(rounds)
        while not storage.is_pushed:
            await anext(rounds)


@asynccontextmanager
async def woken(rounds: AsyncIterator[None]) -> AsyncGenerator[None]:
    """What is done inside wakes whoever waits: it is left only then."""
    waiting = asyncio.ensure_future(anext(rounds))
    try:
        await asyncio.sleep(0)
        yield
        await waiting
    finally:
        waiting.cancel()


async def hears(owner: PostgresStorage, asking: Storage, *, run_id: str = "run_1") -> None:
    """A request that is stored there wakes the owner here, who acknowledges it."""
    async with owner.changes(worker=owner.worker) as rounds:
        await anext(rounds)
        async with woken(rounds):
            number = await asking.runs.request_cancel(run_id, {"id": "ask"})
        while not (found := await owner.runs.unheard_cancels(owner.worker)):
            await anext(rounds)
        assert [each.number for each in found] == [number]
        await owner.runs.acknowledge_cancel(number)
        assert await owner.runs.unheard_cancels(owner.worker) == []


def test_a_request_is_pushed_to_the_owner_of_its_run(url: str) -> None:
    async def body(owner: PostgresStorage, asking: PostgresStorage) -> None:
        await owner.runs.accept(record(owner), since=0)
        await listening(owner)
        await hears(owner, asking)  # the lease is long: no poll comes in the time of this test

    two(url, body, lease=300.0)


def test_a_request_whose_push_is_lost_is_heard_with_the_next_renewal(url: str) -> None:
    async def body(owner: PostgresStorage, asking: PostgresStorage) -> None:
        await owner.runs.accept(record(owner), since=0)
        await listening(owner)
        pushed = sql(url, "SELECT pg_get_functiondef('safepoint.request_cancel'::regproc)")[0][0]
        sql(url, str(pushed).replace("pg_notify('safepoint_'", "pg_notify('nobody_'"))
        await hears(owner, asking)

    two(url, body, lease=1.0)


def test_without_a_listener_the_owner_polls(server: PostgresServer, url: str) -> None:
    async def body(owner: PostgresStorage, asking: PostgresStorage) -> None:
        await owner.runs.accept(record(owner), since=0)
        await hears(owner, asking)
        assert not owner.is_pushed

    two(url, body, lease=300.0, listen_url="postgresql://safepoint@127.0.0.1:1/nothing")


def test_a_listener_that_was_cut_off_looks_once_when_it_is_back(server: PostgresServer, url: str) -> None:
    async def main() -> None:
        with TcpProxy(server.port).running() as proxy:
            through = server.url(url.rpartition("/")[2], proxy.port)
            owner, asking = PostgresStorage(url, lease=300.0, listen_url=through), PostgresStorage(url)
            await owner.runs.accept(record(owner), since=0)
            await listening(owner)
            proxy.cut_all()
            await asking.runs.request_cancel("run_1", {"id": "ask"})
            async with asyncio.timeout(20), owner.changes(worker=owner.worker) as rounds:
                async for _ in rounds:
                    if owner.is_pushed and await owner.runs.unheard_cancels(owner.worker):
                        break
            await owner.aclose()
            await asking.aclose()

    asyncio.run(main())


def test_whoever_waits_for_a_run_elsewhere_is_pushed_its_end_and_the_answer_to_a_request(url: str) -> None:
    async def body(owner: PostgresStorage, asking: PostgresStorage) -> None:
        await owner.runs.accept(record(owner), since=0)
        await listening(asking)
        async with asking.changes(run="run_1") as rounds:
            await anext(rounds)
            async with woken(rounds):
                number = await asking.runs.request_cancel("run_1", {"id": "ask"})
            async with woken(rounds):
                await owner.runs.answer_cancel(number, {"outcome": "stopped"})
            while await asking.runs.cancel_answer(number) is None:
                await anext(rounds)
            async with woken(rounds):
                await owner.runs.move("run_1", RunState.ENDED, epoch=0)
            while (found := await asking.runs.get("run_1")) is not None and not found.ended:
                await anext(rounds)
        assert sql(url, "SELECT count(*) FROM safepoint.watches") in ([(1,)], [(0,)])

    two(url, body, lease=300.0)


def test_a_commit_that_nobody_watches_sends_no_push(url: str) -> None:
    async def body(one: PostgresStorage, other: PostgresStorage) -> None:
        await listening(other)
        before = other._service.listener.heard  # pyright: ignore[reportPrivateUsage]  # what it counts
        await one.sessions.create("s", {})
        await one.commit(op.ClaimSession("s", "me"), op.AcceptRun(record(one, "run_1", "s"), 0.0))
        await one.runs.move("run_1", RunState.ENDED, epoch=0)
        await one.runs.accept(record(one, "run_2", "t"), since=0)
        async with other.changes(run="run_2") as rounds:
            await anext(rounds)
            await one.runs.move("run_2", RunState.ENDED, epoch=0)
            await anext(rounds)
        assert other._service.listener.heard == before + 1  # pyright: ignore[reportPrivateUsage]  # what it counts

    two(url, body, lease=300.0)

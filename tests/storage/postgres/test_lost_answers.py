"""A connection that dies in COMMIT, a server that restarts, a silent network: nothing is lost or repeated."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import psycopg
import pytest

from safepoint import Agent, tool
from safepoint.agent.journal import Said
from safepoint.errors import StoreError
from safepoint.history.check import check_history
from safepoint.sessions.session import Session
from safepoint.storage import operations as op
from safepoint.storage.loop_data import OpenedLoop
from safepoint.storage.postgres.schema import upgrade
from safepoint.storage.postgres.storage import PostgresStorage
from safepoint.storage.run_records import RunState
from safepoint.storage.shared_state import Note
from safepoint.testing import RuleModel, call, say
from safepoint.testing.conformance.storage_maker import record
from safepoint.testing.conformance.store_samples import said
from tests.storage.postgres.postgres_server import PostgresServer
from tests.storage.postgres.tcp_proxy import TcpProxy

pytestmark = pytest.mark.postgres


def with_proxy(
    server: PostgresServer, url: str, body: Callable[[TcpProxy, PostgresStorage], Awaitable[None]]
) -> TcpProxy:
    async def main(proxy: TcpProxy) -> None:
        storage = PostgresStorage(server.url(url.rpartition("/")[2], proxy.port), deadline=1.0)
        await storage.check()
        try:
            await body(proxy, storage)
        finally:
            await storage.aclose()

    with TcpProxy(server.port).running() as proxy:
        asyncio.run(main(proxy))
    return proxy


EFFECTS: list[str] = []


@tool
async def book(what: str) -> str:
    """Book something."""
    EFFECTS.append(what)
    return "booked"


async def a_run(storage: PostgresStorage, id: str) -> Session:
    model = RuleModel({"go": [call("book", what="a"), call("book", what="b")]}, otherwise=say("done"))
    session = await Session.create(storage, id)
    result = await Agent("worker", model=model, tools=[book]).run("go", session=session)
    assert result.output == "done"
    return session


def test_an_answer_that_is_lost_at_any_statement_of_a_run_repeats_and_loses_nothing(
    server: PostgresServer, url: str
) -> None:
    async def body(proxy: TcpProxy, storage: PostgresStorage) -> None:
        before = proxy.statements
        await a_run(storage, "undisturbed")
        statements = proxy.statements - before
        expected = (await storage.sessions.load("undisturbed")).messages
        assert statements >= 5
        for number in range(1, statements + 1):
            EFFECTS.clear()
            proxy.cut_answer_after(number)
            await a_run(storage, f"s{number}")
            stored = await storage.sessions.load(f"s{number}")
            check_history(stored.messages)
            assert len(stored.messages) == len(expected), f"statement {number}"
            assert sorted(EFFECTS) == ["a", "b"], f"statement {number}"
            assert [run.ended for run in stored.runs] == [True]
        assert proxy.lost == statements

    with_proxy(server, url, body)


def test_every_operation_whose_answer_is_lost_happens_once(server: PostgresServer, url: str) -> None:
    """Also those that have no number, and whose second try would be refused or would add a second row."""

    async def body(proxy: TcpProxy, storage: PostgresStorage) -> None:
        async def lost(*unit: op.Statement[object]) -> tuple[object, ...]:
            proxy.cut_answer_after(1)
            before = proxy.lost
            results = await storage.commit(*unit)
            assert proxy.lost == before + 1
            return results

        (version,) = await lost(op.CreateSession("s", {}))
        assert version == (await storage.sessions.load("s")).version
        (epoch,) = await lost(op.ClaimSession("s", "me"))
        assert isinstance(epoch, int)
        assert (await storage.sessions.load("s")).epoch == epoch
        await lost(op.AppendChanges("s", epoch, [Said(0, said("hi"))], 1), op.AddNote("s", Note(1.0, {})))
        assert len(await storage.shared.notes("s")) == 1
        await lost(op.AddNote("s", Note(2.0, {})))
        assert len(await storage.shared.notes("s")) == 2
        accepted = record(storage, state=RunState.QUEUED)
        assert await lost(op.AcceptRun(accepted, 0.0, only_first=True)) == (accepted,)
        [moved] = await lost(op.MoveRun("run_1", RunState.LIVE, 0))
        assert moved == await storage.runs.get("run_1")
        [taken] = await lost(op.TakeRun("run_1", storage.worker, 0))
        assert taken == await storage.runs.get("run_1")
        [number] = await lost(op.RequestCancel("run_1", {"id": "a"}))
        assert [each.number for each in await storage.runs.cancel_requests("run_1")] == [number]
        [opened] = await lost(op.OpenLoop("loop", "me"))
        assert isinstance(opened, OpenedLoop)
        assert (await storage.loops.open("loop", "me")).epoch == opened.epoch + 1

    with_proxy(server, url, body)


def test_a_connection_that_falls_silent_is_given_up_and_the_statement_sent_again(
    server: PostgresServer, url: str
) -> None:
    async def body(proxy: TcpProxy, storage: PostgresStorage) -> None:
        await storage.sessions.create("s", {})
        proxy.silent = True
        claim = asyncio.ensure_future(storage.sessions.claim("s", "me"))
        await asyncio.sleep(storage.lease.seconds / 20)
        assert not claim.done()
        proxy.silent = False
        async with asyncio.timeout(20):
            await claim

    with_proxy(server, url, body)


def test_a_database_that_stays_away_longer_than_the_patience_is_an_error_that_says_so(server: PostgresServer) -> None:
    async def main() -> None:
        with TcpProxy(server.port).running() as proxy:
            url = server.new_database()
            await upgrade(url)
            storage = PostgresStorage(server.url(url.rpartition("/")[2], proxy.port), patience=0.5)
            await storage.sessions.create("s", {})
        with pytest.raises(StoreError, match="the database was out of reach"):
            await storage.sessions.create("t", {})
        await storage.aclose()

    asyncio.run(main())


@pytest.mark.timeout(120)
def test_a_kill_of_the_database_under_live_runs_fails_none_of_them() -> None:
    server = PostgresServer()

    async def main() -> None:
        url = server.new_database()
        await upgrade(url)
        storage = PostgresStorage(url, deadline=2.0)
        EFFECTS.clear()
        await storage.sessions.create("first", {})
        runs = [asyncio.ensure_future(a_run(storage, f"s{n}")) for n in range(20)]
        await asyncio.to_thread(wait_until, lambda: storage.transactions >= 15)
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(wait_until, lambda: not answers(url))
        await asyncio.to_thread(server.start_again)
        await asyncio.gather(*runs)
        assert sorted(EFFECTS) == ["a"] * 20 + ["b"] * 20
        for n in range(20):
            check_history((await storage.sessions.load(f"s{n}")).messages)
        await storage.aclose()

    try:
        asyncio.run(main())
    finally:
        server.close()


def wait_until(is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < until


def answers(url: str) -> bool:
    try:
        psycopg.connect(url, connect_timeout=1).close()
    except psycopg.OperationalError:
        return False
    return True

"""A served run on PostgreSQL: how many transactions it writes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from safepoint import Agent
from safepoint._core.reasons import Reason
from safepoint.server.config import ServerConfig
from safepoint.serving.apps import Catalog
from safepoint.serving.cancel_requests import StopRequest
from safepoint.serving.cancel_service import cancel_all
from safepoint.serving.run_manager import RunManager
from safepoint.storage.postgres.storage import PostgresStorage
from safepoint.storage.run_records import RunState
from safepoint.testing import ScriptedModel, say, stall
from tests.server.test_transactions import KEY, over, submit

pytestmark = pytest.mark.postgres


def served(url: str, agent: Agent, body: Callable[[RunManager, PostgresStorage], Awaitable[None]]) -> None:
    async def main() -> None:
        storage = PostgresStorage(url)
        manager = RunManager(Catalog.of({"worker": agent}), storage, ServerConfig())
        await manager.create(KEY, {"a": 1})
        try:
            await body(manager, storage)
        finally:
            await storage.aclose()

    asyncio.run(main())


def test_a_plain_served_run_on_a_free_session_writes_twice(url: str) -> None:
    async def body(manager: RunManager, storage: PostgresStorage) -> None:
        for number in range(3):
            before = storage.transactions
            managed = await over(await submit(manager, "hi", idempotencyKey=f"k{number}"))
            assert (managed.outcome, storage.transactions - before) == ("end_turn", 2)
            record = await storage.runs.get(managed.id)
            assert record is not None
            assert (record.state, record.outcome) == (RunState.ENDED, "end_turn")
        assert len((await storage.sessions.load(KEY.stored_as)).messages) == 6

    served(url, Agent("worker", model=ScriptedModel(say("done"), repeat=True)), body)


def test_a_queued_run_writes_three_times(url: str) -> None:
    reached = asyncio.Event()

    async def body(manager: RunManager, storage: PostgresStorage) -> None:
        first = await submit(manager, "go")
        await reached.wait()
        before = storage.transactions
        second = await submit(manager, "more", ifBusy="queue")
        first.ask(StopRequest().at, Reason("enough"))
        await over(first)
        assert (await over(second)).outcome == "end_turn"
        assert storage.transactions - before == 1 + 3  # the end of the first one is among them

    served(url, Agent("worker", model=ScriptedModel([say("x"), stall(reached.set)], say("done"))), body)


def test_a_durable_cancel_request_is_one_more(url: str) -> None:
    reached = asyncio.Event()

    async def body(manager: RunManager, storage: PostgresStorage) -> None:
        before = storage.transactions
        managed = await submit(manager, "go")
        await reached.wait()
        [cancelled] = await cancel_all(manager, [managed], StopRequest(), Reason("enough"))
        assert (cancelled.outcome, cancelled.durable) == ("stopped", True)
        await over(managed)
        assert storage.transactions - before in (2, 3)  # it may share the transaction of the end

    served(url, Agent("worker", model=ScriptedModel([say("x"), stall(reached.set)])), body)

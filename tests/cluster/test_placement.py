"""Free runs find a worker: by a job of the engine, once, in their order, and again if the job is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest

from safepoint import Agent, tool
from safepoint._core.points import SafePoint
from safepoint._core.reasons import Reason
from safepoint.cluster import HANDED_OVER, AlreadyTaken, Engine, Worker, place, work_on
from safepoint.serving.cancel_requests import StopRequest, encode_ask
from safepoint.serving.config import ServingConfig
from safepoint.sessions import MemoryStorage
from safepoint.storage.postgres import schema
from safepoint.storage.postgres.storage import PostgresStorage
from safepoint.storage.run_records import RunRecord, RunState
from safepoint.testing import RuleModel, call, say

pytestmark = pytest.mark.postgres

PATIENCE = 30.0
NAMES = ("one", "other", "single", *(f"m{number}" for number in range(4)), *(f"many{number}" for number in range(30)))


class Gate:
    """A tool that waits until it is opened, and says when it was reached."""

    def __init__(self) -> None:
        self.reached = asyncio.Semaphore(0)
        self.opened = asyncio.Event()
        self.done: list[str] = []

    def agent(self) -> Agent[None, str]:
        @tool
        async def wait(name: str) -> str:
            """Wait for the gate."""
            self.reached.release()
            await self.opened.wait()
            self.done.append(name)
            return "through"

        rules = {name: [call("wait", name=name)] for name in NAMES}
        return Agent("gated", model=RuleModel(rules, otherwise=say("done")), tools=[wait])


@asynccontextmanager
async def opened(url: str, count: int = 2, **options: Any) -> AsyncGenerator[list[PostgresStorage]]:  # Any: of it
    storages = [PostgresStorage(url, **options) for _ in range(count)]
    try:
        async with asyncio.timeout(PATIENCE):
            yield storages
    finally:
        for storage in storages:
            await storage.aclose()


def quick(**more: Any) -> ServingConfig:  # Any: fields
    return ServingConfig(heartbeat_seconds=0.2, shutdown_seconds=2.0, **more)


async def ended(storage: PostgresStorage, run: str) -> RunRecord:
    async with storage.changes(run=run) as changes:
        async for _ in changes:
            record = await storage.runs.get(run)
            if record is not None and record.ended:
                return record
    raise AssertionError


def sql(url: str, text: str) -> list[tuple[Any, ...]]:  # Any: the columns
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(text.encode())
        return cursor.fetchall() if cursor.description is not None else []


def run(body: Callable[[], Coroutine[Any, Any, None]]) -> None:  # Any: what it yields
    asyncio.run(body())


def test_a_placed_run_is_worked_on_and_its_job_is_gone_afterwards(url: str) -> None:
    async def body() -> None:
        async with opened(url) as (here, there):
            agent = Agent("a", model=RuleModel({}, otherwise=say("hello")))
            async with Worker({"a": agent}, here, quick()):
                found = await ended(there, await place(there, "a", "hi", user="u", session="s"))
                assert (found.outcome, found.owner) == ("end_turn", here.worker)
            assert sql(url, "SELECT * FROM procrastinate_jobs WHERE task_name = 'safepoint.work_on'") == []
            assert sql(url, "SELECT * FROM safepoint.placements") == []

    run(body)


def test_the_same_message_under_the_same_key_is_placed_once(url: str) -> None:
    async def body() -> None:
        async with opened(url, 1) as (here,):
            ids = {await place(here, "a", "hi", user="u", session="s", key="once") for _ in range(2)}
            assert len(ids) == 1
            assert len(sql(url, "SELECT * FROM procrastinate_jobs")) == 1

    run(body)


def test_of_any_number_of_callers_one_works_and_the_others_are_told(url: str) -> None:
    async def body() -> None:
        async with opened(url, 3) as (here, there, client):
            gate = Gate()
            sql(url, "UPDATE safepoint.engine SET name = 'external'")  # which starts nothing by itself here
            async with Worker({"a": gate.agent()}, here, quick()), Worker({"a": gate.agent()}, there, quick()):
                id = await place(client, "a", "one", user="u", session="s")
                calls = [work_on(each, id) for each in (here, there) * 5]
                gathering = asyncio.gather(*calls, return_exceptions=True)
                await gate.reached.acquire()
                gate.opened.set()
                found = await gathering
                assert [each for each in found if each == "end_turn"] == ["end_turn"]
                assert sum(isinstance(each, AlreadyTaken) for each in found) == 9
                assert gate.done == ["one"]
                with pytest.raises(AlreadyTaken, match="ended"):
                    await work_on(here, id)

    run(body)


def test_in_one_session_the_run_that_was_accepted_first_is_first_and_others_do_not_wait(url: str) -> None:
    async def body() -> None:
        async with opened(url, 3) as (here, there, client):
            gate = Gate()
            async with Worker({"a": gate.agent()}, here, quick()), Worker({"a": gate.agent()}, there, quick()):
                ids = [await place(client, "a", f"m{number}", user="u", session="s") for number in range(4)]
                other = await place(client, "a", "other", user="u", session="t")
                await gate.reached.acquire()
                await gate.reached.acquire()
                waiting = [await client.runs.get(id) for id in ids[1:]]
                assert [each and each.state for each in waiting] == [RunState.QUEUED] * 3
                gate.opened.set()
                for id in (*ids, other):
                    assert (await ended(client, id)).outcome == "end_turn"
                assert [name for name in gate.done if name != "other"] == ["m0", "m1", "m2", "m3"]

    run(body)


def test_a_run_whose_job_was_deleted_gets_another_one(url: str) -> None:
    async def body() -> None:
        async with opened(url) as (here, client):
            id = await place(client, "a", "hi", user="u", session="s")
            sql(url, "DELETE FROM procrastinate_jobs")
            agent = Agent("a", model=RuleModel({}, otherwise=say("hello")))
            async with Worker({"a": agent}, here, quick()):
                assert (await ended(client, id)).outcome == "end_turn"

    run(body)


def test_an_aborted_job_cancels_its_run_and_says_so(url: str) -> None:
    async def body() -> None:
        async with opened(url) as (here, client):
            gate = Gate()
            async with Worker({"a": gate.agent()}, here, quick()):
                id = await place(client, "a", "one", user="u", session="s")
                await gate.reached.acquire()
                sql(url, "SELECT procrastinate_cancel_job_v1(id, true, false) FROM procrastinate_jobs")
                found = await ended(client, id)
                assert (found.outcome, (found.reason or {})["text"]) == ("cancelled", "its job was aborted")
                assert gate.done == []

    run(body)


def test_a_run_that_waits_for_a_worker_is_cancelled_when_one_comes(url: str) -> None:
    async def body() -> None:
        async with opened(url) as (here, client):
            gate = Gate()
            id = await place(client, "a", "one", user="u", session="s")
            await client.runs.request_cancel(id, encode_ask(StopRequest(at=SafePoint.NOW), Reason("no more")))
            async with Worker({"a": gate.agent()}, here, quick()):
                found = await ended(client, id)
                assert (found.outcome, (found.reason or {})["text"], found.started_at) == ("cancelled", "no more", None)

    run(body)


def test_a_worker_that_leaves_hands_its_runs_over_and_a_cancelled_call_too(url: str) -> None:
    async def body() -> None:
        async with opened(url, 3) as (here, there, client):
            gates = Gate(), Gate()
            async with Worker({"a": gates[0].agent()}, here, quick()):
                id = await place(client, "a", "one", user="u", session="s")
                await gates[0].reached.acquire()
            assert [each.state for each in await client.runs.still_open()] == [RunState.SUSPENDED]
            gates[1].opened.set()
            async with Worker({"a": gates[1].agent()}, there, quick()):
                found = await ended(client, id)
                assert (found.outcome, found.owner) == ("end_turn", there.worker)

    run(body)


def test_an_engine_that_is_cancelled_has_handed_its_run_over(url: str) -> None:
    async def body() -> None:
        async with opened(url) as (here, client):
            sql(url, "UPDATE safepoint.engine SET name = 'external'")
            gate = Gate()
            async with Worker({"a": gate.agent()}, here, quick()):
                id = await place(client, "a", "one", user="u", session="s")
                working = asyncio.ensure_future(work_on(here, id))
                await gate.reached.acquire()
                working.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await working
                found = await client.runs.get(id)
                assert found is not None
                assert (found.state, found.owner) == (RunState.SUSPENDED, "")
                gate.opened.set()
                assert await work_on(here, id) in ("end_turn", HANDED_OVER)
                assert (await ended(client, id)).outcome == "end_turn"

    run(body)


def test_the_worker_of_the_engine_is_replaced_when_it_ends_by_itself(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        async with opened(url) as (here, client):
            agent = Agent("a", model=RuleModel({}, otherwise=say("hello")))
            async with Worker({"a": agent}, here, quick()):
                await ended(client, await place(client, "a", "hi", user="u", session="s"))
                sql(url, "ALTER TABLE procrastinate_jobs RENAME TO away")  # every fetch fails
                while "the job worker has ended and is replaced" not in caplog.text:
                    async with client.changes(worker=client.worker) as rounds:
                        await anext(rounds)
                sql(url, "ALTER TABLE away RENAME TO procrastinate_jobs")
                assert (
                    await ended(client, await place(client, "a", "hi", user="u", session="t"))
                ).outcome == "end_turn"

    run(body)


def test_a_worker_takes_only_runs_of_apps_that_it_has(url: str) -> None:
    async def body() -> None:
        async with opened(url) as (here, client):
            agent = Agent("a", model=RuleModel({}, otherwise=say("hello")))
            async with Worker({"a": agent}, here, quick()):
                strange = await place(client, "b", "hi", user="u", session="s")
                await ended(client, await place(client, "a", "hi", user="u", session="t"))
                found = await client.runs.get(strange)
                assert found is not None
                assert (found.state, found.owner) == (RunState.QUEUED, "")
                waiting = await client.placement.waiting()
                assert [(each.app, each.runs, each.workers) for each in waiting] == [("b", 1, 0)]

    run(body)


def test_tenants_take_turns_however_many_runs_one_of_them_has(url: str) -> None:
    async def body() -> None:
        async with opened(url) as (here, client):
            gate = Gate()
            gate.opened.set()
            for number in range(30):
                await place(client, "a", f"many{number}", user="many", session=f"s{number}")
            await place(client, "a", "single", user="single", session="s")
            async with Worker({"a": gate.agent()}, here, quick(job_slots=1)):
                for record in await client.runs.still_open():
                    await ended(client, record.run_id)
            assert gate.done.index("single") <= 1, gate.done
            assert sorted(gate.done) == sorted([*(f"many{number}" for number in range(30)), "single"])

    run(body)


def test_without_an_engine_workers_look_themselves(url: str) -> None:
    async def body() -> None:
        await schema.upgrade(url, engine=Engine.NONE)
        async with opened(url) as (here, client):
            agent = Agent("a", model=RuleModel({}, otherwise=say("hello")))
            async with Worker({"a": agent}, here, quick()):
                found = await ended(client, await place(client, "a", "hi", user="u", session="s"))
                assert found.outcome == "end_turn"
            assert sql(url, "SELECT * FROM procrastinate_jobs") == []

    run(body)


def test_a_storage_of_one_machine_is_refused_with_a_word_for_it() -> None:
    storage = MemoryStorage()
    with pytest.raises(ValueError, match="postgresql://"):
        Worker({"a": Agent("a", model=RuleModel({}, otherwise=say("hello")))}, storage)
    with pytest.raises(RuntimeError, match="no worker of this storage runs here"):
        asyncio.run(work_on(storage, "run_1"))

"""One look at the book: what is taken over, what is left alone, and what is tried again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest

from safepoint import Agent, ToolContext, tool
from safepoint._core.reasons import Reason
from safepoint.errors import StoreError
from safepoint.server.config import ServerConfig
from safepoint.serving.apps import Catalog
from safepoint.serving.cancel_requests import StopRequest, encode_ask
from safepoint.serving.cancel_service import clear_pause
from safepoint.serving.ids import SessionKey
from safepoint.serving.lease_sweeper import LeaseSweeper
from safepoint.serving.managed_run import ManagedRun
from safepoint.serving.principal import LOCAL
from safepoint.serving.run_manager import RunManager
from safepoint.storage.memory import MemoryStorage
from safepoint.storage.operations import MoveRun, OrphanedRuns, Query, Statement
from safepoint.storage.run_records import RunRecord, RunState
from safepoint.testing import RuleModel, call, say
from tests.server.server_process import message, submission
from tests.virtual import virtual

T = TypeVar("T")
GONE = "a worker that is dead"
KEY = SessionKey("worker", "ann", "s")
SESSION = KEY.stored_as


@tool
async def ask(ctx: ToolContext) -> str:
    """Ask a person."""
    return str(await ctx.interrupt("why?"))


class Durable(MemoryStorage):
    """As if it outlived its process."""

    durable = True
    broken = False
    before_move: Callable[[], Awaitable[None]] | None = None

    async def commit(self, *statements: Statement[Any]) -> tuple[Any, ...]:  # Any: of every result
        if any(isinstance(each, MoveRun) for each in statements):
            first, self.before_move = self.before_move, None
            if first is not None:
                await first()
        return await super().commit(*statements)

    async def read(self, query: Query[T]) -> T:
        if self.broken and isinstance(query, OrphanedRuns):
            raise StoreError("the disk is gone")
        return await super().read(query)


@dataclass
class World:
    """A host, what it stores, and how it looks after others."""

    config: ServerConfig = field(default_factory=ServerConfig)
    storage: Durable = field(default_factory=Durable)

    def __post_init__(self) -> None:
        agent = Agent("worker", model=RuleModel({"ask": call("ask")}, otherwise=say("done")), tools=[ask])
        self.manager = RunManager(Catalog.of({"worker": agent}), self.storage, self.config)
        self.recovery = LeaseSweeper(self.manager)

    async def left(self, run_id: str = "r", **more: Any) -> None:  # Any: fields of a record
        fields: dict[str, Any] = {"state": RunState.LIVE, "created_at": 1.0, "owner": GONE, "session": SESSION, **more}
        await self.storage.runs.accept(RunRecord(run_id, request=message("s", run_id), **fields), since=0)

    async def paused(self) -> RunRecord:
        """Of a run that asks a person."""
        paused = await self.manager.submit(LOCAL, KEY, submission("s", "ask"))
        assert isinstance(paused, ManagedRun)
        await paused.over.wait()
        [record] = await self.storage.runs.find()
        assert record.state is RunState.PAUSED
        return record

    async def look(self) -> dict[str, str | None]:
        """Once, to the end of what it starts; how the runs have ended."""
        await self.recovery.once()
        for managed in list(self.manager.runs.values()):
            await managed.over.wait()
        return {record.run_id: record.outcome for record in await self.storage.runs.find()}

    async def said(self) -> list[str]:
        return [each.text for each in (await self.storage.sessions.load(SESSION)).messages if each.role == "user"]


async def world(**config: Any) -> World:  # Any: fields of it
    made = World(ServerConfig(**config))
    await made.storage.sessions.create(SESSION, {})
    return made


@virtual
async def test_messages_of_one_session_are_run_in_the_order_in_which_they_came() -> None:
    there = await world()
    await there.left("first", created_at=3.0)  # the clocks of two processes need not agree
    await there.left("second", created_at=2.0, state=RunState.SUSPENDED)
    await there.left("third", created_at=1.0, state=RunState.QUEUED)
    assert await there.look() == dict.fromkeys(("first", "second", "third"), "end_turn")
    assert await there.said() == ["first", "second", "third"]


@virtual
async def test_a_session_that_is_busy_in_another_process_is_come_back_to() -> None:
    there = await world()
    await there.left(created_at=time.time())
    await there.storage.sessions.claim(SESSION, "somebody")
    assert await there.look() == {"r": None}
    await there.storage.sessions.release(SESSION, "somebody")
    assert await there.look() == {"r": "end_turn"}


@virtual
async def test_a_run_whose_process_lives_or_that_waits_for_a_person_is_left_alone() -> None:
    there = await world()
    there.storage.alive.add("another worker")
    await there.left("theirs", owner="another worker")
    await there.left("waits", state=RunState.PAUSED, session="worker/ann/t")
    assert await there.look() == {"theirs": None, "waits": None}
    assert {record.epoch for record in await there.storage.runs.find()} == {0}


@virtual
async def test_one_that_nobody_has_started_for_a_minute_is_started() -> None:
    there = await world()
    await there.left("lost", owner=there.storage.worker, created_at=time.time() - 61)
    await there.left("new", owner=there.storage.worker, created_at=time.time())
    assert await there.look() == {"lost": "end_turn", "new": None}


@virtual
async def test_a_run_of_a_deleted_session_or_a_gone_app_does_no_harm() -> None:
    there = await world()
    await there.left("homeless", session="worker/ann/deleted")
    await there.left("appless", session="other/ann/s")
    await there.left("fine", created_at=2.0)
    for _ in range(2):
        ends = {"homeless": "cancelled", "appless": None, "fine": "end_turn"}
        assert await there.look() == ends


@virtual
async def test_what_somebody_wanted_stopped_is_never_started_and_a_wish_for_a_part_is_not_that() -> None:
    there = await world()
    for run_id, request in (("whole", StopRequest()), ("part", StopRequest(node="worker/post:1"))):
        await there.left(run_id)
        await there.storage.runs.request_cancel(run_id, encode_ask(request, Reason("enough")))
    assert await there.look() == {"whole": "cancelled", "part": "end_turn"}
    assert await there.said() == ["part"]


@virtual
async def test_a_wish_that_makes_no_sense_does_not_keep_others_from_being_heard(
    caplog: pytest.LogCaptureFixture,
) -> None:
    there = await world()
    paused = await there.paused()
    await there.storage.runs.request_cancel(paused.run_id, {"reason": "no reason as we write it"})
    await there.storage.runs.request_cancel(paused.run_id, encode_ask(StopRequest(), Reason("enough")))
    await there.recovery.once()
    assert "could not be cancelled as requested" in caplog.text
    known = await there.storage.runs.get(paused.run_id)
    assert known is not None
    assert known.outcome == "cancelled"


@virtual
async def test_a_book_that_fails_is_looked_at_again(caplog: pytest.LogCaptureFixture) -> None:
    there = await world()
    await there.left()
    there.storage.broken = True
    assert await there.look() == {"r": None}
    assert "the disk is gone" in caplog.text
    there.storage.broken = False
    assert await there.look() == {"r": "end_turn"}


@virtual
async def test_a_server_that_leaves_takes_over_nothing() -> None:
    there = await world()
    await there.left()
    assert await there.manager.shut_down()
    assert await there.look() == {"r": None}


@virtual
async def test_a_pause_that_a_new_message_has_closed_meanwhile_is_not_told_as_stopped_by_the_cancel() -> None:
    there = await world()
    manager, record = there.manager, await there.paused()
    clearing = asyncio.create_task(clear_pause(manager, KEY, record, Reason("enough")))
    there.storage.before_move = lambda: there.left(
        "next", created_at=record.created_at + 1, owner=manager.storage.worker
    )
    assert await clearing is None
    known = await there.storage.runs.get(record.run_id)
    assert known is not None
    assert (known.state, known.outcome) == (RunState.ENDED, "interrupted")


@virtual
async def test_a_pause_that_is_cancelled_is_not_taken_for_an_answer() -> None:
    there = await world()
    manager, record = there.manager, await there.paused()
    cleared = await clear_pause(manager, KEY, record, Reason("enough"))
    assert cleared is not None
    left = (await there.storage.sessions.load(SESSION)).runs[-1].checkpoint
    assert left is not None
    assert ([str(entry.state) for entry in left.ledger], left.questions) == (["waiting"], ())
    again = await manager.agent("worker").resume(left)
    assert [question.payload for question in again.questions] == ["why?"]  # it asks, and nobody has said no

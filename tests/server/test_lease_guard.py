"""A worker whose lease runs out starts nothing more, and stops what it has before another worker may have it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from safepoint import Agent, SafePoint, tool
from safepoint._core.reasons import Reason
from safepoint.server.config import ServerConfig
from safepoint.serving.apps import Catalog
from safepoint.serving.ids import SessionKey
from safepoint.serving.lease_guard import OUT_OF_REACH
from safepoint.serving.lease_sweeper import LeaseSweeper
from safepoint.serving.managed_run import ManagedRun
from safepoint.serving.principal import LOCAL
from safepoint.serving.run_manager import RunManager
from safepoint.storage.memory import MemoryStorage
from safepoint.storage.postgres.worker_lease import WorkerLease
from safepoint.storage.run_records import RunState
from safepoint.testing import ScriptedModel, call, say
from tests.server.server_process import submission
from tests.virtual import virtual

KEY = SessionKey("worker", "ann", "s")


class Leased(MemoryStorage):
    """As if it were a database elsewhere. `now`: of the clock of its lease."""

    durable = True
    now = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.lease = WorkerLease(9.0, clock=lambda: self.now)
        self.lease.renewed(0.0)


@dataclass
class World:
    """A run in the middle of a tool, which ends when `finish` is set."""

    model: ScriptedModel
    storage: Leased = field(default_factory=Leased)

    async def begin(self) -> ManagedRun:
        begun, self.finish = asyncio.Event(), asyncio.Event()

        @tool
        async def work() -> str:
            """Work."""
            begun.set()
            await self.finish.wait()
            return "done"

        agent = Agent("worker", model=self.model, tools=[work])
        self.manager = RunManager(Catalog.of({"worker": agent}), self.storage, ServerConfig())
        self.sweeper = LeaseSweeper(self.manager)
        await self.manager.create(KEY, {})
        managed = await self.manager.submit(LOCAL, KEY, submission("s", "go"))
        assert isinstance(managed, ManagedRun)
        await begun.wait()
        return managed

    def look(self, now: float) -> None:
        assert self.sweeper.guard is not None
        self.storage.now = now
        self.sweeper.guard.look()

    async def recorded(self, managed: ManagedRun) -> tuple[RunState, str | None]:
        await managed.over.wait()
        record = await self.storage.runs.get(managed.id)
        assert record is not None
        return record.state, record.outcome


@virtual
async def test_in_doubt_a_run_ends_its_tool_and_calls_no_model() -> None:
    there = World(ScriptedModel(call("work"), say("never")))
    managed = await there.begin()
    there.look(5.9)
    assert managed.run.node.request() is None
    there.look(6.1)
    assert there.finish.is_set() is False, "what has begun goes on"
    there.finish.set()
    assert await there.recorded(managed) == (RunState.SUSPENDED, "cancelled")
    assert (managed.reason, len(there.model.requests)) == (OUT_OF_REACH, 1)


@virtual
async def test_a_lease_that_is_renewed_in_time_costs_a_run_nothing() -> None:
    there = World(ScriptedModel(call("work"), say("fine")))
    managed = await there.begin()
    there.look(6.1)
    there.storage.lease.renewed(6.0)
    there.look(6.2)
    there.finish.set()
    assert await there.recorded(managed) == (RunState.ENDED, "end_turn")


@virtual
async def test_when_the_lease_is_over_a_run_stops_now_and_goes_on_once_the_store_is_back() -> None:
    there = World(ScriptedModel(call("work"), say("fine")))
    managed = await there.begin()
    there.look(9.0)
    assert await there.recorded(managed) == (RunState.SUSPENDED, "cancelled")
    assert managed.reason == OUT_OF_REACH
    there.storage.lease.renewed(10.0)
    there.finish.set()
    await there.sweeper.once()
    again = there.manager.runs[managed.id]
    assert again is not managed
    assert await there.recorded(again) == (RunState.ENDED, "end_turn")


@virtual
async def test_a_lease_that_was_over_and_is_renewed_before_anyone_looked_stops_the_runs_that_it_had() -> None:
    there = World(ScriptedModel(call("work"), say("never")))
    managed = await there.begin()
    there.storage.lease.renewed(30.0)  # the process stood still, and its lease was renewed first
    there.look(30.1)
    assert await there.recorded(managed) == (RunState.SUSPENDED, "cancelled")
    assert managed.reason == OUT_OF_REACH
    there.look(30.2)


@virtual
async def test_a_run_that_was_cancelled_before_is_not_picked_up_again() -> None:
    there = World(ScriptedModel(call("work"), say("never")))
    managed = await there.begin()
    there.look(6.1)
    managed.ask(SafePoint.NOW, Reason("enough"))
    assert await there.recorded(managed) == (RunState.ENDED, "cancelled")
    there.look(9.5)
    await there.sweeper.once()
    assert there.manager.runs[managed.id] is managed

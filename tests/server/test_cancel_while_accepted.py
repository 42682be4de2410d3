"""A cancel of a message whose record is only being stored: what is told of it holds, whatever becomes of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from safepoint import Agent
from safepoint._core.points import SafePoint
from safepoint._core.reasons import Reason
from safepoint.errors import SessionBusy, StoreError
from safepoint.server.config import ServerConfig
from safepoint.serving.apps import Catalog
from safepoint.serving.cancel_requests import StopRequest
from safepoint.serving.cancel_service import cancel_all
from safepoint.serving.ids import SessionKey
from safepoint.serving.managed_run import ManagedRun
from safepoint.serving.principal import LOCAL
from safepoint.serving.run_manager import RunManager
from safepoint.storage.memory import MemoryStorage
from safepoint.storage.operations import AcceptRun, Statement
from safepoint.storage.run_records import RunRecord, RunState
from safepoint.testing import ScriptedModel, stall
from tests.server.server_process import submission
from tests.virtual import virtual

KEY = SessionKey("worker", "ann", "s")


class Held(MemoryStorage):
    """The next record is stored when `go` is set, and never before `sent` is."""

    durable = True

    def __init__(self) -> None:
        super().__init__()
        self.sent, self.go = asyncio.Event(), asyncio.Event()

    async def commit(self, *statements: Statement[Any]) -> tuple[Any, ...]:  # Any: of every result
        """Cancellation: it happens all the same, as in a file."""
        if self.go.is_set() or not any(isinstance(each, AcceptRun) for each in statements):
            return await super().commit(*statements)
        return await asyncio.shield(asyncio.ensure_future(self._commit_later(*statements)))

    async def _commit_later(self, *statements: Statement[Any]) -> tuple[Any, ...]:  # Any: as above
        self.sent.set()
        await self.go.wait()
        return await super().commit(*statements)

    async def add(self, record: RunRecord) -> None:
        """Another process stores a record meanwhile. Cancellation: stored or not."""
        await super().commit(AcceptRun(record, 0.0))


def host_of(storage: Held) -> RunManager:
    agent = Agent("worker", model=ScriptedModel(stall(), repeat=True))
    return RunManager(Catalog.of({"worker": agent}), storage, ServerConfig())


class Race:
    """A message is sent, and cancelled before its record is stored."""

    def __init__(self, at: str, **more: object) -> None:
        self.storage = Held()
        self.manager = host_of(self.storage)
        self._request = submission("s", "hello", **more)
        self._at = at

    async def begin(self) -> str:
        """The id of the run that was asked. Cancellation: that of the test."""
        await self.manager.create(KEY, None)
        self.dispatcher = asyncio.create_task(self.manager.submit(LOCAL, KEY, self._request))
        await self.storage.sent.wait()
        [run] = self.manager.live_of(KEY)
        request = StopRequest(SafePoint.parse(self._at), wait_seconds=60)
        self.canceller = asyncio.create_task(cancel_all(self.manager, [run], request, Reason("enough")))
        await asyncio.sleep(0.1)
        assert not self.canceller.done(), "nothing is told before the record is stored"
        return run.id

    async def record(self, run_id: str) -> tuple[RunState, str | None]:
        """Cancellation: nothing has changed."""
        record = await self.storage.runs.get(run_id)
        assert record is not None
        return record.state, record.outcome


@virtual
async def test_a_message_that_is_accepted_is_a_run_that_was_cancelled() -> None:
    race = Race("now")
    run_id = await race.begin()
    race.storage.go.set()
    assert [(each.run_id, each.outcome, each.durable) for each in await race.canceller] == [(run_id, "stopped", True)]
    managed = await race.dispatcher
    assert isinstance(managed, ManagedRun)
    assert (managed.id, await race.record(run_id)) == (run_id, (RunState.ENDED, "cancelled"))


@virtual
@pytest.mark.parametrize("at", ["now", "after_tools"])
async def test_a_message_that_has_to_wait_after_all_never_gets_its_turn(at: str) -> None:
    race = Race(at, ifBusy="queue")
    run_id = await race.begin()
    await race.storage.add(RunRecord("theirs", KEY.stored_as, RunState.QUEUED, 1.0, "another"))
    race.storage.go.set()
    assert [(each.run_id, each.outcome, each.durable) for each in await race.canceller] == [(run_id, "stopped", True)]
    managed = await race.dispatcher
    assert isinstance(managed, ManagedRun)
    await managed.over.wait()
    assert (managed.id, await race.record(run_id)) == (run_id, (RunState.ENDED, "cancelled"))
    await race.storage.runs.move("theirs", RunState.ENDED, epoch=0)
    assert {record.run_id for record in await race.storage.runs.find()} == {"theirs", run_id}
    assert (await race.storage.sessions.load(KEY.stored_as)).messages == ()


@virtual
async def test_of_a_message_that_is_refused_nobody_is_told_that_it_was_stopped() -> None:
    race = Race("now")
    run_id = await race.begin()
    await race.storage.sessions.claim(KEY.stored_as, "another process")
    race.storage.go.set()
    assert await race.canceller == []
    with pytest.raises(SessionBusy):
        await race.dispatcher
    assert await race.storage.runs.cancel_requests(run_id) == []
    assert await race.storage.runs.find() == []


@virtual
async def test_a_storage_that_does_not_answer_is_no_reason_to_wait_for_ever_or_to_promise_anything() -> None:
    race = Race("now")
    run_id = await race.begin()
    assert [(each.run_id, each.outcome, each.durable) for each in await race.canceller] == [(run_id, None, False)]
    with pytest.raises(StoreError):
        await race.dispatcher
    race.storage.go.set()
    await asyncio.sleep(1)
    assert await race.record(run_id) == (RunState.LIVE, None)
    assert len(await race.storage.runs.cancel_requests(run_id)) == 1, "so it is not taken for a run to go on"

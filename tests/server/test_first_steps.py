"""Between the acceptance of a message and the first step of its run: one that need not wait is live from the start."""

from __future__ import annotations

import asyncio
from typing import Any

from safepoint import Agent
from safepoint._core.points import SafePoint
from safepoint._core.reasons import Reason
from safepoint.errors import SessionBusy
from safepoint.server.config import ServerConfig
from safepoint.serving.apps import Catalog
from safepoint.serving.cancel_requests import StopRequest
from safepoint.serving.cancel_service import cancel_all
from safepoint.serving.ids import SessionKey
from safepoint.serving.managed_run import ManagedRun
from safepoint.serving.principal import LOCAL
from safepoint.serving.run_manager import RunManager
from safepoint.storage.memory import MemoryStorage
from safepoint.storage.run_records import RunState
from safepoint.testing import ScriptedModel, say, stall
from tests.server.server_process import submission
from tests.virtual import virtual

KEY = SessionKey("worker", "ann", "s")


async def hosting(model: ScriptedModel) -> RunManager:
    agent = Agent("worker", model=model)
    manager = RunManager(Catalog.of({"worker": agent}), MemoryStorage(), ServerConfig())
    await manager.create(KEY, None)
    return manager


async def submit(manager: RunManager, text: str, **more: Any) -> ManagedRun:  # Any: fields of the request
    managed = await manager.submit(LOCAL, KEY, submission("s", text, **more))
    assert isinstance(managed, ManagedRun)
    return managed


@virtual
async def test_a_run_that_is_cancelled_before_its_first_step_keeps_its_message() -> None:
    model = ScriptedModel(say("never asked for"))
    manager = await hosting(model)
    submitting = asyncio.ensure_future(submit(manager, "go"))
    await asyncio.sleep(0)
    [managed] = manager.live()
    assert (managed.run.node.started, managed.state) == (False, RunState.LIVE)
    [cancelled] = await cancel_all(manager, [managed], StopRequest(), Reason("changed my mind"))
    assert (cancelled.outcome, managed.outcome, model.calls) == ("stopped", "cancelled", 0)
    assert await submitting is managed
    [record] = await manager.storage.runs.find()
    assert (record.state, record.outcome) == (RunState.ENDED, "cancelled")
    stored = await manager.storage.sessions.load(KEY.stored_as)
    assert [message.role for message in stored.messages] == ["user", "assistant"]
    assert stored.messages[0].text == "go"
    assert "changed my mind" in str(stored.messages[1].parts)


@virtual
async def test_a_message_that_has_to_wait_is_queued_until_its_turn_comes() -> None:
    reached = asyncio.Event()
    manager = await hosting(ScriptedModel([say("x"), stall(reached.set)], say("second")))
    first = await submit(manager, "go")
    await reached.wait()
    second = await submit(manager, "more", ifBusy="queue")
    assert (first.state, second.state) == (RunState.LIVE, RunState.QUEUED)
    first.ask(SafePoint.NOW, Reason("enough"))
    await first.over.wait()
    await second.over.wait()
    assert (first.outcome, second.outcome) == ("cancelled", "end_turn")


@virtual
async def test_a_message_that_came_in_the_same_moment_as_another_waits_and_is_told_as_queued() -> None:
    manager = await hosting(ScriptedModel([say("x"), stall()]))
    first, second = await asyncio.gather(submit(manager, "go"), submit(manager, "more", ifBusy="queue"))
    assert (first.state, second.state) == (RunState.LIVE, RunState.QUEUED)
    [record] = [each for each in await manager.storage.runs.find() if each.run_id == second.id]
    assert record.state is RunState.QUEUED  # so it outlives this process
    second.withdraw(Reason("changed my mind"))
    await second.over.wait()
    assert (second.outcome, first.live) == ("cancelled", True)
    first.ask(SafePoint.NOW, Reason("enough"))
    await first.over.wait()


@virtual
async def test_a_message_that_came_in_the_same_moment_as_another_and_would_not_wait_is_refused() -> None:
    manager = await hosting(ScriptedModel([say("x"), stall()]))
    first, second = await asyncio.gather(
        submit(manager, "go"), submit(manager, "at the same moment"), return_exceptions=True
    )
    assert isinstance(first, ManagedRun)
    assert isinstance(second, SessionBusy)
    assert [record.run_id for record in await manager.storage.runs.find()] == [first.id]
    first.ask(SafePoint.NOW, Reason("enough"))
    await first.over.wait()

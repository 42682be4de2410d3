"""What the host keeps of runs, and what it finds, without a socket."""

from __future__ import annotations

import asyncio
import gc
import weakref
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from safepoint import Agent, Hooks, ToolContext, tool
from safepoint._core.points import SafePoint
from safepoint._core.reasons import Reason, Source
from safepoint.errors import SessionBusy
from safepoint.protocols.adk.events import event_json
from safepoint.server.config import ServerConfig
from safepoint.server.pagination import PageQuery
from safepoint.server.requests import CancelRequest
from safepoint.serving.apps import Catalog
from safepoint.serving.event_publisher import AnyRun
from safepoint.serving.ids import SessionKey
from safepoint.serving.managed_run import ManagedRun
from safepoint.serving.principal import LOCAL, NotFound, Principal
from safepoint.serving.remote_cancel import cancel_records
from safepoint.serving.run_lookup import RunLookup
from safepoint.serving.run_manager import Draining, RunManager
from safepoint.sessions import Session
from safepoint.storage.memory import MemoryStorage
from safepoint.storage.operations import AcceptRun, Query, RunByKey, Statement, TakeRun
from safepoint.storage.run_records import RunRecord, RunState
from safepoint.testing import ScriptedModel, call, say, stall
from tests.server.server_process import submission
from tests.virtual import virtual

T = TypeVar("T")
KEY = SessionKey("worker", "ann", "s")


class Counts(Hooks):
    """Changes the session's state after the answer, so that it is stored with the end."""

    async def after_run(self, run: AnyRun, text: str) -> None:
        assert isinstance(run.session, Session)
        run.session.state["answers"] = 1


def host_of(storage: MemoryStorage | None = None, *hooks: Hooks) -> RunManager:
    agent = Agent("worker", model=ScriptedModel(say("done"), repeat=True), hooks=hooks)
    return RunManager(Catalog.of({"worker": agent}), storage or MemoryStorage(), ServerConfig())


def stalling(storage: MemoryStorage) -> RunManager:
    """Its runs go on until they are stopped."""
    agent = Agent("worker", model=ScriptedModel(stall(), repeat=True))
    return RunManager(Catalog.of({"worker": agent}), storage, ServerConfig())


@virtual
async def test_what_is_open_is_found_however_many_runs_others_have_had_since() -> None:
    storage = MemoryStorage()
    book = storage.runs
    await book.accept(RunRecord("waits", "worker/ann/s", RunState.PAUSED, 1.0, "me"), since=0)
    await book.accept(RunRecord("over", "worker/ann/s", RunState.ENDED, 2.0, "me"), since=0)
    for number in range(1001):
        ended = RunRecord(f"r{number}", "worker/bob/s", RunState.ENDED, 3.0 + number, "me")
        await book.accept(ended, since=0)
    finder = RunLookup(host_of(storage))

    async def found(who: Principal, app: str | None = None, user: str | None = None) -> set[str]:
        return {place.run_id for place, _ in await finder.runs(who, PageQuery(app, user))}

    ann = Principal("ann-laptop", user="ann")
    assert await found(ann) == await found(ann, "worker") == {"waits", "over"}
    assert await found(LOCAL, user="ann") >= {"waits", "over"}
    assert "waits" in await found(LOCAL)
    assert await found(Principal("eve-phone", user="eve")) == set()


@virtual
async def test_a_change_of_state_that_is_refused_does_not_happen_later_either() -> None:
    manager = host_of()
    await manager.create(KEY, {"a": 1})
    await manager.storage.sessions.claim(KEY.stored_as, "another process")
    with pytest.raises(SessionBusy):
        await manager.patch(KEY, {"a": 2, "b": 3})
    await manager.storage.sessions.release(KEY.stored_as, "another process")
    managed = await manager.submit(LOCAL, KEY, submission("s", "hello"))
    assert isinstance(managed, ManagedRun)
    await managed.over.wait()
    assert (await manager.storage.sessions.load(KEY.stored_as)).state == {"a": 1}


@virtual
async def test_a_run_whose_session_is_gone_is_told_as_failed() -> None:
    storage = MemoryStorage()

    @tool
    async def vanish() -> str:
        """Take the session away."""
        await storage.sessions.delete(KEY.stored_as)
        return "gone"

    agent = Agent("worker", model=ScriptedModel(call("vanish"), say("done")), tools=[vanish])
    manager = RunManager(Catalog.of({"worker": agent}), storage, ServerConfig())
    await manager.create(KEY, None)
    managed = await manager.submit(LOCAL, KEY, submission("s", "go"))
    assert isinstance(managed, ManagedRun)
    await managed.over.wait()
    assert managed.outcome == "error"
    assert event_json(managed.feed.whole[-1])["errorCode"] == "SessionNotFound"


class TellsTakes(MemoryStorage):
    def __init__(self) -> None:
        super().__init__()
        self.was_taken = asyncio.Event()

    async def commit(self, *statements: Statement[Any]) -> tuple[Any, ...]:  # Any: of every result
        """Cancellation: there is nothing to wait for."""
        if any(isinstance(each, TakeRun) for each in statements):
            self.was_taken.set()
        return await super().commit(*statements)


@virtual
async def test_a_run_that_waits_for_a_person_is_cancelled_for_all_who_want_it_but_not_for_a_node_of_it() -> None:
    @tool
    async def ask(ctx: ToolContext[None]) -> str:
        """Ask a person."""
        return str(await ctx.interrupt("why?"))

    agent = Agent("worker", model=ScriptedModel(call("ask"), say("done")), tools=[ask])
    storage = TellsTakes()
    manager = RunManager(Catalog.of({"worker": agent}), storage, ServerConfig())
    await manager.create(KEY, None)
    managed = await manager.submit(LOCAL, KEY, submission("s", "go"))
    assert isinstance(managed, ManagedRun)
    await managed.over.wait()

    async def cancel(**body: object) -> list[str | None]:
        found = await manager.storage.runs.still_open(KEY.stored_as)
        request = CancelRequest.model_validate(body).request()
        return [each.outcome for each in await cancel_records(manager, found, request, Reason("enough"))]

    with pytest.raises(NotFound):
        await cancel(node="worker/ask")
    assert [record.state for record in await manager.storage.runs.still_open()] == [RunState.PAUSED]
    first = asyncio.create_task(cancel())
    await storage.was_taken.wait()
    assert list(await asyncio.gather(first, cancel(), cancel())) == [["stopped"]] * 3
    record = await manager.storage.runs.get(managed.id)
    assert record is not None
    assert (record.state, record.outcome) == (RunState.ENDED, "cancelled")


class Durable(MemoryStorage):
    durable = True


class DrainsMeanwhile(MemoryStorage):
    """Its host begins to drain while the first record is stored."""

    manager: RunManager | None = None

    async def commit(self, *statements: Statement[Any]) -> tuple[Any, ...]:  # Any: of every result
        """Cancellation: there is nothing to wait for."""
        results = await super().commit(*statements)
        if self.manager is not None and any(isinstance(each, AcceptRun) for each in statements):
            self.manager.draining = True
        return results


@virtual
async def test_a_message_that_was_refused_runs_when_it_is_sent_again_with_the_same_key() -> None:
    storage = DrainsMeanwhile()
    manager = host_of(storage)
    await manager.create(KEY, None)
    request = submission("s", "hello", idempotencyKey="k", ifBusy="queue")

    await manager.storage.sessions.claim(KEY.stored_as, "another process")
    with pytest.raises(SessionBusy):
        await manager.submit(LOCAL, KEY, replace(request, if_busy="reject"))
    assert await manager.storage.runs.find() == []
    await manager.storage.sessions.release(KEY.stored_as, "another process")

    first = await manager.submit(LOCAL, KEY, submission("s", "first"))
    assert isinstance(first, ManagedRun)
    storage.manager = manager
    with pytest.raises(Draining):
        await manager.submit(LOCAL, KEY, request)
    storage.manager, manager.draining = None, False
    await first.over.wait()

    ran = await manager.submit(LOCAL, KEY, request)
    assert isinstance(ran, ManagedRun)
    await ran.over.wait()
    assert ran.outcome == "end_turn"
    assert await manager.submit(LOCAL, KEY, request) is ran


@virtual
async def test_a_message_that_waits_for_another_process_is_recorded_as_that_and_outlives_this_one() -> None:
    storage = Durable()
    manager, book = host_of(storage), storage.runs
    await manager.create(KEY, None)
    await book.accept(RunRecord("theirs", KEY.stored_as, RunState.LIVE, 1.0, "another"), since=0)
    queued = [await manager.submit(LOCAL, KEY, submission("s", text, ifBusy="queue")) for text in "ab"]
    first, second = [managed for managed in queued if isinstance(managed, ManagedRun)]
    await asyncio.sleep(1)
    assert [managed.state for managed in (first, second)] == [RunState.QUEUED] * 2
    first.ask(SafePoint.NOW, Reason("no more"))
    await first.over.wait()
    assert first.outcome == "cancelled"
    assert await manager.shut_down()
    states = {record.run_id: record.state for record in await book.find()}
    assert states == {"theirs": RunState.LIVE, first.id: RunState.ENDED, second.id: RunState.SUSPENDED}


class AnswersLate(Durable):
    """A key that is looked up is answered a second later, with what was stored when it was asked."""

    async def read(self, query: Query[T]) -> T:
        """Cancellation: nothing has changed."""
        found = await super().read(query)
        if isinstance(query, RunByKey):
            await asyncio.sleep(1)
        return found


async def submit_in_turn(*hosts: RunManager, **more: object) -> list[ManagedRun | RunRecord | BaseException]:
    """What each host says to the same message; each has it before the one before has looked its key up."""
    request = submission("s", "hello", idempotencyKey="k", **more)
    tasks: list[asyncio.Task[ManagedRun | RunRecord]] = []
    for manager in hosts:
        tasks.append(asyncio.create_task(manager.submit(LOCAL, KEY, request)))
        await asyncio.sleep(0.1)
    return await asyncio.gather(*tasks, return_exceptions=True)


@virtual
@pytest.mark.parametrize("if_busy", ["reject", "queue", "interrupt"])
async def test_a_message_that_is_sent_twice_at_once_with_one_key_is_one_run(if_busy: str) -> None:
    manager = stalling(AnswersLate())
    await manager.create(KEY, None)
    first, second, third = await submit_in_turn(manager, manager, manager, ifBusy=if_busy)
    assert isinstance(first, ManagedRun)
    assert first is second is third
    assert [record.run_id for record in await manager.storage.runs.find()] == [first.id]
    assert await manager.shut_down()


@virtual
async def test_of_a_message_that_is_sent_twice_at_once_the_second_is_taken_if_the_first_is_refused() -> None:
    storage = AnswersLate()
    manager = stalling(storage)
    await manager.create(KEY, None)
    await storage.sessions.claim(KEY.stored_as, "another process")
    both = asyncio.create_task(submit_in_turn(manager, manager))
    await asyncio.sleep(1.5)  # the first has its answer, the second looks its key up
    await storage.sessions.release(KEY.stored_as, "another process")
    first, second = await both
    assert isinstance(first, SessionBusy)
    assert isinstance(second, ManagedRun)
    assert await manager.shut_down()


@virtual
async def test_a_message_that_is_sent_to_two_processes_at_once_with_one_key_is_one_run() -> None:
    storage = AnswersLate()
    hosts = stalling(storage), stalling(storage)
    await hosts[0].create(KEY, None)
    first, second = await submit_in_turn(*hosts)
    assert isinstance(first, ManagedRun)
    assert isinstance(second, RunRecord), second
    assert second.run_id == first.id
    assert [record.run_id for record in await storage.runs.find()] == [first.id]
    assert await hosts[0].shut_down()


class BeginsLate(Durable):
    """The beginning of a run is stored a second after it was sent."""

    async def commit(self, *statements: Statement[Any]) -> tuple[Any, ...]:  # Any: of every result
        """Cancellation: it happens all the same."""
        if any(isinstance(each, AcceptRun) for each in statements):
            return await asyncio.shield(asyncio.ensure_future(self._commit_late(*statements)))
        return await super().commit(*statements)

    async def _commit_late(self, *statements: Statement[Any]) -> tuple[Any, ...]:  # Any: as above
        """Cancellation: nothing is stored."""
        await asyncio.sleep(1)
        return await super().commit(*statements)


@virtual
async def test_a_message_whose_sender_left_while_it_was_accepted_is_found_by_its_key() -> None:
    manager = stalling(BeginsLate())
    await manager.create(KEY, None)
    request = submission("s", "hello", idempotencyKey="k")
    left = asyncio.create_task(manager.submit(LOCAL, KEY, request))
    await asyncio.sleep(0.5)
    left.cancel()
    await asyncio.wait({left})
    again = await manager.submit(LOCAL, KEY, request)
    assert isinstance(again, ManagedRun)
    assert [record.run_id for record in await manager.storage.runs.find()] == [again.id]
    assert await manager.shut_down()


class Overtaken(Durable):
    """Another process is a moment faster than this one, which did not see it come."""

    async def commit(self, *statements: Statement[Any]) -> tuple[Any, ...]:  # Any: of every result
        """Cancellation: there is nothing to wait for."""
        for accept in [each for each in statements if isinstance(each, AcceptRun)]:
            record = accept.record
            if await self.runs.get("theirs") is None:
                theirs = RunRecord("theirs", record.session, RunState.QUEUED, record.created_at + 1, "another")
                await super().commit(AcceptRun(theirs, accept.since))
        return await super().commit(*statements)


@virtual
async def test_of_two_messages_that_come_to_two_processes_at_once_the_later_one_waits() -> None:
    storage = Overtaken()
    manager, book = host_of(storage), storage.runs
    await manager.create(KEY, None)
    managed = await manager.submit(LOCAL, KEY, submission("s", "hello", ifBusy="queue"))
    assert isinstance(managed, ManagedRun)
    await asyncio.sleep(1)
    assert managed.state is RunState.QUEUED
    await book.move("theirs", RunState.LIVE, epoch=0)
    await asyncio.sleep(1)
    assert managed.state is RunState.QUEUED
    await book.move("theirs", RunState.ENDED, epoch=0)
    await managed.over.wait()
    assert managed.outcome == "end_turn"


@virtual
async def test_a_message_that_interrupts_stops_the_live_run_also_if_it_waits_for_another_process() -> None:
    storage = Durable()
    book = storage.runs
    agent = Agent("worker", model=ScriptedModel(stall(), say("done")))
    manager = RunManager(Catalog.of({"worker": agent}), storage, ServerConfig())
    await manager.create(KEY, None)
    live = await manager.submit(LOCAL, KEY, submission("s", "go"))
    assert isinstance(live, ManagedRun)
    await asyncio.sleep(1)
    await book.accept(RunRecord("theirs", KEY.stored_as, RunState.QUEUED, 1.0, "another"), since=0)
    managed = await manager.submit(LOCAL, KEY, submission("s", "now", ifBusy="interrupt"))
    assert isinstance(managed, ManagedRun)
    await live.over.wait()
    assert live.reason is not None
    assert (live.outcome, live.reason.source, managed.state) == ("cancelled", Source.PREEMPT, RunState.QUEUED)
    await book.move("theirs", RunState.ENDED, epoch=0)
    await managed.over.wait()
    assert managed.outcome == "end_turn"


@virtual
async def test_who_deletes_a_session_also_stops_what_comes_while_its_run_ends() -> None:
    @tool(on_cancel="finish", grace=5)
    async def finish() -> str:
        """Take a while to end."""
        await asyncio.sleep(2)
        return "done"

    model = ScriptedModel(call("finish"), say("done"), repeat=True)
    agent = Agent("worker", model=model, tools=[finish])
    manager = RunManager(Catalog.of({"worker": agent}), MemoryStorage(), ServerConfig())
    await manager.create(KEY, None)
    await manager.submit(LOCAL, KEY, submission("s", "go"))
    await asyncio.sleep(1)
    deleting = asyncio.create_task(manager.delete(KEY))
    await asyncio.sleep(0.5)
    waits = await manager.submit(LOCAL, KEY, submission("s", "more", ifBusy="queue"))
    assert isinstance(waits, ManagedRun)
    await deleting
    assert (waits.outcome, model.calls, manager.live()) == ("cancelled", 1, [])


@virtual
async def test_a_run_that_is_over_and_forgotten_is_let_go() -> None:
    manager = host_of()
    await manager.create(KEY, None)
    managed = await manager.submit(LOCAL, KEY, submission("s", "hello"))
    assert isinstance(managed, ManagedRun)
    assert managed.task is not None
    await managed.task
    manager.runs.clear()  # as after a thousand more of them
    kept = weakref.ref(managed)
    del managed
    gc.collect()
    assert kept() is None


@virtual
async def test_what_changes_with_the_end_is_told_by_an_event_that_is_told() -> None:
    manager = host_of(None, Counts())
    await manager.create(KEY, None)
    managed = await manager.submit(LOCAL, KEY, submission("s", "hello"))
    assert isinstance(managed, ManagedRun)
    await managed.over.wait()
    assert [event.state for event in managed.feed.whole] == [{"answers": 1}]

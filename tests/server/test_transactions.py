"""How many write transactions a served run costs, counted at the writer of a SQLite storage."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from safepoint import Agent, tool
from safepoint._core.reasons import Reason
from safepoint.agent.tool_context import ToolContext
from safepoint.server.app import create_app
from safepoint.server.config import ServerConfig
from safepoint.serving.apps import Catalog
from safepoint.serving.cancel_requests import StopRequest
from safepoint.serving.cancel_service import cancel_all
from safepoint.serving.ids import SessionKey
from safepoint.serving.managed_run import ManagedRun
from safepoint.serving.principal import LOCAL
from safepoint.serving.run_manager import RunManager
from safepoint.sessions import MemoryStore, SqliteStore
from safepoint.sessions.session import Session
from safepoint.storage.memory import MemoryStorage
from safepoint.storage.run_records import RunState
from safepoint.storage.session_data import Change
from safepoint.storage.sqlite.storage import SqliteStorage
from safepoint.testing import RuleModel, ScriptedModel, call, run_virtual, say, stall
from tests.server.server_process import submission
from tests.testing.plain_store import PlainStore

KEY = SessionKey("worker", "ann", "s")


@tool
async def look(x: int) -> str:
    """Look."""
    return f"seen {x}"


@tool
async def remember(ctx: ToolContext[None]) -> str:
    """Change what all sessions of the user share."""
    assert isinstance(ctx.session, Session)
    ctx.session.state["user:seen"] = ctx.session.state.get("user:seen", 0) + 1
    return "kept"


def served(folder: Path, agent: Agent, body: Callable[[RunManager, SqliteStorage], Awaitable[None]]) -> None:
    async def main() -> None:
        storage = SqliteStorage(folder / "safepoint.db")
        manager = RunManager(Catalog.of({"worker": agent}), storage, ServerConfig())
        await manager.create(KEY, {"a": 1})
        try:
            await body(manager, storage)
        finally:
            await storage.aclose()

    run_virtual(main)


async def submit(manager: RunManager, text: str, **more: Any) -> ManagedRun:  # Any: fields of the request
    managed = await manager.submit(LOCAL, KEY, submission("s", text, **more))
    assert isinstance(managed, ManagedRun)
    return managed


async def over(managed: ManagedRun) -> ManagedRun:
    assert managed.task is not None
    await managed.task
    return managed


@pytest.mark.parametrize("more", [{}, {"ifBusy": "queue"}, {"idempotencyKey": "k"}, {"stateDelta": {"user:x": 1}}])
def test_a_plain_run_on_a_free_session_writes_twice(tmp_path: Path, more: dict[str, Any]) -> None:
    async def body(manager: RunManager, storage: SqliteStorage) -> None:
        for number in range(3):
            given = {**more, "idempotencyKey": f"k{number}"} if "idempotencyKey" in more else more
            before = storage.transactions
            managed = await over(await submit(manager, "hi", **given))
            assert (managed.outcome, storage.transactions - before) == ("end_turn", 2)
            record = await storage.runs.get(managed.id)
            assert record is not None
            assert (record.state, record.outcome) == (RunState.ENDED, "end_turn")
        assert len((await storage.sessions.load(KEY.stored_as)).messages) == 6

    served(tmp_path, Agent("worker", model=ScriptedModel(say("done"), repeat=True)), body)


def test_a_run_on_a_session_that_was_just_loaded_writes_twice_too(tmp_path: Path) -> None:
    agent = Agent("worker", model=ScriptedModel(say("done"), repeat=True))

    async def body(manager: RunManager, storage: SqliteStorage) -> None:
        await over(await submit(manager, "hi"))
        other = RunManager(Catalog.of({"worker": agent}), storage, ServerConfig())
        before = storage.transactions
        assert (await over(await submit(other, "hi"))).outcome == "end_turn"
        assert storage.transactions - before == 2
        before = storage.transactions  # and here others have written since
        assert (await over(await submit(manager, "hi"))).outcome == "end_turn"
        assert storage.transactions - before == 3

    served(tmp_path, agent, body)


def test_a_queued_run_writes_three_times(tmp_path: Path) -> None:
    reached = asyncio.Event()

    async def body(manager: RunManager, storage: SqliteStorage) -> None:
        first = await submit(manager, "go")
        await reached.wait()
        before = storage.transactions
        second = await submit(manager, "more", ifBusy="queue")
        first.ask(StopRequest().at, Reason("enough"))
        await over(first)
        assert (await over(second)).outcome == "end_turn"
        assert storage.transactions - before == 1 + 3  # the end of the first one is among them

    served(tmp_path, Agent("worker", model=ScriptedModel([say("x"), stall(reached.set)], say("done"))), body)


def test_a_durable_cancel_request_is_one_more(tmp_path: Path) -> None:
    reached = asyncio.Event()

    async def body(manager: RunManager, storage: SqliteStorage) -> None:
        before = storage.transactions
        managed = await submit(manager, "go")
        await reached.wait()
        [cancelled] = await cancel_all(manager, [managed], StopRequest(), Reason("enough"))
        assert (cancelled.outcome, cancelled.durable) == ("stopped", True)
        await over(managed)
        assert storage.transactions - before in (2, 3)  # it may share the transaction of the end

    served(tmp_path, Agent("worker", model=ScriptedModel([say("x"), stall(reached.set)])), body)


def test_calls_of_one_pass_of_the_loop_start_in_one_transaction(tmp_path: Path) -> None:
    """The reply, the starts of both calls, and their ends, which come in one pass too; then the answer ends the run."""
    model = RuleModel({"go": [call("look", x=1), call("look", x=2)]}, otherwise=say("done"))

    async def body(manager: RunManager, storage: SqliteStorage) -> None:
        before = storage.transactions
        managed = await over(await submit(manager, "go"))
        assert managed.outcome == "end_turn"
        assert storage.transactions - before <= 2 + 3

    served(tmp_path, Agent("worker", model=model, tools=[look]), body)


def test_what_a_run_did_to_shared_state_is_stored_with_its_end(tmp_path: Path) -> None:
    model = RuleModel({"go": call("remember")}, otherwise=say("done"))

    async def body(manager: RunManager, storage: SqliteStorage) -> None:
        for number in (1, 2):
            managed = await over(await submit(manager, "go"))
            assert managed.outcome == "end_turn"
            assert await storage.shared.shared(["worker/ann"]) == {"user:seen": number}
            assert [event.state for event in managed.feed.whole][-2:].count({"user:seen": number}) == 1
        assert (await storage.sessions.load(KEY.stored_as)).state == {"a": 1}

    served(tmp_path, Agent("worker", model=model, tools=[remember]), body)


def test_a_server_takes_a_whole_storage_and_refuses_anything_less(tmp_path: Path) -> None:
    agents = {"worker": Agent("worker", model=ScriptedModel())}
    store = SqliteStore(tmp_path / "a.db")
    assert create_app(agents, store=store).state.manager.storage is store.storage
    memory = MemoryStorage()
    assert create_app(agents, storage=memory).state.manager.storage is memory
    assert create_app(agents, store=memory).state.manager.storage is memory
    kept = MemoryStore()
    assert create_app(agents, store=kept).state.manager.storage is kept.storage
    lacks = r"PlainStore.*lacks sessions, runs, shared, freezes, audit, loops, changes, commit"
    with pytest.raises(TypeError, match=lacks):
        create_app(agents, store=PlainStore())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # what is refused
    with pytest.raises(TypeError, match="write one of them"):
        create_app(agents, storage=memory, store=store)
    asyncio.run(store.aclose())


class AuditedStore(MemoryStore):
    """A store whose author looks at every write."""

    async def append(self, session_id: str, epoch: int, changes: Sequence[Change]) -> None:
        raise AssertionError("a server would never come here")


def test_a_server_refuses_a_store_whose_own_methods_it_would_pass_by() -> None:
    agents = {"worker": Agent("worker", model=ScriptedModel())}
    with pytest.raises(TypeError, match=r"AuditedStore replaces append, which a server would not call"):
        create_app(agents, store=AuditedStore())

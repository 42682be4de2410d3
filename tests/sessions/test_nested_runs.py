"""Runs inside a run: what a crash, or a call that comes back late, leaves of sub-agents and children of composites."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from safepoint import (
    Agent,
    Budget,
    Hooks,
    Ladder,
    Loop,
    Message,
    Notice,
    Parallel,
    Resume,
    Sequential,
    Text,
    ToolContext,
    ToolResult,
    tool,
)
from safepoint.agent.base import BaseAgent
from safepoint.sessions import MemoryStore, Session, SqliteStore, Store
from safepoint.testing import call, pass_time, run_virtual, say
from tests.injection.parts import StepModel
from tests.sessions.stores import Wrapped, both_stores, opened
from tests.sessions.test_crashes import Holding, World, left_by_a_crash
from tests.virtual import rounds

# What a child of a composite sees too. A notice is no step, so the models begin with their first reply all the same.
PAST = [Message("user", (Text("before"),)), Message("assistant", (Notice("It was stopped."),))]
AnyAgent = BaseAgent[Any, Any]  # Any: composites have outputs of every type


@tool
async def asks(ctx: ToolContext) -> str:
    """Ask."""
    return str(await ctx.interrupt("may I?"))


def around(shape: str, *inside: AnyAgent) -> AnyAgent:
    """The agents, at work at the same time inside another one."""
    if shape == "composite":
        return Parallel("around", inside)
    calls = [call(each.name, input="go") for each in inside]
    return Agent("around", model=StepModel(calls, say("done")), tools=[each.as_tool() for each in inside])


@both_stores
@pytest.mark.parametrize("shape", ["composite", "sub-agents", "deep"])
def test_a_run_inside_goes_on_where_it_was_when_the_process_died(kind: str, shape: str, tmp_path: Path) -> None:
    async def main() -> None:
        world = World()
        model = StepModel(call("post", x=1), call("slow"), call("post", x=2), say("done"))
        worker = Agent("worker", model=model, tools=[world.post, world.slow])
        if shape == "deep":
            top = around("composite", around("sub-agents", Loop("loop", worker, max_rounds=1)))
        else:
            top = around(shape, worker)
        async with opened(kind, tmp_path) as store:
            session = await Session.create(store, "s", history=PAST)
            async with top.start("go", session=session) as run:
                await world.waiting.wait()
                left = await left_by_a_crash(store)
                run.cancel()
            assert [str(entry.state) for entry in left.ledger] == ["stopped"]
            world.gate.set()
            result = await top.resume(left)
        assert (str(result.stop_reason), world.posted) == ("end_turn", [1, 2])
        assert not any("Safepoint" in str(message) for request in model.requests for message in request.messages)

    run_virtual(main)


@both_stores
@pytest.mark.parametrize("shape", ["composite", "sub-agents"])
def test_a_run_inside_that_waits_for_a_person_still_does_after_a_crash(kind: str, shape: str, tmp_path: Path) -> None:
    async def main() -> None:
        world = World()
        model = StepModel(call("post", x=1), call("asks"), say("asked"))
        asking = Agent("asking", model=model, tools=[world.post, asks])
        slow = Agent("slow", model=StepModel(call("slow"), say("slow is done")), tools=[world.slow])
        top = around(shape, asking, slow)
        async with opened(kind, tmp_path) as store:
            session = await Session.create(store, "s")
            async with top.start("go", session=session) as run:
                await world.waiting.wait()
                await pass_time(1)  # for the other one, which does not wait for long
                left = await left_by_a_crash(store)
                run.cancel()
            assert [str(entry.state) for entry in left.ledger] == ["waiting", "stopped"]
            world.gate.set()
            paused = await top.resume(left)
            assert paused.checkpoint is not None
            result = await top.resume(paused.checkpoint, answers={paused.questions[0].id: "yes"})
        assert (str(result.stop_reason), world.posted) == ("end_turn", [1])

    run_virtual(main)


@both_stores
def test_what_the_store_has_of_runs_inside_is_what_the_session_has(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        world = World()
        worker = Agent(
            "worker", model=StepModel(call("post", x=1), call("slow"), say("done")), tools=[world.post, world.slow]
        )
        top = around("composite", around("sub-agents", worker), Agent("other", model=StepModel(say("done"))))
        async with opened(kind, tmp_path) as store:
            session = await Session.create(store, "s", history=PAST)
            async with top.start("go", session=session) as run:
                await world.waiting.wait()
                stored = await store.load("s")
                assert set(stored.runs[-1].inside) == {"around", "other"}
                assert stored.runs == session.runs
                run.cancel()
            stored = await store.load("s")
            assert stored.runs == session.runs
            assert stored.runs[-1].inside == {}
            assert stored.runs[-1].checkpoint == run.result.checkpoint
            await session.delete()
        if kind == "sqlite":
            with sqlite3.connect(tmp_path / "sessions.db") as db:
                assert db.execute("SELECT * FROM inside").fetchall() == []
            db.close()

    run_virtual(main)


def test_a_run_inside_writes_what_it_says_and_not_the_conversation_before(tmp_path: Path) -> None:
    async def main() -> None:
        store = SqliteStore(tmp_path / "sessions.db")
        long = [Message("user", (Text("before " * 10_000),)), PAST[1]]
        session = await Session.create(store, "s", history=long)
        world = World()
        worker = Agent("worker", model=StepModel(call("slow"), say("done")), tools=[world.slow])
        async with around("composite", worker).start("go", session=session) as run:
            await world.waiting.wait()
            with sqlite3.connect(tmp_path / "sessions.db") as db:
                ((written,),) = db.execute("SELECT sum(length(fact)) FROM inside")
            db.close()
            run.cancel()
        with sqlite3.connect(tmp_path / "sessions.db") as db:
            ((kept,),) = db.execute("SELECT length(checkpoint) FROM runs")
        db.close()
        loaded = await Session.load(store, "s")
        assert loaded.checkpoint == run.result.checkpoint
        await store.aclose()
        assert written < 5_000
        assert kept < 5_000

    run_virtual(main)


@both_stores
def test_a_run_that_was_to_go_on_inside_and_died_before_it_did_goes_on_there(kind: str, tmp_path: Path) -> None:
    """`running` is written first; as long as nothing follows it, nothing has happened inside."""

    async def main() -> None:
        world = World()
        model = StepModel(call("post", x=1), call("slow"), call("post", x=2), say("done"))
        top = around("composite", Agent("worker", model=model, tools=[world.post, world.slow]))
        async with opened(kind, tmp_path) as inner:
            store = Wrapped(inner)
            session = await Session.create(store, "s")
            async with top.start("go", session=session) as run:
                await world.waiting.wait()
                run.cancel()
            assert session.checkpoint is not None
            store.hangs_at = ("append", store.counts["append"] + 3)  # it begins; its child is running; that one begins
            async with top.start(checkpoint=session.checkpoint, session=session) as run:
                await store.reached.wait()
                left = await left_by_a_crash(inner)
                run.cancel()
            assert [str(entry.state) for entry in left.ledger] == ["stopped"]
            world.gate.set()
            await top.resume(left)
        assert world.posted == [1, 2]

    run_virtual(main)


@both_stores
@pytest.mark.parametrize("shape", ["alone", "composite"])
def test_what_was_spent_before_a_crash_is_counted(kind: str, shape: str, tmp_path: Path) -> None:
    async def main() -> None:
        world = World()
        model = StepModel(call("post", x=1), call("slow"), say("done"))
        worker: AnyAgent = Agent("worker", model=model, tools=[world.post, world.slow])
        top = worker if shape == "alone" else Sequential("around", worker)
        async with opened(kind, tmp_path) as store:
            session = await Session.create(store, "s")
            async with top.start("go", session=session, budget=Budget(seconds=1000)) as run:
                await world.waiting.wait()
                left = await left_by_a_crash(store)
                world.gate.set()
            again = Resume(left, fork=True)
            async with top.start(checkpoint=again, budget=Budget(steps=2)) as short:
                pass
            result = await top.resume(left)
        assert left.step == 2
        assert left.spent.model_calls == 2
        assert short.result.stop_reason == "max_steps"
        assert result.usage.model_calls == 1
        assert run.result.usage.model_calls == 3

    run_virtual(main)


@both_stores
def test_what_an_edited_run_was_given_outlives_a_crash(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        class Asks(Hooks):
            async def before_model(self, run: object, request: object) -> None:
                await self.ctx.interrupt("may I?")

        model, hold, asking = StepModel(say("done")), Holding(), Asks()
        async with opened(kind, tmp_path) as store:
            session = await Session.create(store, "s")
            paused = await Agent("a", model=model, hooks=[asking]).run("go", session=session)
            assert paused.checkpoint is not None
            more = Resume(
                paused.checkpoint,
                message="And hurry.",
                answers={paused.questions[0].id: "you may"},
                edit=lambda _: [Message("user", (Text("Go!"),))],
            )
            async with Agent("a", model=model, hooks=[hold, asking]).start(checkpoint=more, session=session) as run:
                await hold.reached.wait()
                left = await left_by_a_crash(store)
                run.cancel()
        assert left.hooks["before_model"].memory.answers == ("you may",)
        assert [message.text for message in left.open_messages] == ["Go!"]
        assert [message.text for message in left.pending] == ["And hurry."]

    run_virtual(main)


@both_stores
def test_a_message_that_a_child_has_heard_is_not_told_again_after_a_crash(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        world = World()
        model = StepModel(call("slow"), call("slow"), say("done"))
        top = Sequential("around", Agent("worker", model=model, tools=[world.slow]))
        async with opened(kind, tmp_path) as store:
            session = await Session.create(store, "s")
            async with top.start("go", session=session) as run:
                await world.waiting.wait()
                run.cancel()
            assert session.checkpoint is not None
            world.gate.set()
            async with top.start(checkpoint=Resume(session.checkpoint, message="Hurry."), session=session) as run:
                world.waiting.clear()
                await world.waiting.wait()  # again, as the first call was cut
                world.gate.clear()
                world.waiting.clear()
                await world.waiting.wait()  # the second, after the message was heard
                left = await left_by_a_crash(store)
                run.cancel()
            world.gate.set()
            await top.resume(left)
        said = [part for message in model.requests[-1].messages for part in message.parts]
        assert said.count(Text("Hurry.")) == 1

    run_virtual(main)


def test_a_sub_agent_that_outlived_its_run_writes_nothing_into_the_next_one() -> None:
    async def main() -> None:
        world, inner = World(), MemoryStore()
        store = Wrapped(inner)

        @tool
        async def deaf() -> str:
            """Swallow the cancellation, and go on for a long time."""
            while not world.gate.is_set():
                with suppress(asyncio.CancelledError):
                    world.waiting.set()
                    await world.gate.wait()
            return "late"

        patient = Ladder(task=8, cap=9)
        worker = Agent("worker", model=StepModel(call("deaf"), say("done")), tools=[deaf], ladder=patient)
        session = await Session.create(store, "s")
        async with around("sub-agents", worker).start("go", session=session, ladder=Ladder(cap=1)) as run:
            await world.waiting.wait()
            run.cancel()
        assert [str(orphan.name) for orphan in run.result.orphans] == ["worker"]
        before = await inner.load("s")
        store.counts.clear()
        world.gate.set()
        await rounds(20)
        assert store.counts.get("append") is None
        assert (await inner.load("s")).runs == before.runs

    run_virtual(main)


@both_stores
@pytest.mark.parametrize("shape", ["composite", "sub-agents"])
def test_a_run_that_continues_takes_the_late_result_of_a_call_inside(kind: str, shape: str, tmp_path: Path) -> None:
    async def main() -> None:
        gate, began = asyncio.Event(), asyncio.Event()
        dug: list[int] = []

        @tool
        async def dig() -> str:
            """Dig, and do not heed a cancel."""
            dug.append(1)
            began.set()
            while not gate.is_set():
                with suppress(asyncio.CancelledError):
                    await gate.wait()
            return "treasure"

        model = StepModel(call("dig"), say("done"))
        top = around(shape, Agent("digger", model=model, tools=[dig]))
        async with opened(kind, tmp_path) as store:
            session = await Session.create(store, "s")
            async with top.start("go", session=session) as run:
                await began.wait()
                run.cancel()
            gate.set()
            while not (await store.load("s")).late:  # noqa: ASYNC110  # the store has no event to wait for
                await asyncio.sleep(0)
            session = await Session.load(store, "s")
            assert [late.call_id.count("/") for late in session.late] == [1]
            assert session.checkpoint is not None
            await top.resume(session.checkpoint, session=session)
            assert session.late == ()
        parts = [part for message in model.requests[-1].messages for part in message.parts]
        results = [part for part in parts if isinstance(part, ToolResult)]
        assert [(part.content, str(part.state)) for part in results] == [("treasure", "finished_late")]
        assert dug == [1]

    run_virtual(main)


@pytest.mark.parametrize("shape", ["composite", "sub-agents"])
def test_tools_inside_see_the_session_of_the_run_around_them(shape: str) -> None:
    @tool
    async def remember(ctx: ToolContext) -> str:
        """Remember."""
        assert isinstance(ctx.session, Session)
        ctx.session.state["seen"] = True
        return "noted"

    async def main() -> None:
        store = MemoryStore()
        worker = Agent("worker", model=StepModel(call("remember"), say("done")), tools=[remember])
        session = await Session.create(store, "s")
        result = await around(shape, worker).run("go", session=session)
        assert result.stop_reason == "end_turn"
        assert (await store.load("s")).state == {"seen": True}

    run_virtual(main)


def test_a_file_of_the_second_version_is_read_and_written_on(tmp_path: Path) -> None:
    async def main() -> None:
        path = tmp_path / "sessions.db"
        store: Store = SqliteStore(path)
        await Agent("a", model=StepModel(say("one"))).run("go", session=await Session.create(store, "s"))
        await store.aclose()
        with sqlite3.connect(path) as db:  # as the version before has left it
            db.executescript("DROP TABLE inside; ALTER TABLE runs DROP COLUMN counted; PRAGMA user_version=2")
        db.close()
        store = SqliteStore(path)
        session = await Session.load(store, "s")
        top = around("composite", Agent("a", model=StepModel(say("one"), say("two"))))
        assert (await top.run("go on", session=session)).children[0].result.text == "two"
        await store.aclose()

    run_virtual(main)

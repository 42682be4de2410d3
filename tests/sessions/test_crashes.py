"""What a run that dies leaves for the next one: nothing that an earlier run had reached is lost or done again.

What a store has while a run is live is what a crash would leave; `sealed` is what the next process makes of it.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from safepoint import (
    Agent,
    Checkpoint,
    Hooks,
    Parallel,
    Resume,
    SafePoint,
    Sequential,
    ToolCall,
    ToolContext,
    check_history,
    tool,
)
from safepoint.agent.base import BaseAgent
from safepoint.sessions import MemoryStore, Session, Store
from safepoint.sessions.sealing import sealed
from safepoint.testing import call, run_virtual, say
from tests.injection.parts import StepModel
from tests.sessions.stores import Wrapped, both_stores, opened
from tests.virtual import rounds, virtual


async def left_by_a_crash(store: Store) -> Checkpoint:
    """As if the process that has the session had died at this moment."""
    stored = await store.load("s")
    ended = sealed(stored, stored.runs[-1])
    check_history([*stored.messages[: ended.index], *ended.messages])
    assert ended.checkpoint is not None
    return Checkpoint.from_bytes(ended.checkpoint.to_bytes())


class World:
    """Effects, a gate that `slow` waits for, and one that every effect waits for, which is open until it is cleared."""

    def __init__(self) -> None:
        self.posted: list[int] = []
        self.gate = asyncio.Event()
        self.waiting = asyncio.Event()
        self.may_post = asyncio.Event()
        self.may_post.set()

        @tool
        async def post(x: int) -> str:
            """Change the world."""
            await self.may_post.wait()
            self.posted.append(x)
            return f"posted {x}"

        @tool(effect="pure")
        async def slow() -> str:
            """Wait."""
            self.waiting.set()
            await self.gate.wait()
            return "waited"

        self.post, self.slow = post, slow

    def poster(self, name: str, first: int) -> Agent:
        """Posts twice, with a safe point in between."""
        model = StepModel(call("post", x=first), call("post", x=first + 1), say(f"{name} is done"))
        return Agent(name, model=model, tools=[self.post])

    async def stopped(self, agent: BaseAgent[None, Any], session: Session) -> None:  # Any: of any output
        """Run it until the first effect has happened, and stop it there, with everything below."""
        self.may_post.clear()
        async with agent.start("go", session=session) as run:
            await self.waiting.wait()
            run.cancel(SafePoint.AFTER_TOOLS, recursive=True, within=1)
            self.may_post.set()


@both_stores
def test_a_sub_agent_that_a_dead_run_had_not_come_to_goes_on_where_it_was_stopped(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        world = World()
        model = StepModel([call("slow"), call("sub", input="go")], say("done"))
        tools = [world.slow, world.poster("sub", 1).as_tool()]
        boss = Agent("boss", model=model, tools=tools, max_parallel_tools=2)
        one_by_one = Agent("boss", model=model, tools=tools, max_parallel_tools=1)
        async with opened(kind, tmp_path) as store:
            session = await Session.create(store, "s")
            await world.stopped(boss, session)
            assert world.posted == [1]
            assert session.checkpoint is not None
            more = Resume(session.checkpoint, message="And hurry.")
            async with one_by_one.start(checkpoint=more, session=session) as run:
                world.waiting.clear()
                await world.waiting.wait()  # `slow` is first, so `sub` waits
                left = await left_by_a_crash(store)
                run.cancel()
            assert [str(entry.state) for entry in left.ledger] == ["cut", "stopped"]
            world.gate.set()
            result = await boss.resume(left)
        assert world.posted == [1, 2]
        assert model.requests[-1].messages[-1].text == "And hurry."
        assert result.text == "done"

    run_virtual(main)


@both_stores
def test_what_a_call_remembers_outlives_a_run_that_died_before_it(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        world, asked, seen = World(), asyncio.Event(), list[object]()

        @tool
        async def pages(ctx: ToolContext) -> str:
            """Read pages; two have been read when it is stopped."""
            await ctx.once("opened", lambda: seen.append("opened"))
            seen.append(ctx.saved)
            world.waiting.set()
            await asked.wait()
            await ctx.safe_point("page", save=2)
            return "read"

        model = StepModel([call("slow"), call("pages")], say("done"))
        boss = Agent("boss", model=model, tools=[world.slow, pages])
        one_by_one = Agent("boss", model=model, tools=[world.slow, pages], max_parallel_tools=1)
        async with opened(kind, tmp_path) as store:
            session = await Session.create(store, "s")
            async with boss.start("go", session=session) as run:
                await world.waiting.wait()
                run.cancel(SafePoint.named("page"), within=1)
                asked.set()
            assert session.checkpoint is not None
            async with one_by_one.start(checkpoint=session.checkpoint, session=session) as run:
                world.waiting.clear()
                await world.waiting.wait()
                left = await left_by_a_crash(store)
                run.cancel()
            world.gate.set()
            await boss.resume(left)
        assert seen == ["opened", None, 2]

    run_virtual(main)


@both_stores
def test_a_branch_that_a_dead_run_had_not_come_to_goes_on_where_it_was_stopped(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        world = World()
        slow = Agent("slow", model=StepModel(call("slow"), say("slow is done")), tools=[world.slow])
        async with opened(kind, tmp_path) as store:
            session = await Session.create(store, "s")
            both = Parallel("both", [slow, world.poster("poster", 1)])
            await world.stopped(both, session)
            assert world.posted == [1]
            one_by_one = Parallel("both", [slow, world.poster("poster", 1)], limit=1)
            async with one_by_one.start(checkpoint=session.checkpoint, session=session) as again:
                world.waiting.clear()
                await world.waiting.wait()
                left = await left_by_a_crash(store)
                again.cancel()
            assert [str(entry.state) for entry in left.ledger] == ["stopped", "stopped"]
            world.gate.set()
            await both.resume(left)
        assert world.posted == [1, 2]

    run_virtual(main)


@both_stores
def test_what_a_tool_has_done_once_is_not_done_again_after_a_crash(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        world, log = World(), list[str]()

        def pay_now() -> str:
            log.append("paid")
            return "no. 7"

        @tool(effect="idempotent")
        async def pay(ctx: ToolContext) -> str:
            """Pay, and wait for the receipt."""
            number: object = await ctx.once("pay", pay_now)
            world.waiting.set()
            await world.gate.wait()
            return f"paid, {number}"

        class Asks(Hooks):
            async def before_tool(self, run: object, call: ToolCall) -> None:
                await self.ctx.once("asked", lambda: log.append("asked"))

        model = StepModel(call("pay"), say("done"))
        payer = Agent("payer", model=model, tools=[pay], hooks=[Asks()])
        async with opened(kind, tmp_path) as store:
            session = await Session.create(store, "s")
            async with payer.start("go", session=session) as run:
                await world.waiting.wait()
                left = await left_by_a_crash(store)
                run.cancel()
            world.gate.set()
            result = await payer.resume(left)
        assert log == ["asked", "paid"]
        assert [entry.content for entry in result.ledger] == ["paid, no. 7"]

    run_virtual(main)


def test_a_tool_that_outlived_its_run_stores_nothing_any_more() -> None:
    async def main() -> None:
        inner, world = MemoryStore(), World()

        @tool
        async def deaf(ctx: ToolContext) -> str:
            """Swallow the cancellation, and go on for a long time."""
            while not world.gate.is_set():
                with suppress(asyncio.CancelledError):
                    world.waiting.set()
                    await world.gate.wait()
            await ctx.once("late", lambda: "value")
            return "late"

        store = Wrapped(inner)
        session = await Session.create(store, "s")
        agent = Agent("a", model=StepModel(call("deaf"), say("done")), tools=[deaf])
        async with agent.start("go", session=session) as run:
            await world.waiting.wait()
            run.cancel()
        stored = await inner.load("s")
        store.counts.clear()
        [orphan] = run.result.orphans
        assert orphan.still_running
        world.gate.set()
        await rounds(10)
        assert not orphan.still_running
        assert store.counts.get("append") is None
        assert (await inner.load("s")).runs == stored.runs

    run_virtual(main)


@both_stores
@pytest.mark.parametrize("how", ["stopped", "died"])
def test_an_answer_outlives_a_run_that_was_over_before_it_came_to_it(kind: str, how: str, tmp_path: Path) -> None:
    async def main() -> None:
        world = World()

        @tool
        async def asks(ctx: ToolContext) -> str:
            """Ask."""
            return str(await ctx.interrupt("may I?"))

        inside = Agent("inside", model=StepModel(call("asks"), say("asked")), tools=[asks])
        both = Parallel("both", [inside, world.poster("poster", 1)])
        model = StepModel([call("slow"), call("both", input="go"), call("asks")], say("done"))
        boss = Agent("boss", model=model, tools=[world.slow, both.as_tool(), asks], max_parallel_tools=1)
        world.gate.set()
        async with opened(kind, tmp_path) as store:
            session = await Session.create(store, "s")
            paused = await boss.run("go", session=session)
            assert len(paused.questions) == 2
            assert paused.checkpoint is not None
            answers = {question.id: "you may" for question in paused.questions}
            hold = Holding()
            held = Agent("boss", model=model, tools=[world.slow, both.as_tool(), asks], hooks=[hold])
            async with held.start(checkpoint=Resume(paused.checkpoint, answers=answers), session=session) as run:
                await hold.reached.wait()
                left = await left_by_a_crash(store)
                run.cancel()
            if how == "stopped":
                assert run.result.checkpoint is not None
                left = run.result.checkpoint
            result = await boss.resume(left)
        assert (result.text, world.posted) == ("done", [1, 2])
        assert [entry.content for entry in result.ledger][2] == "you may"

    run_virtual(main)


class Holding(Hooks):
    """Holds a run at its beginning."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()

    async def before_run(self, run: object) -> None:
        self.reached.set()
        await asyncio.get_running_loop().create_future()


@virtual
async def test_an_answer_outlives_a_composite_that_was_stopped_before_it_came_to_it() -> None:
    @tool
    async def asks(ctx: ToolContext) -> str:
        """Ask."""
        return str(await ctx.interrupt("may I?"))

    inside = Agent("inside", model=StepModel(call("asks"), say("asked")), tools=[asks])
    pipeline = Sequential("pipeline", inside)
    paused = await pipeline.run("go")
    assert paused.checkpoint is not None
    more = Resume(paused.checkpoint, answers={paused.questions[0].id: "you may"})
    async with pipeline.start(checkpoint=more) as run:
        run.cancel()
    assert run.result.checkpoint is not None
    result = await pipeline.resume(Checkpoint.from_bytes(run.result.checkpoint.to_bytes()))
    assert [entry.content for entry in result.children[0].result.ledger] == ["you may"]

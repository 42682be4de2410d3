"""A run ends even if its own task does not survive, so that nobody waits for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from safepoint import Agent, Message, RunFailed, SafePoint, Text, check_history, tool
from safepoint._core.ladder import StopPolicy
from safepoint.agent.driver import Driver
from safepoint.agent.ledger import Ledger
from safepoint.agent.open_calls import OpenCalls
from safepoint.agent.resume import Resume
from safepoint.agent.run_context import RunContext
from safepoint.agent.tool_context import ToolContext
from safepoint.errors import StoreError
from safepoint.sessions import MemoryStore, Session
from safepoint.testing import ScriptedModel, call, pass_time, say, stall
from safepoint.testing.clock import run_virtual
from safepoint.tools.base import BaseTool, ToolSpec
from safepoint.tools.context import CallContext
from safepoint.tools.options import ToolOptions
from tests.hostile.visit import LADDER, World, check_one_terminal_event, nap
from tests.sessions.stores import Wrapped


class Trap(BaseTool):
    """A third party's tool that can be put into an agent, and breaks when it is looked at again."""

    spec = ToolSpec("trap", "Do not touch.", {"type": "object"})
    options = ToolOptions()
    looks = 0

    def __getattribute__(self, name: str) -> Any:  # Any: as in object
        if name == "ladder":
            self.looks += 1
            if self.looks > 1:
                raise ZeroDivisionError("touched")
        return super().__getattribute__(name)

    @property
    def stop_policy(self) -> StopPolicy:
        return StopPolicy()

    def validate(self, args: Mapping[str, Any]) -> dict[str, Any]:  # Any: as in BaseTool
        return {}

    async def body(self, context: CallContext[Any], args: dict[str, Any]) -> object:  # Any: as in BaseTool
        return None


def breaking(model: ScriptedModel) -> Agent[World]:
    return Agent("breaking", model=model, tools=[nap, Trap()], ladder=LADDER)


def test_a_run_whose_task_breaks_fails_with_a_valid_history_and_leaves_no_task() -> None:
    async def scenario() -> None:
        agent = breaking(ScriptedModel([call("nap"), call("trap")], say("fine")))
        with pytest.raises(RunFailed, match="touched") as failed:
            await agent.run("go", deps=World())
        check_history(failed.value.result.messages)
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert agent.cancel().receipts == (), "it counts as live"

    run_virtual(scenario)


def test_a_receipt_of_a_run_whose_task_breaks_returns() -> None:
    async def scenario() -> None:
        run = breaking(ScriptedModel([call("nap"), call("trap")])).start("go", deps=World())
        async with run:
            receipt = run.cancel(SafePoint.AFTER_TOOLS)
            assert await receipt.wait() == "finished_first"
        assert run.result.stop_reason == "error"
        check_one_terminal_event(run)

    run_virtual(scenario)


def test_a_sub_agent_whose_task_breaks_does_not_hold_its_parent() -> None:
    async def scenario() -> None:
        sub = breaking(ScriptedModel([call("nap"), call("trap")]))
        model = ScriptedModel(call("breaking", input="go"), say("fine"))
        before = asyncio.get_running_loop().time()
        parent: Agent[World] = Agent("parent", model=model, tools=[sub.as_tool()], ladder=LADDER)
        result = await parent.run("go", deps=World())
        assert (result.stop_reason, result.text) == ("end_turn", "fine")
        assert [entry.state for entry in result.ledger] == ["failed"]
        assert asyncio.get_running_loop().time() == before

    run_virtual(scenario)


def test_a_run_cancelled_before_its_first_step_is_stopped_and_recorded() -> None:
    async def scenario() -> None:
        model = ScriptedModel(say("fine"))
        agent = Agent("unborn", model=model)
        session = await Session.create(MemoryStore())
        before = asyncio.all_tasks()
        run = agent.start("go", session=session)
        async with run:
            for task in asyncio.all_tasks() - before:
                task.cancel()
        assert run.result.stop_reason == "cancelled"
        assert model.calls == 0
        check_history(run.result.messages)
        check_one_terminal_event(run)
        assert isinstance(run.result.save_error, StoreError), "its session has heard nothing of it"
        assert session.messages == ()
        assert (await agent.run("again", session=session)).text == "fine"
        assert (
            await Agent("next", model=ScriptedModel(say("fine"))).run("go", history=run.result.messages)
        ).text == "fine"

    run_virtual(scenario)


# -- closing itself breaks ---------------------------------------------------------------------------------------------


@tool
async def clears_its_context(ctx: ToolContext[World]) -> str:
    ctx.__dict__.clear()
    return "gone"


class Breaking(Agent[World]):
    """An agent whose drivers break when they say what is left, so that nothing of the run can be closed."""

    error: BaseException = ZeroDivisionError("nothing is left")
    spoils: Callable[[RunContext], object] | None = None

    def driver(self, record: RunContext, resume: Resume | None) -> Driver:
        error, spoils = self.error, self.spoils

        class BreakingDriver(Driver):
            def _remains(self, reason: str | None) -> OpenCalls:
                if spoils is not None:
                    spoils(record)
                raise error

        return BreakingDriver(self, record, resume)


def breaking_at_the_end(
    *tools: BaseTool, model: ScriptedModel, error: BaseException | None = None, spoils: Any = None
) -> Agent[World]:  # Any: a function of the record
    agent = Breaking("breaking", model=model, tools=tools, ladder=LADDER)
    agent.error = error or agent.error
    agent.spoils = spoils
    return agent


def forget_the_calls(record: RunContext) -> None:
    record.ledger = Ledger()


def spoil_the_conversation(record: RunContext) -> None:
    record.messages[:] = [Message("assistant", (Text("nobody asked"),)), Message("assistant", (Text("twice"),))]


def spoil_everything(record: RunContext) -> None:
    for name in ("messages", "opening", "ledger", "orphans", "usage"):
        setattr(record, name, None)


def test_a_tool_that_destroys_its_context_does_no_harm_to_its_run() -> None:
    async def scenario() -> None:
        model = ScriptedModel(call("clears_its_context"), say("fine"))
        agent: Agent[World] = Agent("victim", model=model, tools=[clears_its_context])
        result = await agent.run("go", deps=World())
        assert (result.stop_reason, result.text) == ("end_turn", "fine")
        assert [(entry.state, entry.content) for entry in result.ledger] == [("finished", "gone")]

    run_virtual(scenario)


@pytest.mark.parametrize("at", [SafePoint.AFTER_TOOLS, SafePoint.NOW, SafePoint.FORCE])
def test_a_tool_that_destroys_its_context_can_be_stopped(at: SafePoint) -> None:
    @tool
    async def destroys(ctx: ToolContext[World]) -> str:
        world, run = ctx.deps, ctx.run
        ctx.__dict__.clear()
        world.reach()
        run.cancel(at)
        await asyncio.sleep(0)
        return "gone"

    async def scenario() -> None:
        world = World()
        agent: Agent[World] = Agent("victim", model=ScriptedModel(call("destroys")), tools=[destroys])
        run = agent.start("go", deps=world)
        async with run:
            pass
        assert run.result.stop_reason == "cancelled"
        check_history(run.result.messages)
        check_one_terminal_event(run)

    run_virtual(scenario)


@pytest.mark.parametrize("at", [None, SafePoint.AFTER_TOOLS, SafePoint.NOW, SafePoint.FORCE], ids=repr)
@pytest.mark.parametrize("spoils", [None, forget_the_calls, spoil_the_conversation, spoil_everything])
@pytest.mark.parametrize("error", [ZeroDivisionError("nothing is left"), SystemExit(3), asyncio.CancelledError()])
def test_a_run_that_cannot_be_closed_ends_with_an_error_all_the_same(
    error: BaseException, spoils: Callable[[RunContext], None] | None, at: SafePoint | None
) -> None:
    @tool
    async def waits(ctx: ToolContext[World]) -> str:
        ctx.deps.reach()
        await pass_time(1)
        return "waited"

    async def scenario() -> None:
        world, store = World(), MemoryStore()
        session = await Session.create(store, "s")
        model = ScriptedModel([say("I wait"), call("waits")], say("fine"))
        agent = breaking_at_the_end(waits, model=model, error=error, spoils=spoils)
        run = agent.start("go", deps=world, session=session)
        async with run:
            await world.reached.wait()
            receipts = [run.cancel(at)] if at is not None else []
            for receipt in receipts:
                assert await receipt.wait() in ("finished_first", "stopped")
            await run.wait()
        assert run.result.stop_reason == "error"
        assert run.result.error is not None
        assert [entry.state for entry in run.result.ledger if entry.state == "running"] == []
        check_history(run.result.messages)
        assert "This run failed before it was done" in str(run.result.messages[-1])
        check_one_terminal_event(run)
        assert run.why_not_stopped() == []
        assert agent.cancel().receipts == (), "it is not live any more"
        assert isinstance(run.result.save_error, StoreError)
        again = Agent("next", model=ScriptedModel(say("fine")))
        assert (await again.run("are you there?", session=session)).text == "fine"
        check_history(session.messages)

    run_virtual(scenario)


@pytest.mark.parametrize("at", [None, SafePoint.NOW, SafePoint.FORCE], ids=repr)
def test_a_sub_agent_that_cannot_be_closed_does_not_hold_its_parent(at: SafePoint | None) -> None:
    async def scenario() -> None:
        world = World()
        replies = [say("fine")] if at is None else [call("nap"), say("fine")]
        sub = breaking_at_the_end(nap, model=ScriptedModel(*replies))
        model = ScriptedModel(call("breaking", input="go"), say("fine"))
        parent: Agent[World] = Agent("parent", model=model, tools=[sub.as_tool()], ladder=LADDER)
        async with parent.start("go", deps=world) as run:
            if at is not None:
                run.cancel(at)
        assert run.result.stop_reason == ("end_turn" if at is None else "cancelled")
        check_history(run.result.messages)
        check_one_terminal_event(run)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run_virtual(scenario)


def test_a_stopping_run_always_says_what_holds_it() -> None:
    """Also while its end is written, which is no work of its own."""

    async def scenario() -> None:
        store = Wrapped(MemoryStore())
        session = await Session.create(store, "s")
        agent = Agent("teller", model=ScriptedModel(say("fine"), stall()))
        async with agent.start("go", session=session) as run:
            store.hangs_at = ("append", 2)
            run.cancel(SafePoint.NOW)
            held = list[list[str]]()
            while not run.ended:
                await asyncio.sleep(0)
                if not run.ended and run.node.stop is not None:
                    held.append([each.name for each in run.why_not_stopped()])
                if store.reached.is_set():
                    await pass_time(0.1)
        assert held
        assert all(held), "nothing was named"
        assert ["journal"] in held

    run_virtual(scenario)

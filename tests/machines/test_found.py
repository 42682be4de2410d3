"""What the machines have found, each as a plain test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ClassVar

import pytest

from safepoint import Agent, Hooks, Message, Outcome, Receipt, SafePoint, ToolContext, Usage, tool
from safepoint._core.tree import Node
from safepoint.agent.live import watch_runs
from safepoint.agent.run import Run
from safepoint.history.states import LedgerState
from safepoint.testing import ScriptedModel, call, pass_time, say, stall
from tests.virtual import virtual


def child(run: Run[None, str], name: str) -> Node:
    return next(node for node in run.tree.walk() if node.name == name)


async def until(holds: Callable[[], bool]) -> None:
    """Let the loop go on, round by round, until it does."""
    for _ in range(100):
        if holds():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came")


async def rounds(count: int) -> None:
    """Let the loop go on by that many rounds."""
    for _ in range(count):
        await asyncio.sleep(0)


@virtual
async def test_a_reader_that_is_detached_while_it_waits_comes_to_its_end() -> None:
    agent = Agent("reader", model=ScriptedModel(stall()))
    async with agent.start("go") as run:
        reader = run.events()

        async def read() -> int:
            return len([event async for event in reader])

        reading = asyncio.create_task(read())
        await rounds(5)
        reader.detach()
        assert await reading > 0
        run.cancel()


@virtual
async def test_an_ask_for_any_safe_point_took_no_part_in_a_stop_by_now() -> None:
    agent = Agent("two asks", model=ScriptedModel(stall()))
    async with agent.start("go") as run:
        await rounds(5)
        mild, hard = run.cancel(SafePoint.ANY), run.cancel()
        await run.wait()
        assert (mild.contributed, hard.contributed) == (False, True)


@virtual
async def test_a_model_call_that_never_began_costs_nothing() -> None:
    model = ScriptedModel(say("never"))
    agent = Agent("stopped early", model=model)
    async with agent.start("go") as run:
        run.cancel()  # the run's own first step, which makes the call, has yet to come
        result = await run.wait()
    assert model.calls == 0
    assert result.usage == Usage()


@virtual
async def test_an_undo_that_holds_a_stopping_run_is_named() -> None:
    undone = asyncio.Event()

    async def take_back() -> None:
        await undone.wait()

    @tool(undo=take_back)
    async def pay() -> None:
        """Pay."""
        await asyncio.Event().wait()

    agent = Agent("payer", model=ScriptedModel(call("pay")), tools=[pay])
    async with agent.start("go") as run:
        await rounds(10)
        run.cancel()
        await rounds(10)
        assert [held.name for held in run.why_not_stopped()] == ["undo of pay"]
        undone.set()


@virtual
async def test_a_call_that_was_stopped_before_its_first_line_was_stopped() -> None:
    receipts: list[Receipt] = []

    @tool
    async def first() -> None:
        """Stop the other call of the reply, which is there already."""
        receipts.append(child(run, "never").cancel())

    @tool
    async def never() -> None:
        """Never run."""
        raise AssertionError("it ran")

    model = ScriptedModel([call("first"), call("never")], say("done"))
    async with Agent("quick", model=model, tools=[first, never]).start("go") as run:
        result = await run.wait()
    assert result.ledger[1].state is LedgerState.NOT_STARTED
    assert (receipts[0].outcome, receipts[0].contributed) == (Outcome.STOPPED, True)


@virtual
async def test_a_sub_agent_that_stops_for_an_ask_of_its_call_is_told_on_the_receipt() -> None:
    @tool
    async def work(context: ToolContext) -> str:
        """Work for a while."""
        await asyncio.sleep(0)
        return "worked"

    inner = Agent("inner", model=ScriptedModel(call("work"), say("too far")), tools=[work])
    outer = Agent("outer", model=ScriptedModel(call("inner", input="go"), say("done")), tools=[inner.as_tool()])
    async with outer.start("go") as run:
        await until(lambda: len(list(run.tree.walk())) > 1)
        receipt = child(run, "inner").cancel(SafePoint.AFTER_TOOLS)
        result = await run.wait()
    assert result.ledger[0].state is LedgerState.STOPPED
    assert (receipt.outcome, receipt.contributed) == (Outcome.STOPPED, True)


@virtual
async def test_a_deadline_that_cuts_what_a_safe_stop_waits_for_has_escalated_it() -> None:
    @tool
    async def quick() -> str:
        """Be done at once."""
        return "done"

    @tool
    async def endless() -> None:
        """Never be done."""
        await asyncio.Event().wait()

    agent = Agent("waiter", model=ScriptedModel([call("quick"), call("endless")]), tools=[quick, endless])
    async with agent.start("go") as run:
        receipt = run.cancel(SafePoint.AFTER_TOOL, within=5)
        result = await run.wait()
    assert result.cancellation is not None
    assert (result.cancellation.place, result.cancellation.timed_out) == ("after_tool", True)
    assert (receipt.outcome, receipt.contributed) == (Outcome.ESCALATED, True)


@virtual
async def test_once_a_sub_agent_stops_for_an_ask_of_its_call_every_point_of_its_tools_is_safe() -> None:
    go_on = asyncio.Event()

    @tool
    async def quick() -> str:
        """Be done after a second."""
        await pass_time(1)
        return "done"

    @tool
    async def paged(context: ToolContext) -> str:
        """Come to a point, later."""
        await go_on.wait()
        await context.safe_point("page")
        return "all pages"

    model = ScriptedModel([call("quick"), call("paged")], say("too far"))
    inner = Agent("inner", model=model, tools=[quick, paged])
    outer = Agent("outer", model=ScriptedModel(call("inner", input="go"), say("done")), tools=[inner.as_tool()])
    with watch_runs() as runs:
        async with outer.start("go") as run:
            await until(lambda: len(list(run.tree.walk())) > 1)
            child(run, "inner").cancel(SafePoint.AFTER_TOOL)
            await pass_time(2)
            go_on.set()
        states = [entry.state for entry in runs[1].result.ledger]
    assert states == [LedgerState.FINISHED, LedgerState.STOPPED]


@virtual
async def test_a_hook_does_not_start_once_now_is_recorded_after_the_answer() -> None:
    class Late(Hooks):
        called = False
        receipts: ClassVar[list[Receipt]] = []

        def after_model(self, run: Run[Any, Any], message: Message) -> None:
            assert run.node.answered
            self.receipts.append(run.cancel())

        def after_run(self, run: object, text: str) -> None:
            Late.called = True

    agent = Agent("answered", model=ScriptedModel(say("done")), hooks=[Late()])
    result = await agent.run("go")
    assert result.text == "done"
    assert Late.receipts[0].outcome is Outcome.FINISHED_FIRST
    assert not Late.called


@virtual
@pytest.mark.parametrize("answers", ["to the last cancel", "after it was abandoned"])
async def test_an_undo_counts_if_it_answers_before_it_is_abandoned(answers: str) -> None:
    async def take_back() -> str:
        for _ in range(2):  # the end of its time, and the last cancel
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
        if answers == "after it was abandoned":
            await rounds(20)
        return "taken back"

    @tool(undo=take_back)
    async def pay() -> None:
        """Pay."""
        await asyncio.Event().wait()

    agent = Agent("payer", model=ScriptedModel(call("pay")), tools=[pay])
    async with agent.start("go") as run:
        await until(lambda: len(list(run.tree.walk())) == 2)
        await rounds(5)
        run.cancel()
        result = await run.wait()
    entry = result.ledger[0]
    if answers == "to the last cancel":
        assert (entry.state, entry.error, result.orphans) == (LedgerState.COMPENSATED, None, ())
        return
    (orphan,) = result.orphans
    assert (entry.state, entry.error) == (LedgerState.CUT, "its undo did not end in time")
    await until(lambda: not orphan.still_running)
    assert (orphan.name, orphan.result) == ("undo of pay", "taken back")

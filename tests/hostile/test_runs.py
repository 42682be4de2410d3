"""Runs inside runs, undo, time-outs and late tools: what does not fit into one row of the table."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from safepoint import Agent, Ladder, Run, RunResult, SafePoint, ToolContext, check_history, tool
from safepoint.errors import StopTool
from safepoint.testing import ScriptedModel, call, pass_time, say
from safepoint.testing.clock import run_virtual
from safepoint.tools.base import BaseTool
from tests.hostile.task_tools import (
    awaits_in_every_finally,
    changes_its_context,
    holds_a_lock,
    mood,
    shared_lock,
    swallows_always,
    uncancels_itself,
)
from tests.hostile.thread_tools import blocks, spins
from tests.hostile.visit import (
    LADDER,
    Push,
    World,
    check_one_terminal_event,
    check_what_is_left,
    let_go,
    victim,
    visit,
)

SLOW = Ladder(task=8, thread=8, kill=8, undo=8, cap=9)


def slow_inner() -> Agent[World]:
    """Its own ladder is longer than its parent's."""
    model = ScriptedModel(call("swallows_always"), repeat=True)
    return Agent("slow_inner", model=model, tools=[swallows_always], ladder=SLOW)


@tool
async def starts_a_slow_run(ctx: ToolContext[World]) -> str:
    return str((await slow_inner().run("go", deps=ctx.deps)).stop_reason)


@tool
async def leaves_a_slow_run(ctx: ToolContext[World]) -> str:
    await slow_inner().start("go", deps=ctx.deps).__aenter__()
    await ctx.deps.reached.wait()
    return "left"


@pytest.mark.parametrize(
    ("hostile", "push", "seconds", "orphans"),
    [
        (starts_a_slow_run, Push.NOW, 4, ["slow_inner", "starts_a_slow_run"]),
        (starts_a_slow_run, Push.CALLER, 4, ["slow_inner", "starts_a_slow_run"]),
        (starts_a_slow_run, Push.FORCE, 0, ["starts_a_slow_run"]),
        (leaves_a_slow_run, Push.NOW, 4, ["slow_inner"]),
        (leaves_a_slow_run, Push.CALLER, 4, ["slow_inner"]),
        (leaves_a_slow_run, Push.FORCE, 0, []),
        (slow_inner().as_tool(), Push.NOW, 4, ["slow_inner"]),
        (slow_inner().as_tool(), Push.CALLER, 4, ["slow_inner"]),
        (slow_inner().as_tool(), Push.FORCE, 0, ["swallows_always"]),
    ],
    ids=str,
)
def test_a_run_inside_that_is_slow_to_stop_is_left_at_the_cap_and_named(
    hostile: Any, push: Push, seconds: float, orphans: list[str]
) -> None:  # Any: tools of every signature
    async def scenario() -> None:
        left = await visit(victim(hostile), World(), push)
        assert (left.waited, left.seconds) == (0, seconds)
        assert left.orphans == orphans
        check_history(left.result.messages)
        facts = (left.result.ledger, list(left.result.messages), left.run.kept_events(nested=True))
        await pass_time(20)  # the run inside climbs its own ladder to the end
        check_one_terminal_event(left.run)
        assert (left.result.ledger, left.result.messages, left.run.kept_events(nested=True)) == facts
        assert asyncio.all_tasks() == {asyncio.current_task()}
        late = [orphan.result for orphan in left.result.orphans if orphan.name == "slow_inner"]
        assert all(isinstance(result, RunResult) and result.stop_reason == "cancelled" for result in late)
        await let_go(left)

    run_virtual(scenario)


# -- undo --------------------------------------------------------------------------------------------------------------


async def undo_that_hangs(ctx: ToolContext[World]) -> None:
    await ctx.deps.over.wait()


async def undo_that_swallows(ctx: ToolContext[World]) -> None:
    await swallows_always(ctx)


async def undo_that_raises(ctx: ToolContext[World]) -> None:
    raise SystemExit("no way back")


async def undo_that_cancels(ctx: ToolContext[World]) -> None:
    ctx.run.cancel(SafePoint.FORCE)
    await ctx.deps.over.wait()


@pytest.mark.parametrize(
    ("undo", "seconds", "orphans", "says"),
    [
        (undo_that_hangs, 2, [], "its undo was cut"),
        (undo_that_swallows, 3, ["undo of hostile"], "its undo did not end in time"),
        (undo_that_raises, 0, [], "no way back"),
        (undo_that_cancels, 0, [], "its undo was cut"),
    ],
    ids=lambda it: getattr(it, "__name__", str(it)),
)
def test_an_undo_is_bounded_and_never_called_done_if_it_was_not(
    undo: Any, seconds: float, orphans: list[str], says: str
) -> None:  # Any: a function of every kind
    @tool(undo=undo)
    async def hostile(ctx: ToolContext[World]) -> str:
        ctx.deps.reach()
        await ctx.deps.over.wait()
        return "late"

    async def scenario() -> None:
        left = await visit(victim(hostile), World(), Push.NOW)
        assert left.states["hostile"] == "cut"
        assert (left.seconds, left.orphans) == (seconds, orphans)
        assert says in left.told("hostile")
        await check_what_is_left(left)

    run_virtual(scenario)


# -- calls that end before, or after, anybody expects ------------------------------------------------------------------


@tool(timeout=0.5)
async def swallows_its_timeout(ctx: ToolContext[World]) -> str:
    return await swallows_always(ctx)


def test_a_call_that_outlives_its_timeout_is_left_and_the_run_goes_on() -> None:
    async def scenario() -> None:
        world = World()
        model = ScriptedModel(call("swallows_its_timeout"), say("fine"))
        agent: Agent[World] = Agent("patient", model=model, tools=[swallows_its_timeout], ladder=LADDER)
        result = await agent.run("go", deps=world)
        assert (result.stop_reason, result.text) == ("end_turn", "fine")
        assert [(entry.state, entry.still_running) for entry in result.ledger] == [("cut", True)]
        assert [orphan.name for orphan in result.orphans] == ["swallows_its_timeout"]
        assert result.orphans[0].still_running
        world.let_go()

    run_virtual(scenario)


def test_the_late_value_of_a_thread_goes_to_its_orphan_and_nowhere_else() -> None:
    async def scenario() -> None:
        left = await visit(victim(blocks), World(), Push.NOW)
        orphan = left.result.orphans[0]
        assert (orphan.still_running, orphan.result) == (True, None)
        facts = (left.result.ledger, list(left.result.messages), left.run.kept_events(nested=True))
        await let_go(left)
        assert (orphan.still_running, orphan.result) == (False, "late")
        assert (left.result.ledger, left.result.messages, left.run.kept_events(nested=True)) == facts

    run_virtual(scenario)


def test_a_tool_cannot_change_what_the_model_asked_for() -> None:
    @tool
    async def greedy(wishes: dict[str, list[int]]) -> str:
        wishes["more"] = [object()]  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]  # hostile
        wishes["a"].append(99)
        return "taken"

    async def scenario() -> None:
        model = ScriptedModel(call("greedy", wishes={"a": [1]}), say("fine"))
        result = await Agent("victim", model=model, tools=[greedy]).run("go")
        check_history(result.messages)
        assert result.messages[1].tool_calls[0].args == {"wishes": {"a": [1]}}
        assert result.ledger[0].args == {"wishes": {"a": [1]}}

    run_virtual(scenario)


def test_what_a_tool_does_to_its_context_stays_there() -> None:
    async def scenario() -> None:
        left = await visit(victim(changes_its_context), World(), Push.NOW)
        assert mood.get() == "calm"
        await check_what_is_left(left)

    run_virtual(scenario)


def test_a_lock_that_a_cut_tool_held_is_free() -> None:
    async def scenario() -> None:
        left = await visit(victim(holds_a_lock), World(), Push.NOW)
        assert not shared_lock.locked()
        await check_what_is_left(left)

    run_virtual(scenario)


def test_a_task_that_a_tool_left_behind_may_still_use_its_context() -> None:
    seen: list[str] = []

    async def later(ctx: ToolContext[World]) -> None:
        await ctx.deps.over.wait()
        await ctx.safe_point("anywhere")
        async with ctx.shield(1):
            seen.append("after the end")
        ctx.run.cancel()

    @tool
    async def leaves(ctx: ToolContext[World]) -> str:
        ctx.deps.left.append(asyncio.create_task(later(ctx)))
        ctx.deps.reach()
        return "left"

    async def scenario() -> None:
        world = World()
        left = await visit(victim(leaves), world, Push.NOW, ended="leaves")
        world.over.set()
        await asyncio.wait(world.left)
        assert world.left[0].exception() is None
        assert seen == ["after the end"]
        check_one_terminal_event(left.run)

    run_virtual(scenario)


def test_an_orphan_leaves_at_its_next_safe_point() -> None:
    errors: list[BaseException] = []

    @tool
    async def goes_on(ctx: ToolContext[World]) -> str:
        await swallows_always(ctx)
        try:
            await ctx.safe_point("anywhere")
        except BaseException as error:
            errors.append(error)
            raise
        return "late"

    async def scenario() -> None:
        left = await visit(victim(goes_on), World(), Push.NOW)
        await let_go(left)
        assert [type(error) for error in errors] == [StopTool]
        assert left.result.orphans[0].result is None

    run_virtual(scenario)


def test_a_batch_of_nothing_but_orphans_takes_no_longer_than_one() -> None:
    stubborn: list[BaseTool] = [
        swallows_always,
        awaits_in_every_finally,
        uncancels_itself,
        blocks,
        spins,
    ]

    async def scenario() -> None:
        world = World()
        model = ScriptedModel([call(each.name) for each in stubborn], say("fine"))
        agent: Agent[World] = Agent("victim", model=model, tools=stubborn, ladder=LADDER)
        left = await visit(agent, world, Push.NOW)
        assert left.seconds == 1
        assert left.orphans == sorted(each.name for each in stubborn)
        await check_what_is_left(left)

    run_virtual(scenario)


@pytest.mark.parametrize("push", Push)
def test_a_stubborn_tool_three_agents_deep_is_named_by_the_topmost(push: Push) -> None:
    async def scenario() -> None:
        agent: Agent[World] = Agent(
            "deep", model=ScriptedModel(call("swallows_always")), tools=[swallows_always], ladder=LADDER
        )
        for name in ("middle", "high"):
            model = ScriptedModel(call(agent.name, input="go"), repeat=True)
            agent = Agent(name, model=model, tools=[agent.as_tool()], ladder=LADDER)
        left = await visit(victim(agent.as_tool()), World(), push)
        assert left.seconds == (0 if push is Push.FORCE else 1)
        assert left.orphans == ["swallows_always"]
        assert left.states["high"] == "stopped"
        await check_what_is_left(left)

    run_virtual(scenario)


def test_a_tool_that_stops_the_loop_leaves_a_run_that_can_still_be_ended() -> None:
    @tool
    async def stops_the_loop(ctx: ToolContext[World]) -> str:
        ctx.deps.loop.stop()
        await ctx.deps.over.wait()
        return "late"

    runs: list[Run[World, str]] = []

    async def scenario() -> None:
        model = ScriptedModel(call("stops_the_loop"))
        agent: Agent[World] = Agent("victim", model=model, tools=[stops_the_loop], ladder=LADDER)
        runs.append(agent.start("go", deps=World()))
        async with runs[0]:
            pass

    with pytest.raises(RuntimeError, match="stopped before Future completed"):
        run_virtual(scenario)
    assert runs[0].result.stop_reason == "cancelled"
    check_history(runs[0].result.messages)
    check_one_terminal_event(runs[0])

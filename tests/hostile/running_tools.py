"""Tools that meddle with runs: their own, their parent's, and runs they start themselves."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from safepoint import Agent, SafePoint, Tool, ToolContext, tool
from safepoint.agent.as_tool import AgentTool
from safepoint.errors import WaitInsideRun
from safepoint.testing import ScriptedModel, call, stall
from tests.hostile.row import Fate, Hostile, abandoned, ends, stops
from tests.hostile.task_tools import swallows_always
from tests.hostile.thread_tools import blocks
from tests.hostile.visit import LADDER, World


def silent(world: World) -> Agent[World]:
    """An agent whose model never says a word; its place is reached when it begins to be silent."""
    return Agent("silent", model=ScriptedModel(stall(on_reached=world.reach), repeat=True), ladder=LADDER)


@tool
async def cancels_its_run_and_returns(ctx: ToolContext[World]) -> str:
    ctx.deps.reach()
    ctx.run.cancel(reason="from inside")
    return "done all the same"


@tool
async def cancels_its_run_and_waits(ctx: ToolContext[World]) -> str:
    ctx.deps.reach()
    ctx.run.cancel(reason="from inside")
    await ctx.deps.over.wait()
    return "late"


@tool
async def forces_its_run_a_hundred_times(ctx: ToolContext[World]) -> str:
    ctx.deps.reach()
    for _ in range(100):
        ctx.run.cancel(SafePoint.FORCE)
    await ctx.deps.over.wait()
    return "late"


@tool
async def cancels_its_own_agent(ctx: ToolContext[World]) -> str:
    ctx.deps.reach()
    ctx.run.agent.cancel(reason="from inside")
    await ctx.deps.over.wait()
    return "late"


@tool
async def cancels_every_other_task(ctx: ToolContext[World]) -> str:
    for _ in range(3):
        await asyncio.sleep(0)  # so that the others are under way
    for task in asyncio.all_tasks() - {asyncio.current_task(), ctx.deps.host}:
        task.cancel()
    ctx.deps.reach()
    return "all but me"


@tool
async def waits_for_its_own_run(ctx: ToolContext[World]) -> str:
    ctx.deps.reach()
    with pytest.raises(WaitInsideRun):
        await ctx.run.wait()
    with pytest.raises(WaitInsideRun):
        await ctx.run.agent.cancel(SafePoint.AFTER_TOOLS).wait()
    await ctx.run.cancel(SafePoint.AFTER_TOOLS).wait()
    return "unreachable"


@tool
async def joins_its_own_run(ctx: ToolContext[World]) -> str:
    ctx.deps.reach()
    await ctx.run.join()
    return "late"


@tool
async def drops_a_handle(ctx: ToolContext[World]) -> str:
    ctx.deps.reach()
    with pytest.warns(RuntimeWarning, match="never entered"):
        silent(ctx.deps).start("go", deps=ctx.deps)
    return "dropped"


@tool
async def leaves_a_run_open(ctx: ToolContext[World]) -> str:
    await silent(ctx.deps).start("go", deps=ctx.deps).__aenter__()
    ctx.deps.reach()
    return "left open"


@tool
async def is_cut_in_a_run_of_its_own(ctx: ToolContext[World]) -> str:
    result = await silent(ctx.deps).run("go", deps=ctx.deps)
    return f"inside: {result.stop_reason}"


@tool
async def holds_a_run_open(ctx: ToolContext[World]) -> str:
    async with silent(ctx.deps).start("go", deps=ctx.deps):
        await swallows_always(ctx)
    return "late"


@tool
async def detaches_a_run(ctx: ToolContext[World]) -> str:
    before = asyncio.all_tasks()
    await silent(ctx.deps).start("go", deps=ctx.deps, parent=None).__aenter__()
    for _ in range(10):
        await asyncio.sleep(0)
    ctx.deps.left += asyncio.all_tasks() - before
    return "detached"


@tool
async def cancels_an_unborn_run(ctx: ToolContext[World]) -> str:
    before = asyncio.all_tasks()
    await silent(ctx.deps).start("go", deps=ctx.deps).__aenter__()
    for task in asyncio.all_tasks() - before:
        task.cancel()
    ctx.deps.reach()
    return "unborn"


@tool
async def interrupts(ctx: ToolContext[World]) -> str:
    ctx.deps.reach()
    raise KeyboardInterrupt


def _sub_agent(name: str, inner: Tool[..., Any]) -> AgentTool:  # Any: a tool's own signature
    model = ScriptedModel(call(inner.name), repeat=True)
    return Agent(name, model=model, tools=[inner], ladder=LADDER).as_tool()


def _stopped_inside(agent: AgentTool, seconds: float, orphan: str) -> Hostile:
    """The sub-agent itself stops and tells; what does not stop is inside it, and named by it."""
    says = "some of its work may be done"
    return Hostile(agent, Fate("stopped", seconds, (orphan,)), Fate("stopped", 0, (orphan,)), says=says)


sub_agent_that_swallows = _sub_agent("sub_agent_that_swallows", swallows_always)
sub_agent_that_blocks = _sub_agent("sub_agent_that_blocks", blocks)
sub_agent_that_interrupts = _sub_agent("sub_agent_that_interrupts", interrupts)

RUNNING_TOOLS: list[Hostile] = [
    stops(cancels_its_run_and_returns, "finished", "done all the same"),
    stops(cancels_its_run_and_waits, "cut", "from inside"),
    stops(forces_its_run_a_hundred_times, "cut"),
    stops(cancels_its_own_agent, "cut", "from inside"),
    replace(stops(cancels_every_other_task, "finished", "all but me"), cancels_caller=True),
    ends(waits_for_its_own_run, "failed", "which it is part of"),
    abandoned(joins_its_own_run, 1),
    ends(drops_a_handle, "finished", "dropped"),
    ends(leaves_a_run_open, "finished", "left open"),
    Hostile(is_cut_in_a_run_of_its_own, Fate("cut")),
    abandoned(holds_a_run_open, 1),
    ends(detaches_a_run, "finished", "detached"),
    ends(cancels_an_unborn_run, "finished", "unborn"),
    _stopped_inside(sub_agent_that_swallows, 1, "swallows_always"),
    _stopped_inside(sub_agent_that_blocks, 0.25, "blocks"),
    stops(sub_agent_that_interrupts, "stopped", "some of its work may be done", interrupts=True),
]

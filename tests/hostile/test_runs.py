"""Runs inside runs, undo, time-outs and late tools: what does not fit into one row of the table."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from safepoint import Agent, Ladder, RunResult, ToolContext, check_history, tool
from safepoint.testing import ScriptedModel, call, pass_time
from safepoint.testing.clock import run_virtual
from tests.hostile.task_tools import swallows_always
from tests.hostile.visit import (
    Push,
    World,
    check_one_terminal_event,
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
        facts = (left.result.ledger, list(left.result.messages), left.run.kept_events())
        await pass_time(20)  # the run inside climbs its own ladder to the end
        check_one_terminal_event(left.run)
        assert (left.result.ledger, left.result.messages, left.run.kept_events()) == facts
        assert asyncio.all_tasks() == {asyncio.current_task()}
        late = [orphan.result for orphan in left.result.orphans if orphan.name == "slow_inner"]
        assert all(isinstance(result, RunResult) and result.stop_reason == "cancelled" for result in late)
        await let_go(left)

    run_virtual(scenario)

"""What the virtual clock cannot show: threads and loops that never stand still, with a short ladder and a real clock.

The ceilings are generous, because a busy machine is slow; the floor of each is what a hold past the ladder would take.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from safepoint import Agent, Ladder, RunResult, ToolContext, check_history, tool
from safepoint.testing import ScriptedModel, call, say
from safepoint.tools.base import BaseTool

SHORT = Ladder(task=0.1, thread=0.1, term=0.1, kill=0.1, undo=0.1, cap=1)
CEILING = 5.0


class Cell:
    """What the tools here wait in, and how the test lets them out."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.out = threading.Event()


@tool
async def never_stands_still(ctx: ToolContext[Cell]) -> str:
    ctx.deps.entered.set()
    while not ctx.deps.out.is_set():
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
    return "late"


@tool(on_cancel="finish", grace=0.2)
def wants_to_finish_and_never_does(ctx: ToolContext[Cell]) -> str:
    ctx.deps.entered.set()
    ctx.deps.out.wait()
    return "late"


@tool(timeout=0.1)
def blocks_past_its_timeout(ctx: ToolContext[Cell]) -> str:
    ctx.deps.entered.set()
    ctx.deps.out.wait()
    return "late"


def run(tool: BaseTool, stop: Callable[[Agent[Cell]], object]) -> tuple[RunResult[str], float]:
    """Run it until it is stopped; the result, and how long after that the caller was free."""
    cell = Cell()
    model = ScriptedModel(call(tool.name), say("fine"))
    agent: Agent[Cell] = Agent("victim", model=model, tools=[tool], ladder=SHORT)
    pushed: list[float] = []

    def push() -> None:
        cell.entered.wait()
        pushed.append(time.monotonic())
        stop(agent)

    async def main() -> tuple[RunResult[str], float]:
        asker = threading.Thread(target=push)
        asker.start()
        result = await agent.run("go", deps=cell)
        seconds = time.monotonic() - pushed[0]
        asker.join()
        cell.out.set()
        if result.stop_reason == "cancelled":
            again = await agent.run("again", history=result.messages, deps=cell)
            assert (again.stop_reason, again.text) == ("end_turn", "fine")
        return result, seconds

    return asyncio.run(main())


@pytest.mark.parametrize("tool", [never_stands_still, wants_to_finish_and_never_does], ids=lambda it: it.name)
def test_what_never_stands_still_is_left_within_the_ladder_and_named(tool: BaseTool) -> None:
    result, seconds = run(tool, lambda agent: agent.cancel(reason="enough"))
    assert seconds < CEILING
    assert result.stop_reason == "cancelled"
    assert [(entry.state, entry.still_running) for entry in result.ledger] == [("cut", True)]
    assert [orphan.name for orphan in result.orphans] == [tool.name]
    check_history(result.messages)


def test_a_thread_that_outlives_its_timeout_is_left_and_the_run_goes_on() -> None:
    result, seconds = run(blocks_past_its_timeout, lambda _: None)
    assert seconds < CEILING
    assert (result.stop_reason, result.text) == ("end_turn", "fine")
    assert [(entry.state, entry.still_running) for entry in result.ledger] == [("cut", True)]
    assert [orphan.name for orphan in result.orphans] == ["blocks_past_its_timeout"]

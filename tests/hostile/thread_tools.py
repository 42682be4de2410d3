"""Hostile tools that run in a thread, where nothing can be cut from outside."""

from __future__ import annotations

import asyncio
import sys
import time

from safepoint import Agent, ToolContext, tool
from safepoint.testing import ScriptedModel, stall
from tests.hostile.row import Fate, Hostile, abandoned, ends, stops
from tests.hostile.visit import World


@tool
def blocks(ctx: ToolContext[World]) -> str:
    ctx.deps.reach()
    ctx.deps.released.wait()
    return "late"


@tool
def spins(ctx: ToolContext[World]) -> int:
    ctx.deps.reach()
    number = 0
    while not ctx.deps.released.is_set():
        number += 1
    return number


@tool
def swallows_its_check(ctx: ToolContext[World]) -> str:
    ctx.deps.reach()
    while not ctx.deps.released.is_set():
        try:
            ctx.check()
        except BaseException:
            ctx.deps.released.wait()
    return "late"


@tool
def checks(ctx: ToolContext[World]) -> str:
    ctx.deps.reach()
    while not ctx.deps.released.is_set():
        ctx.check()
        time.sleep(0)
    return "late"


@tool
def returns_when_flagged(ctx: ToolContext[World]) -> str:
    ctx.deps.reach()
    while not ctx.cancel_requested:
        time.sleep(0)
    return "saved in time"


@tool
def raises_when_flagged(ctx: ToolContext[World]) -> str:
    ctx.deps.reach()
    while not ctx.cancel_requested:
        time.sleep(0)
    raise ValueError("no, thanks")


@tool
def exits_the_thread(ctx: ToolContext[World]) -> str:
    ctx.deps.reach()
    sys.exit(3)


@tool
def raises_cancelled_in_a_thread(ctx: ToolContext[World]) -> str:
    ctx.deps.reach()
    raise asyncio.CancelledError


@tool
def raises_stop_iteration_in_a_thread(ctx: ToolContext[World]) -> str:
    ctx.deps.reach()
    raise StopIteration(1)


@tool
def raises_generator_exit_in_a_thread(ctx: ToolContext[World]) -> str:
    ctx.deps.reach()
    raise GeneratorExit


@tool
def interrupts_in_a_thread(ctx: ToolContext[World]) -> str:
    ctx.deps.reach()
    raise KeyboardInterrupt


@tool
def raises_late(ctx: ToolContext[World]) -> str:
    ctx.deps.reach()
    ctx.deps.released.wait()
    raise ValueError("late")


@tool
def waits_for_its_own_run_in_a_thread(ctx: ToolContext[World]) -> str:
    ctx.deps.reach()
    ctx.run.cancel().wait_sync()
    return "unreachable"


@tool
def runs_another_agent_in_its_thread(ctx: ToolContext[World]) -> str:
    inner = Agent("inner", model=ScriptedModel(stall(on_reached=ctx.deps.reach)))
    return str(inner.run_sync("go").stop_reason)


THREAD_TOOLS: list[Hostile] = [
    abandoned(blocks, 0.25),
    abandoned(spins, 0.25),
    abandoned(swallows_its_check, 0.25),
    Hostile(checks, Fate("cut"), Fate("cut", 0, ("checks",)), says="outcome unknown"),
    Hostile(returns_when_flagged, Fate("finished"), Fate("cut", 0, ("returns_when_flagged",)), says="saved in time"),
    Hostile(raises_when_flagged, Fate("cut"), Fate("cut", 0, ("raises_when_flagged",)), says="no, thanks"),
    ends(exits_the_thread, "failed", "SystemExit"),
    ends(raises_cancelled_in_a_thread, "failed", "it had not been asked"),
    ends(raises_stop_iteration_in_a_thread, "failed", "StopIteration"),
    ends(raises_generator_exit_in_a_thread, "failed", "GeneratorExit"),
    stops(interrupts_in_a_thread, "cut", "outcome unknown", interrupts=True),
    abandoned(raises_late, 0.25),
    stops(waits_for_its_own_run_in_a_thread, "cut", "which it is part of"),
    Hostile(
        runs_another_agent_in_its_thread,
        Fate("finished"),
        Fate("cut", 0, ("runs_another_agent_in_its_thread",)),
        says="cancelled",
    ),
]

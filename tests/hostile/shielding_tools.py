"""Tools that hide behind `ctx.shield`, or abuse it."""

from __future__ import annotations

import asyncio

from safepoint import ToolContext, tool
from safepoint.testing import pass_time
from tests.hostile.row import Fate, Hostile, abandoned, ends
from tests.hostile.task_tools import HALF, TWO, swallows_always
from tests.hostile.visit import World

FORCED = Fate("cut")


@tool
async def raises_in_a_shield(ctx: ToolContext[World]) -> str:
    ctx.deps.reach()
    async with ctx.shield(1):
        raise ValueError("inside")


@tool
async def raises_in_a_shield_that_holds_a_stop(ctx: ToolContext[World]) -> str:
    async with ctx.shield(1):
        ctx.deps.reach()
        await pass_time(HALF)
        raise ValueError("inside")


@tool
async def shields_longer_than_the_cap(ctx: ToolContext[World]) -> str:
    ctx.deps.reach()
    async with ctx.shield(4.5):
        return "unreachable"


@tool
async def leaves_its_shield_in_time(ctx: ToolContext[World]) -> str:
    async with ctx.shield(3):
        ctx.deps.reach()
        await pass_time(TWO)
    await ctx.deps.over.wait()
    return "late"


@tool
async def returns_from_its_shield(ctx: ToolContext[World]) -> str:
    async with ctx.shield(3):
        ctx.deps.reach()
        await pass_time(TWO)
        return "whole"


@tool
async def never_leaves_its_shield(ctx: ToolContext[World]) -> str:
    async with ctx.shield(3):
        ctx.deps.reach()
        await ctx.deps.over.wait()
    return "late"


@tool
async def never_leaves_its_shield_and_swallows(ctx: ToolContext[World]) -> str:
    async with ctx.shield(3):
        return await swallows_always(ctx)


@tool(grace=4)
async def swallows_behind_a_shield_with_a_long_grace(ctx: ToolContext[World]) -> str:
    async with ctx.shield(4):
        return await swallows_always(ctx)


@tool
async def leaves_an_inner_shield(ctx: ToolContext[World]) -> str:
    async with ctx.shield(1):
        async with ctx.shield(3):
            await asyncio.sleep(0)
        ctx.deps.reach()
        await ctx.deps.over.wait()
    return "late"


@tool
async def leaves_an_inner_shield_that_holds_a_stop(ctx: ToolContext[World]) -> str:
    async with ctx.shield(1):
        async with ctx.shield(3):
            ctx.deps.reach()
            await pass_time(HALF)
        await ctx.deps.over.wait()
    return "late"


@tool
async def stays_in_an_inner_shield(ctx: ToolContext[World]) -> str:
    async with ctx.shield(3), ctx.shield(1):
        ctx.deps.reach()
        await ctx.deps.over.wait()
    return "late"


@tool
async def shields_one_after_the_other(ctx: ToolContext[World]) -> str:
    async with ctx.shield(3):
        await asyncio.sleep(0)
    async with ctx.shield(0.5):
        ctx.deps.reach()
        await ctx.deps.over.wait()
    return "late"


@tool
async def shields_itself_when_cut(ctx: ToolContext[World]) -> str:
    ctx.deps.reach()
    try:
        await ctx.deps.over.wait()
    except asyncio.CancelledError:
        async with ctx.shield(4):
            await swallows_always(ctx)
    return "late"


@tool
async def shields_again_and_again(ctx: ToolContext[World]) -> str:
    ctx.deps.reach()
    while not ctx.deps.over.is_set():
        try:
            async with ctx.shield(HALF):
                await pass_time(HALF / 2)
        except asyncio.CancelledError:
            continue
    return "late"


SHIELDING_TOOLS: list[Hostile] = [
    ends(raises_in_a_shield, "failed", "inside"),
    Hostile(raises_in_a_shield_that_holds_a_stop, Fate("cut", HALF), FORCED, says="inside"),
    ends(shields_longer_than_the_cap, "failed", "above the ladder's cap of 4"),
    Hostile(leaves_its_shield_in_time, Fate("cut", 2), FORCED),
    Hostile(returns_from_its_shield, Fate("finished", 2), FORCED),
    Hostile(never_leaves_its_shield, Fate("cut", 3), FORCED),
    abandoned(never_leaves_its_shield_and_swallows, 4),
    abandoned(swallows_behind_a_shield_with_a_long_grace, 4),
    Hostile(leaves_an_inner_shield, Fate("cut", 1), FORCED),
    Hostile(leaves_an_inner_shield_that_holds_a_stop, Fate("cut", 1), FORCED),
    Hostile(stays_in_an_inner_shield, Fate("cut", 3), FORCED),
    Hostile(shields_one_after_the_other, Fate("cut", 0.5), FORCED),
    abandoned(shields_itself_when_cut, 1),
    abandoned(shields_again_and_again, 1.25),
]

"""Hostile tools that run in the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextvars import ContextVar

from safepoint import ToolContext, tool
from safepoint.testing import pass_time
from tests.hostile.row import Fate, Hostile, abandoned, ends, ends_by_the_last_cancel
from tests.hostile.visit import World

HALF = 0.5
TWO = 2.0

shared_lock = asyncio.Lock()
mood: ContextVar[str] = ContextVar("mood", default="calm")


@tool
async def swallows_once(ctx: ToolContext[World]) -> str:
    ctx.deps.reach()
    try:
        await ctx.deps.over.wait()
    except asyncio.CancelledError:
        await ctx.deps.over.wait()
    return "late"


@tool
async def swallows_always(ctx: ToolContext[World]) -> str:
    ctx.deps.reach()
    while not ctx.deps.over.is_set():
        try:
            await ctx.deps.over.wait()
        except asyncio.CancelledError:
            continue
    return "late"


@tool
async def swallows_and_works_on(ctx: ToolContext[World]) -> str:
    ctx.deps.reach()
    while not ctx.deps.over.is_set():
        try:
            await pass_time(HALF)
            await pass_time(HALF)
        except BaseException:
            await asyncio.sleep(0)
    return "late"


@tool
async def uncancels_itself(ctx: ToolContext[World]) -> str:
    ctx.deps.reach()
    task = asyncio.current_task()
    assert task is not None
    while not ctx.deps.over.is_set():
        try:
            await ctx.deps.over.wait()
        except asyncio.CancelledError:
            task.uncancel()
    return "late"


@tool
async def returns_when_cut(ctx: ToolContext[World]) -> str:
    ctx.deps.reach()
    try:
        await ctx.deps.over.wait()
    except asyncio.CancelledError:
        return "saved in time"
    return "late"


@tool
async def cleans_up_and_returns(ctx: ToolContext[World]) -> str:
    ctx.deps.reach()
    try:
        await ctx.deps.over.wait()
    except asyncio.CancelledError:
        await pass_time(HALF)
        return "saved in time"
    return "late"


@tool
async def cleans_up_and_leaves(ctx: ToolContext[World]) -> str:
    ctx.deps.reach()
    try:
        await ctx.deps.over.wait()
    finally:
        await pass_time(HALF)
    return "late"


@tool
async def awaits_in_finally(ctx: ToolContext[World]) -> str:
    ctx.deps.reach()
    try:
        await ctx.deps.over.wait()
    finally:
        await ctx.deps.loop.create_future() if not ctx.deps.over.is_set() else None
    return "late"


@tool
async def awaits_in_every_finally(ctx: ToolContext[World]) -> str:
    ctx.deps.reach()
    try:
        await ctx.deps.over.wait()
    finally:
        try:
            await ctx.deps.over.wait()
        finally:
            await ctx.deps.over.wait()
    return "late"


@tool
async def holds_a_lock(ctx: ToolContext[World]) -> str:
    async with shared_lock:
        ctx.deps.reach()
        await ctx.deps.over.wait()
    return "late"


async def _numbers(world: World) -> AsyncGenerator[int]:
    try:
        yield 1
        await world.over.wait()
        yield 2
    finally:
        await asyncio.sleep(0)


@tool
async def leaves_a_generator_open(ctx: ToolContext[World]) -> str:
    numbers = _numbers(ctx.deps)
    ctx.deps.seen.append(numbers)
    ctx.deps.reach()
    return f"first: {await anext(numbers)}"


@tool
async def is_cut_inside_a_generator(ctx: ToolContext[World]) -> str:
    ctx.deps.reach()
    async for number in _numbers(ctx.deps):
        ctx.deps.seen.append(number)
    return "late"


@tool
async def cancels_its_own_task(ctx: ToolContext[World]) -> str:
    ctx.deps.reach()
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)
    return "unreachable"


@tool
async def cancels_its_own_task_and_returns(ctx: ToolContext[World]) -> str:
    ctx.deps.reach()
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    return "done all the same"


@tool
async def leaves_tasks_behind(ctx: ToolContext[World]) -> str:
    ctx.deps.left.append(asyncio.create_task(ctx.deps.over.wait()))
    ctx.deps.reach()
    return "gone"


@tool
async def breaks_its_task_group(ctx: ToolContext[World]) -> str:
    async def fail() -> None:
        raise ValueError("one of the group")

    ctx.deps.reach()
    async with asyncio.TaskGroup() as group:
        group.create_task(fail())
        group.create_task(ctx.deps.over.wait())
    return "unreachable"


@tool
async def is_cut_in_a_task_group(ctx: ToolContext[World]) -> str:
    async with asyncio.TaskGroup() as group:
        group.create_task(ctx.deps.over.wait())
        await asyncio.sleep(0)
        ctx.deps.reach()
    return "late"


@tool
async def changes_its_context(ctx: ToolContext[World]) -> str:
    mood.set("wild")
    ctx.deps.reach()
    await ctx.deps.over.wait()
    return "late"


@tool
async def closes_the_loop(ctx: ToolContext[World]) -> str:
    ctx.deps.reach()
    ctx.deps.loop.close()
    return "unreachable"


@tool(on_cancel="finish", grace=3)
async def finishes(ctx: ToolContext[World]) -> str:
    ctx.deps.reach()
    await pass_time(TWO)
    return "whole"


@tool(on_cancel="finish", grace=3)
async def never_finishes(ctx: ToolContext[World]) -> str:
    ctx.deps.reach()
    await ctx.deps.over.wait()
    return "late"


@tool(on_cancel="finish", grace=3)
async def never_finishes_and_swallows(ctx: ToolContext[World]) -> str:
    return await swallows_always(ctx)


@tool(grace=4)
async def swallows_with_a_long_grace(ctx: ToolContext[World]) -> str:
    return await swallows_always(ctx)


TASK_TOOLS: list[Hostile] = [
    ends_by_the_last_cancel(swallows_once, 1),
    abandoned(swallows_always, 1),
    Hostile(swallows_and_works_on, Fate("cut", 1, ("swallows_and_works_on",)), Fate("cut")),
    abandoned(uncancels_itself, 1),
    Hostile(returns_when_cut, Fate("finished"), says="saved in time"),
    Hostile(
        cleans_up_and_returns,
        Fate("finished", HALF),
        Fate("cut"),
    ),
    Hostile(cleans_up_and_leaves, Fate("cut", HALF), Fate("cut")),
    ends_by_the_last_cancel(awaits_in_finally, 1),
    abandoned(awaits_in_every_finally, 1),
    Hostile(holds_a_lock, Fate("cut")),
    ends(leaves_a_generator_open, "finished", "first: 1"),
    Hostile(is_cut_inside_a_generator, Fate("cut")),
    ends(cancels_its_own_task, "failed", "it had not been asked"),
    ends(cancels_its_own_task_and_returns, "finished", "done all the same"),
    ends(leaves_tasks_behind, "finished", "gone"),
    ends(breaks_its_task_group, "failed", "one of the group"),
    Hostile(is_cut_in_a_task_group, Fate("cut")),
    Hostile(changes_its_context, Fate("cut")),
    ends(closes_the_loop, "failed", "running event loop"),
    Hostile(finishes, Fate("finished", 2), Fate("cut"), says=""),
    Hostile(never_finishes, Fate("cut", 3), Fate("cut")),
    abandoned(never_finishes_and_swallows, 4),
    abandoned(swallows_with_a_long_grace, 4),
]

"""The caller's own cancellation in all its forms, around a run and around what waits for one."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import anyio
import anyio.lowlevel

from safepoint._core.latch import Latch
from safepoint.testing import call, say, stall
from tests.injection.parts import A_MOMENT, A_WHILE, SlowHooks, agent, post
from tests.injection.tool_calls import three_deep


async def inside_a_timeout() -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(A_MOMENT):
            await agent(call("post"), say("done"), tools=[post], hooks=[SlowHooks()]).run("go")


async def inside_an_anyio_scope() -> None:
    with anyio.move_on_after(A_MOMENT):
        await agent(call("post"), say("done"), tools=[post]).run("go")


async def inside_an_anyio_group() -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(agent(call("post"), say("done"), tools=[post]).run, "go")
        await anyio.sleep(A_MOMENT)
        group.cancel_scope.cancel()


async def block_inside_an_anyio_scope() -> None:
    with anyio.move_on_after(A_MOMENT):
        async with three_deep().start("go") as run:
            await run.wait()


async def stream_inside_an_anyio_scope() -> None:
    with anyio.move_on_after(A_MOMENT):
        async with agent(call("post"), say("done"), tools=[post]).stream("go") as events:
            async for _ in events:
                await anyio.lowlevel.checkpoint()


async def cancelled_twice() -> None:
    """A shield does not stop a second `task.cancel()`; the caller still waits until the run has closed itself."""
    task = asyncio.create_task(agent(call("post"), say("done"), tools=[post]).run("go"))
    try:
        await asyncio.sleep(A_MOMENT)
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
    finally:
        task.cancel()
        await asyncio.wait([task])


async def runs_in_a_group() -> None:
    async with asyncio.TaskGroup() as group:
        for name in ("one", "other"):
            group.create_task(agent(call("post"), say("done"), name=name, tools=[post]).run("go"))


async def waited_for_until_tired() -> None:
    """Only the waiting ends; the run goes on until its block is left."""
    async with agent([say("Once"), stall()]).start("go") as run:
        with suppress(TimeoutError):
            async with asyncio.timeout(A_MOMENT):
                await run.wait()
        run.cancel()


async def reader_that_is_cancelled() -> None:
    """A reader leaves in the middle; the run and the others see nothing of it."""
    async with agent(call("post"), say("one two", pieces=2), tools=[post]).start("go") as run:
        with suppress(TimeoutError):
            async with asyncio.timeout(A_WHILE):
                async for _ in run.text():
                    await asyncio.sleep(A_MOMENT)


async def latch() -> None:
    latch = Latch()
    asyncio.get_running_loop().call_later(A_MOMENT, latch.set)
    async with asyncio.TaskGroup() as group:
        group.create_task(latch.wait())
        group.create_task(latch.wait())

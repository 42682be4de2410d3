"""Runs that are held, and go on, are stopped, or run out of time; tools and composites held in the middle."""

from __future__ import annotations

import asyncio

from safepoint import Parallel, SafePoint, Sequential, ToolContext, tool
from safepoint.testing import call, say
from tests.injection.parts import A_MOMENT, A_WHILE, agent, look, pages, post
from tests.injection.tool_calls import three_deep


async def held_and_released() -> None:
    async with agent(call("look"), say("done"), tools=[look]).start("go") as run:
        receipt = run.hold(reason="a look")
        await receipt.wait()
        await asyncio.sleep(A_WHILE)
        run.resume()


async def held_and_stopped() -> None:
    async with agent([call("post"), call("look")], say("done"), tools=[post, look], max_parallel_tools=1).start(
        "go"
    ) as run:
        await run.hold(SafePoint.AFTER_TOOL).wait()
        await run.cancel(SafePoint.AFTER_TOOLS).wait()


async def held_until_its_time_is_up() -> None:
    async with agent(call("look"), say("done"), tools=[look]).start("go") as run:
        await run.hold(SafePoint.AFTER_TOOLS, within=A_MOMENT).wait()


async def a_tool_is_held_at_its_own_point() -> None:
    async with agent(call("pages"), say("done"), tools=[pages]).start("go") as run:
        receipt = run.hold(SafePoint.named("page"))
        await receipt.wait()
        await asyncio.sleep(A_MOMENT)
        receipt.release()


async def a_run_inside_is_held() -> None:
    async with three_deep().start("go") as run:
        receipt = run.hold(recursive=True)
        await receipt.wait()
        receipt.release()


async def a_composite_is_held() -> None:
    first, second = agent(say("one"), name="first"), agent(say("two"), name="second")
    async with Sequential("both", first).then(second).start("go") as run:
        await run.hold().wait()
        run.resume()


async def a_composite_is_held_between_its_children() -> None:
    """Its group has a child that waits for its turn."""
    branches = [agent(call("look"), say(name), name=name, tools=[look]) for name in ("one", "other")]
    async with Parallel("both", branches, limit=1).start("go") as run:
        await run.hold().wait()
        run.resume()


async def held_by_the_last_tool() -> None:
    """The batch has ended when the run stands."""

    @tool
    async def holds(ctx: ToolContext) -> str:
        """Has the run held, and released a while later."""
        receipt = ctx.run.hold(SafePoint.AFTER_TOOLS)
        asyncio.get_running_loop().call_later(A_WHILE, receipt.release)
        return "held"

    await agent(call("holds"), say("done"), tools=[holds]).run("go")


# -- points of one's own, and messages that cannot wait ----------------------------------------------------------------


async def stopped_after_a_step() -> None:
    async with agent(call("look"), call("look"), say("done"), tools=[look]).start("go") as run:
        await run.cancel(SafePoint.after_step(2) | SafePoint.when(lambda state: state.tool_calls > 5)).wait()


async def steered_within() -> None:
    calls = [call("pages"), call("post")]
    async with agent(calls, say("done"), tools=[pages, post], max_parallel_tools=1).start("go") as run:
        await asyncio.sleep(0)
        await run.steer("hurry", within=A_MOMENT).wait()


async def steered_after_a_step() -> None:
    async with agent(call("look"), call("look"), say("done"), tools=[look]).start("go") as run:
        await run.steer("hurry", at=SafePoint.after_step(1)).wait()

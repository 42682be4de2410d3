"""Tools of every kind: how they run, how they are stopped, what they start themselves."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress

from safepoint import Agent, Ladder, Retry, SafePoint, ToolContext, tool
from safepoint.testing import ScriptedModel, call, say
from safepoint.testing.models import CallTool
from safepoint.tools import as_callable
from tests.injection.parts import A_MOMENT, A_WHILE, LONG, agent, look, pages, post


async def one_tool() -> None:
    await agent(call("post"), say("done"), tools=[post]).run("go")


async def parallel_tools() -> None:
    await agent([call("look", x=1), call("post", x=2), call("look", x=3)], say("done"), tools=[look, post]).run("go")


async def sequential_tools() -> None:
    calls = [call("look", x=1), call("post", x=2), call("look", x=3)]
    await agent(calls, say("done"), tools=[look, post], max_parallel_tools=1).run("go")


async def a_few_at_a_time() -> None:
    calls = [call("look", x=number) for number in range(4)]
    await agent(calls, say("done"), tools=[look], max_parallel_tools=2).run("go")


async def several_steps() -> None:
    await agent(call("look"), call("post"), call("look", x=1), say("done"), tools=[look, post]).run("go")


# -- threads ---------------------------------------------------------------------------------------------------------


@tool
def count(upto: int = 2) -> int:
    """Runs in a thread and ends at once."""
    return upto


async def thread_tool() -> None:
    await agent(call("count"), say("done"), tools=[count]).run("go")


async def thread_tools_one_by_one() -> None:
    await agent([call("count"), call("count", upto=3)], say("done"), tools=[count], max_parallel_tools=1).run("go")


async def thread_tool_that_looks() -> None:
    """It leaves when it is told to; until then it waits for the scenario."""
    go_on = threading.Event()

    @tool
    def watches(ctx: ToolContext) -> str:
        """Wait, and look whether to stop."""
        while not go_on.wait(A_MOMENT):
            ctx.check()
        return "seen"

    async with agent(call("watches"), say("done"), tools=[watches]).start("go") as run:
        async for event in run.events():
            if type(event).__name__ == "ToolCallStarted":
                go_on.set()


async def thread_tool_with_safe_points() -> None:
    @tool
    def walks(ctx: ToolContext) -> str:
        """Has safe points, in a thread."""
        for page in range(2):
            ctx.safe_point_sync("page", save=page)
        return "walked"

    async with agent(call("walks"), say("done"), tools=[walks]).start("go") as run:
        run.cancel(SafePoint.named("page"))


async def thread_tool_runs_an_agent() -> None:
    """The inner run has a loop of its own in the tool's thread, with real time; it is part of the tree all the same."""

    @tool
    def asks() -> str:
        """Run an agent without a loop."""
        return Agent("inside", model=ScriptedModel(say("inner answer"))).run_sync("sub").text

    await agent(call("asks"), say("done"), tools=[asks]).run("go")


# -- how they stop ---------------------------------------------------------------------------------------------------


async def shielded() -> None:
    @tool
    async def critical(ctx: ToolContext) -> str:
        """Has a section that NOW does not cut."""
        await asyncio.sleep(A_MOMENT)
        async with ctx.shield(A_WHILE):
            await asyncio.sleep(A_MOMENT)
            async with ctx.shield(A_WHILE):
                await asyncio.sleep(A_MOMENT)
            await asyncio.sleep(A_MOMENT)
        await asyncio.sleep(A_MOMENT)
        return "safe"

    await agent(call("critical"), say("done"), tools=[critical]).run("go")


async def undone() -> None:
    async def give_back(x: int) -> None:
        await asyncio.sleep(A_MOMENT)

    @tool(undo=give_back)
    async def takes(x: int = 0) -> str:
        """Can be undone."""
        await asyncio.sleep(A_WHILE)
        return "taken"

    await agent(call("takes"), say("done"), tools=[takes]).run("go")


async def undo_that_fails() -> None:
    async def fails() -> None:
        await asyncio.sleep(A_MOMENT)
        raise ConnectionError

    @tool(undo=fails, timeout=A_MOMENT)
    async def slow() -> str:
        """Times out; cannot be undone."""
        await asyncio.sleep(LONG)
        return "never"

    await agent(call("slow"), say("done"), tools=[slow]).run("go")


async def undo_that_hangs() -> None:
    async def hangs() -> None:
        await asyncio.get_running_loop().create_future()

    @tool(undo=hangs, timeout=A_MOMENT)
    async def slow() -> str:
        """Times out; its undo never ends."""
        await asyncio.sleep(LONG)
        return "never"

    await agent(call("slow"), say("done"), tools=[slow]).run("go")


async def left_to_finish() -> None:
    @tool(on_cancel="finish", grace=LONG)
    async def finishes() -> str:
        """Completes even if stopped."""
        await asyncio.sleep(A_WHILE)
        await asyncio.sleep(A_WHILE)
        return "finished"

    await agent([call("finishes"), call("look")], say("done"), tools=[finishes, look]).run("go")


async def finishes_too_late() -> None:
    @tool(on_cancel="finish", grace=A_MOMENT)
    async def dawdles() -> str:
        """Would like to complete, and is too slow for its grace."""
        await asyncio.sleep(A_WHILE)
        return "finished"

    await agent(call("dawdles"), say("done"), tools=[dawdles]).run("go")


async def timed_out() -> None:
    @tool(timeout=A_WHILE)
    async def slow() -> str:
        """Takes longer than it may."""
        try:
            await asyncio.sleep(LONG)
        finally:
            await asyncio.sleep(A_MOMENT)
        return "never"

    await agent([call("slow"), call("look")], say("done"), tools=[slow, look]).run("go")


async def swallows_the_cancel() -> None:
    @tool
    async def returns() -> str:
        """Returns a value when it is cut."""
        try:
            await asyncio.sleep(A_WHILE)
        except asyncio.CancelledError:
            await asyncio.sleep(A_MOMENT)
        return "all the same"

    await agent(call("returns"), say("done"), tools=[returns]).run("go")


async def raises_in_its_clean_up() -> None:
    @tool
    async def breaks() -> str:
        """Raises something else when it is cut."""
        try:
            await asyncio.sleep(A_WHILE)
        except asyncio.CancelledError:
            raise ConnectionError("while closing") from None
        return "whole"

    await agent(call("breaks"), say("done"), tools=[breaks]).run("go")


async def does_not_stop() -> None:
    """It takes far longer than the ladder: it is abandoned, and nobody waits for it."""

    @tool(ladder=Ladder(task=A_MOMENT))
    async def deaf() -> str:
        """Does not care about being cut."""
        try:
            await asyncio.sleep(A_WHILE)
        except asyncio.CancelledError:
            await asyncio.sleep(LONG)
        return "after all"

    await agent([call("deaf"), call("look")], say("done"), tools=[deaf, look]).run("go")


async def stops_at_a_named_point() -> None:
    async with agent([call("pages"), call("look")], say("done"), tools=[pages, look]).start("go") as run:
        run.cancel(SafePoint.named("page"))


# -- what they return ------------------------------------------------------------------------------------------------


async def final_tool() -> None:
    @tool(final=True)
    async def answers() -> str:
        """Gives the answer."""
        await asyncio.sleep(A_MOMENT)
        return "forty-two"

    await agent([call("answers"), call("look")], tools=[answers, look]).run("go")


async def every_way_to_fail() -> None:
    @tool
    async def fails(how: str) -> str:
        """Fails in its own way."""
        await asyncio.sleep(A_MOMENT)
        raise {"retry": Retry("a later date"), "error": ConnectionError(how), "cancel": asyncio.CancelledError()}[how]

    garbled = CallTool("look", {}, raw="{")
    ways = [call("fails", how=how) for how in ("retry", "error", "cancel")]
    await agent(
        [*ways, call("fails", why=1), call("nobody"), garbled], say("done"), tools=[fails, look], max_parallel_tools=2
    ).run("go")


async def tasks_of_its_own() -> None:
    @tool
    async def fans_out() -> int:
        """Starts tasks itself."""
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(A_MOMENT))
            group.create_task(asyncio.sleep(A_WHILE))
        return 2

    await agent(call("fans_out"), say("done"), tools=[fans_out]).run("go")


# -- agents inside ---------------------------------------------------------------------------------------------------


def three_deep() -> Agent:
    inner = agent(call("post"), say("inner"), name="inner", tools=[post])
    middle = agent(
        [call("inner", input="sub"), call("look")], say("middle"), name="middle", tools=[inner.as_tool(), look]
    )
    return agent(call("middle", input="sub"), say("outer"), name="outer", tools=[middle.as_tool()])


async def agents_three_deep() -> None:
    await three_deep().run("go")


async def agents_side_by_side() -> None:
    one, other = (agent(call("look"), say(name), name=name, tools=[look]) for name in ("one", "other"))
    calls = [call("one", input="a"), call("other", input="b")]
    await agent(calls, say("done"), name="outer", tools=[one.as_tool(), other.as_tool()]).run("go")


async def agents_stopped_at_their_own_points() -> None:
    async with three_deep().start("go") as run:
        await asyncio.sleep(A_MOMENT)
        await run.cancel(SafePoint.ANY, recursive=True, within=LONG).wait()


def helper() -> Agent:
    return agent(call("post"), say("helped"), name="helper", tools=[post])


async def run_inside_a_tool() -> None:
    @tool
    async def delegates() -> str:
        """Runs an agent by hand."""
        return (await helper().run("sub")).text

    await agent(call("delegates"), say("done"), tools=[delegates]).run("go")


async def block_inside_a_tool() -> None:
    @tool
    async def delegates() -> str:
        """Runs an agent in a block."""
        async with helper().start("sub") as run:
            async for _ in run.text():
                await asyncio.sleep(A_MOMENT)
        return run.result.text

    await agent(call("delegates"), say("done"), tools=[delegates]).run("go")


async def run_left_behind_by_a_tool() -> None:
    """The tool returns while the run that it started goes on: that run ends before the call does."""

    @tool
    async def forgets() -> str:
        """Starts a run and does not wait for it."""
        async for _ in helper().stream("sub", on_close="detach"):
            return "started"
        return "never"

    await agent(call("forgets"), say("done"), tools=[forgets]).run("go")


async def tool_stops_its_own_run() -> None:
    @tool
    async def gives_up(ctx: ToolContext) -> str:
        """Asks its own run to stop."""
        ctx.run.cancel(SafePoint.AFTER_TOOL)
        await asyncio.sleep(A_MOMENT)
        return "asked"

    await agent([call("gives_up"), call("look")], say("done"), tools=[gives_up, look], max_parallel_tools=1).run("go")


# -- without a run ---------------------------------------------------------------------------------------------------


async def tool_called_as_a_function() -> None:
    assert await as_callable(look)(x=1) == 1


async def tool_without_a_run_is_cut_and_undone() -> None:
    async def give_back() -> None:
        await asyncio.sleep(A_MOMENT)

    @tool(undo=give_back, timeout=A_MOMENT)
    async def takes() -> str:
        """Take longer than it may."""
        await asyncio.sleep(A_WHILE)
        return "taken"

    with suppress(TimeoutError):
        await as_callable(takes)()

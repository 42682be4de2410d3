"""Hooks of every kind, all of them waiting; hooks that deny, replace, fail, and start runs of their own."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

from safepoint import Deny, Hooks, Ladder, Replace, RunResult, SafePoint, tool
from safepoint._core.asks import Ask
from safepoint.history.parts import ToolCall
from safepoint.testing import call, say
from tests.injection.parts import A_MOMENT, A_WHILE, LONG, SlowHooks, agent, look, post


async def every_hook() -> None:
    await agent(call("look"), say("done"), tools=[look], hooks=[SlowHooks()]).run("go")


async def every_hook_of_a_stopped_run() -> None:
    """After the answer is recorded nothing changes it, and the hooks that hear of the stop are waited for."""
    async with agent(call("post"), say("done"), tools=[post], hooks=[SlowHooks(), SlowHooks()]).start("go") as run:
        await asyncio.sleep(A_WHILE)
        run.cancel(SafePoint.AFTER_TOOLS)


async def every_hook_of_a_stopped_stream() -> None:
    """Its reader has had the last event when the hooks hear of the stop."""
    async with agent(call("post"), say("done"), tools=[post], hooks=[SlowHooks()]).stream("go") as events:
        async for event in events:
            if type(event).__name__ == "ToolCallStarted":
                events.run.cancel(SafePoint.AFTER_TOOLS)


async def hooks_that_decide() -> None:
    class Decides(Hooks):
        async def before_tool(self, run: object, call: ToolCall) -> object:
            await asyncio.sleep(A_MOMENT)
            verdicts = {1: Deny("no"), 2: Replace(args={"x": 5}), 3: Replace(result="known")}
            return verdicts.get(call.args.get("x", 0))

    calls = [call("look", x=number) for number in range(4)]
    await agent(calls, say("done"), tools=[look], hooks=[Decides(), SlowHooks()]).run("go")


class Failing(SlowHooks):
    """Every hook fails, after a while."""

    def __getattribute__(self, name: str) -> Any:  # Any: whatever attribute
        found = super().__getattribute__(name)
        if name.startswith("__") or not inspect.iscoroutinefunction(found):
            return found

        async def fails(*args: object) -> None:
            await found(*args)
            raise ConnectionError(name)

        return fails


async def hooks_that_fail() -> None:
    await agent(call("look"), say("done"), tools=[look], hooks=[Failing()]).run("go")


async def hooks_that_do_not_end() -> None:
    class Hangs(Hooks):
        async def on_cancel_requested(self, run: object, ask: Ask) -> None:
            await asyncio.get_running_loop().create_future()

        async def on_stopped(self, run: object, result: RunResult[Any]) -> None:  # Any: of any output type
            await asyncio.get_running_loop().create_future()

    short = Ladder(task=A_MOMENT)
    async with agent(call("post"), say("done"), tools=[post], hooks=[Hangs()], ladder=short).start("go") as run:
        await asyncio.sleep(A_MOMENT)
        run.cancel(SafePoint.ANY)


async def hook_that_starts_a_run() -> None:
    """What a hook starts and leaves is part of the run, and ends with it."""

    class Starts(Hooks):
        async def before_run(self, run: object) -> None:
            helper = agent(call("post"), call("post"), say("helped"), name="helper", tools=[post])
            async for _ in helper.stream("sub", on_close="detach"):
                return

    await agent(call("look"), say("done"), tools=[look], hooks=[Starts()]).run("go")


async def hook_that_waits_for_a_run() -> None:
    class Waits(Hooks):
        async def after_model(self, run: object, message: object) -> None:
            await agent(say("judged"), name="judge").run("judge it")

    await agent(call("look"), say("done"), tools=[look], hooks=[Waits()]).run("go")


async def hooks_that_ask() -> None:
    """A person is asked before the run, before each model call and before the tool, until nothing is left to ask."""

    class Asks(Hooks):
        async def before_run(self, run: object) -> None:
            await asyncio.sleep(A_MOMENT)
            await self.ctx.interrupt("run?")

        async def before_model(self, run: object, request: object) -> None:
            await asyncio.sleep(A_MOMENT)
            await self.ctx.interrupt("model?")

        async def before_tool(self, run: object, call: ToolCall) -> None:
            await asyncio.sleep(A_MOMENT)
            await self.ctx.interrupt("tool?")

    asking = agent(call("look"), say("done"), tools=[look], hooks=[Asks()])
    result = await asking.run("go")
    while result.stop_reason == "interrupted" and result.checkpoint is not None:
        answers = {question.id: "yes" for question in result.questions}
        result = await asking.resume(result.checkpoint, answers=answers)


async def hooks_with_safe_points() -> None:
    class Stops(Hooks):
        async def before_model(self, run: object, request: object) -> None:
            await asyncio.sleep(A_MOMENT)
            await self.ctx.safe_point("model")

        async def before_tool(self, run: object, call: ToolCall) -> None:
            await asyncio.sleep(A_MOMENT)
            await self.ctx.safe_point("tool")

    stopping = agent(call("look"), say("done"), tools=[look], hooks=[Stops()])
    async with stopping.start("go") as run:
        run.cancel(SafePoint.named("tool"))
    if run.result.checkpoint is not None:
        await stopping.resume(run.result.checkpoint)


async def hook_stops_its_run() -> None:
    class Stops(Hooks):
        async def after_tool(self, run: Any, entry: object) -> None:  # Any: a run of any agent
            run.cancel(SafePoint.AFTER_TOOLS, within=LONG)
            await asyncio.sleep(A_MOMENT)

    @tool
    async def slow() -> str:
        """Takes a while."""
        await asyncio.sleep(A_WHILE)
        return "slow"

    await agent([call("look"), call("slow")], say("done"), tools=[look, slow], hooks=[Stops()]).run("go")

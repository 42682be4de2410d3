"""Runs that were stopped and go on: after every kind of stop, with answers from people, within budgets."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from safepoint import (
    Agent,
    AskFirst,
    Budget,
    Checkpoint,
    Hooks,
    Limit,
    Price,
    Resume,
    RunFailed,
    RunResult,
    SafePoint,
    ToolContext,
    tool,
)
from safepoint.agent.model import Finish, TextDelta
from safepoint.agent.resume import OnUnknown
from safepoint.history.parts import ToolCall
from safepoint.testing import call, fail, raw, say, stall
from tests.injection.parts import A_MOMENT, A_WHILE, LONG, agent, look, pages, post
from tests.injection.tool_calls import three_deep


async def _stopped(one: Agent, at: SafePoint, *, after: float = 0, recursive: bool = False) -> Checkpoint | None:
    """Run it, ask it to stop after a while, and carry what is left through its own encoding."""
    async with one.start("go") as run:
        await asyncio.sleep(after)
        await run.cancel(at, recursive=recursive).wait()
    return _carried(run.result)


def _carried(result: RunResult[Any]) -> Checkpoint | None:  # Any: of any output type
    checkpoint = result.checkpoint
    return None if checkpoint is None else Checkpoint.from_bytes(checkpoint.to_bytes())


async def _go_on(one: Agent, checkpoint: Checkpoint | None, on_unknown: OnUnknown = "tell") -> None:
    """Resume until there is nothing left to go on from; a person says yes to everything."""
    while checkpoint is not None:
        answers = {question.id: True for question in checkpoint.questions}
        checkpoint = _carried(await one.resume(checkpoint, answers=answers, on_unknown=on_unknown))


# -- after every kind of stop ----------------------------------------------------------------------------------------


async def resumed_before_the_first_call() -> None:
    one = agent(call("look"), say("done"), tools=[look])
    run = one.start("go")
    run.cancel()
    async with run:
        pass
    await _go_on(one, _carried(run.result))


async def resumed_after_the_model() -> None:
    one = agent([call("look"), call("post")], say("done"), tools=[look, post])
    await _go_on(one, await _stopped(one, SafePoint.AFTER_MODEL))


async def resumed_after_some_tools() -> None:
    one = agent([call("look"), call("post"), call("look", x=2)], say("done"), tools=[look, post], max_parallel_tools=1)
    await _go_on(one, await _stopped(one, SafePoint.AFTER_TOOL))


async def resumed_before_an_effect() -> None:
    one = agent([call("look"), call("post")], say("done"), tools=[look, post])
    await _go_on(one, await _stopped(one, SafePoint.BEFORE_EFFECT))


async def resumed_in_the_middle_of_tools() -> None:
    one = agent([call("look"), call("post"), call("pages")], say("done"), tools=[look, post, pages])
    await _go_on(one, await _stopped(one, SafePoint.NOW, after=A_MOMENT))


async def resumed_and_the_cut_call_made_again() -> None:
    one = agent([call("look"), call("post")], say("done"), tools=[look, post])
    await _go_on(one, await _stopped(one, SafePoint.NOW, after=A_MOMENT), on_unknown="rerun")


async def resumed_and_a_person_asked_about_the_cut_call() -> None:
    one = agent([call("look"), call("post")], say("done"), tools=[look, post])
    await _go_on(one, await _stopped(one, SafePoint.NOW, after=A_MOMENT), on_unknown="ask")


async def resumed_at_a_named_point() -> None:
    one = agent([call("pages"), call("look")], say("done"), tools=[pages, look])
    await _go_on(one, await _stopped(one, SafePoint.named("page")))


async def resumed_three_deep() -> None:
    one = three_deep()
    await _go_on(one, await _stopped(one, SafePoint.NOW, after=A_MOMENT))


async def resumed_at_a_sub_agents_own_point() -> None:
    one = three_deep()
    await _go_on(one, await _stopped(one, SafePoint.AFTER_MODEL, after=0, recursive=True))


async def resumed_while_the_model_spoke() -> None:
    one = agent([say("one two three", pieces=3), call("look")], say("done"), tools=[look])
    await _go_on(one, await _stopped(one, SafePoint.NOW))


async def resumed_again_and_again() -> None:
    one = agent(call("look"), call("look"), call("look"), say("done"), tools=[look])
    checkpoint = await _stopped(one, SafePoint.AFTER_TOOLS)
    for _ in range(2):
        if checkpoint is not None:
            async with one.start(checkpoint=checkpoint) as run:
                run.cancel(SafePoint.AFTER_TOOLS)
            checkpoint = _carried(run.result)
    await _go_on(one, checkpoint)


async def resumed_with_a_message() -> None:
    one = agent(call("look"), call("post"), say("done"), tools=[look, post])
    checkpoint = await _stopped(one, SafePoint.AFTER_MODEL)
    if checkpoint is not None:
        async with one.start(checkpoint=Resume(checkpoint, message="and hurry")) as run:
            async for _ in run.text():
                await asyncio.sleep(0)


async def continued_with_a_new_message() -> None:
    """Not a resume: the closed view is the history of another run."""
    one = agent(call("post"), say("done"), say("more"), tools=[post])
    checkpoint = await _stopped(one, SafePoint.NOW, after=A_MOMENT)
    if checkpoint is not None:
        await one.run("go on", history=checkpoint.messages)


async def resumed_after_an_error() -> None:
    one = agent(call("look"), [say("half"), fail(ConnectionError())], tools=[look])
    try:
        checkpoint = _carried(await one.run("go"))
    except RunFailed as failed:
        checkpoint = _carried(failed.result)
    if checkpoint is not None:
        other = agent(call("look"), say("done"), tools=[look])
        await other.resume(checkpoint)


async def resumed_after_the_limit_of_tokens() -> None:
    one = agent(raw(TextDelta("As long as"), Finish("max_tokens")))
    checkpoint = _carried(await one.run("go"))
    if checkpoint is not None:
        await agent(say("whole")).resume(checkpoint)


# -- a person is asked -----------------------------------------------------------------------------------------------


@tool
async def asks(ctx: ToolContext) -> str:
    """Ask twice, with something in front that must not happen twice."""

    async def prepare() -> str:
        await asyncio.sleep(A_MOMENT)
        return "prepared"

    await ctx.once("prepare", prepare)
    first = await ctx.interrupt("go?")
    await asyncio.sleep(A_MOMENT)
    second = await ctx.interrupt("sure?")
    await asyncio.sleep(A_MOMENT)
    return f"{first} {second}"


@tool
def asks_in_a_thread(ctx: ToolContext) -> str:
    """Ask from a thread."""
    return str(ctx.interrupt_sync("go?"))


async def interrupted() -> None:
    one = agent([call("asks"), call("look")], say("done"), tools=[asks, look])
    await _go_on(one, _carried(await one.run("go")))


async def interrupted_in_a_thread() -> None:
    one = agent(call("asks_in_a_thread"), say("done"), tools=[asks_in_a_thread])
    await _go_on(one, _carried(await one.run("go")))


async def interrupted_in_a_sub_agent() -> None:
    inner = agent([call("asks"), call("look")], say("inner"), name="inner", tools=[asks, look])
    one = agent([call("inner", input="sub"), call("look")], say("outer"), tools=[inner.as_tool(), look])
    await _go_on(one, _carried(await one.run("go")))


async def interrupted_by_a_check() -> None:
    class Asks(Hooks):
        async def before_tool(self, run: object, call: ToolCall) -> object:
            await asyncio.sleep(A_MOMENT)
            return AskFirst("may I?") if call.name == "post" else None

    one = agent([call("post"), call("look")], say("done"), tools=[post, look], hooks=[Asks()])
    await _go_on(one, _carried(await one.run("go")))


async def interrupted_and_stopped() -> None:
    """A cancel that stands when a person is asked wins; the question comes again when the run goes on."""
    one = agent([call("asks"), call("post")], say("done"), tools=[asks, post])
    await _go_on(one, await _stopped(one, SafePoint.AFTER_TOOLS))


async def interrupted_and_told_something_else() -> None:
    one = agent([call("asks"), call("look")], say("done"), say("all right"), tools=[asks, look])
    result = await one.run("go")
    await one.run("never mind", history=result.messages)


# -- budgets ---------------------------------------------------------------------------------------------------------


async def budget_of_steps() -> None:
    one = agent(call("look"), call("look"), call("look"), say("done"), tools=[look])
    result = await one.run("go", budget=Budget(steps=2))
    if result.checkpoint is not None:
        await one.resume(result.checkpoint)


async def budget_of_seconds() -> None:
    one = agent(call("post"), call("post"), say("done"), tools=[post])
    result = await one.run("go", budget=Budget(seconds=Limit(soft=A_MOMENT, hard=A_WHILE)))
    if result.checkpoint is not None:
        await one.resume(result.checkpoint)


async def budget_of_calls_and_repeats() -> None:
    one = agent([call("look"), call("look")], [call("look"), call("post")], say("done"), tools=[look, post])
    await one.run("go", budget=Budget(tool_calls=Limit(soft=1, hard=4), repeats=2))


async def budget_of_tokens_and_money() -> None:
    budget = Budget(tokens=Limit(soft=10, hard=40), cost=1, prices={"steps": Price(1, 1)})
    one = agent([say("word " * 20, pieces=4), call("look")], say("word " * 40, pieces=8), tools=[look], budget=budget)
    await one.run("go")


async def budget_used_up_while_the_model_is_silent() -> None:
    with suppress(RunFailed):
        await agent([say("Once"), stall()]).run("go", budget=Budget(seconds=LONG))


async def gone_back_to_an_earlier_step() -> None:
    done = await agent(call("post"), call("post"), say("done"), tools=[post]).run("go")
    if done.steps > 1:
        await agent(say("again"), tools=[post]).resume(done.at(1))

"""Every way to ask, and to wait for what comes of it: runs, nodes, tokens, agents, deadlines, messages."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from safepoint import CancelToken, SafePoint
from safepoint._core.points import Level
from safepoint.agent.events import ToolCallStarted
from safepoint.errors import TokenCancelled
from safepoint.testing import call, say
from tests.injection.parts import A_MOMENT, A_WHILE, LONG, SlowHooks, agent, look, pages, post
from tests.injection.tool_calls import three_deep


async def _stopped_at(at: SafePoint) -> None:
    calls = [call("pages"), call("post")]
    async with agent(calls, call("look"), say("done"), tools=[pages, post, look], max_parallel_tools=1).start(
        "go"
    ) as run:
        await asyncio.sleep(0)
        await run.cancel(at).wait()


async def stop_after_the_tools() -> None:
    await _stopped_at(SafePoint.AFTER_TOOLS)


async def stop_after_a_tool() -> None:
    await _stopped_at(SafePoint.AFTER_TOOL)


async def stop_after_the_model() -> None:
    await _stopped_at(SafePoint.AFTER_MODEL)


async def stop_before_an_effect() -> None:
    await _stopped_at(SafePoint.BEFORE_EFFECT)


async def stop_anywhere() -> None:
    await _stopped_at(SafePoint.named("page") | SafePoint.BEFORE_EFFECT)


async def stop_now() -> None:
    await _stopped_at(SafePoint.NOW)


async def force() -> None:
    async with three_deep().start("go") as run:
        await asyncio.sleep(A_MOMENT)
        await run.cancel(SafePoint.FORCE).wait()


async def stop_by_a_deadline() -> None:
    async with agent(call("post"), say("done"), tools=[post]).start("go") as run:
        await asyncio.sleep(0)
        await run.cancel(SafePoint.AFTER_TOOLS, within=A_MOMENT).wait()


async def stronger_and_stronger() -> None:
    async with agent(call("post"), say("done"), tools=[post], hooks=[SlowHooks()]).start("go") as run:
        receipts = [run.cancel(SafePoint.AFTER_TOOLS)]
        for at in (SafePoint.ANY, SafePoint.NOW, SafePoint.FORCE):
            await asyncio.sleep(A_MOMENT)
            receipts.append(run.cancel(at))
        await asyncio.gather(*(receipt.wait() for receipt in receipts))


async def asked_and_taken_back() -> None:
    async with agent(call("post"), say("done"), tools=[post]).start("go") as run:
        receipt = run.cancel(SafePoint.AFTER_TOOLS)
        await asyncio.sleep(A_MOMENT)
        receipt.withdraw()
        await receipt.wait()


async def waited_in_vain() -> None:
    async with agent(call("post"), say("done"), tools=[post]).start("go") as run:
        with suppress(TimeoutError):
            await run.cancel(SafePoint.AFTER_TOOLS).wait(timeout=A_MOMENT)


async def asked_before_the_start() -> None:
    run = agent(say("done")).start("go")
    receipt = run.cancel()
    async with run:
        await receipt.wait()


async def asked_after_the_end() -> None:
    async with agent(say("done")).start("go") as run:
        await run.wait()
        await run.cancel().wait()


async def asked_from_a_thread() -> None:
    async with agent(call("post"), say("done"), tools=[post]).start("go") as run:
        receipt = await asyncio.to_thread(run.cancel)
        await receipt.wait()


# -- one part of a run -----------------------------------------------------------------------------------------------


async def one_call_is_stopped() -> None:
    async with agent([call("post"), call("look")], say("done"), tools=[post, look]).start("go") as run:
        async for event in run.events():
            if isinstance(event, ToolCallStarted) and event.call.name == "post":
                for node in run.tree.walk():
                    if node.name == "post":
                        await node.cancel().wait()


async def one_sub_agent_is_stopped() -> None:
    async with three_deep().start("go") as run:
        async for event in run.events():
            if isinstance(event, ToolCallStarted) and event.call.name == "post":
                for node in run.tree.walk():
                    if node.name == "inner":
                        await node.cancel(SafePoint.AFTER_TOOL).wait()
                        break


async def all_but_one() -> None:
    calls = [call("post", x=1), call("post", x=2), call("look")]
    async with agent(calls, say("done"), tools=[post, look]).start("go") as run:
        async for event in run.events():
            if isinstance(event, ToolCallStarted) and event.call.args.get("x") == 2:
                (kept,) = [node for node in run.tree.walk() if node.id == event.call.id] or [run.node]
                for receipt in run.tree.cancel_all_but(kept):
                    await receipt.wait()


# -- many runs at once -----------------------------------------------------------------------------------------------


async def token_of_two_runs() -> None:
    token = CancelToken()
    one, other = agent(call("post"), say("done"), name="one", tools=[post]), agent(say("other"), name="other")
    async with one.start("go", token=token), other.start("go", token=token):
        await asyncio.sleep(A_MOMENT)
        await token.cancel().wait()
    with suppress(TokenCancelled):
        await other.run("again", token=token)


async def all_runs_of_an_agent() -> None:
    one = agent(call("post"), say("done"), tools=[post])
    async with one.start("first"), one.start("second"):
        await asyncio.sleep(A_MOMENT)
        await one.cancel(SafePoint.ANY).wait(timeout=LONG)


async def kept_for_the_next_run() -> None:
    one = agent(say("done"))
    receipt = one.cancel()
    await one.run("first")
    await receipt.wait()
    await one.run("second")


# -- messages --------------------------------------------------------------------------------------------------------


async def steered() -> None:
    async with agent(call("look"), call("look"), say("done"), tools=[look]).start("go") as run:
        await asyncio.sleep(A_MOMENT)
        await run.steer("faster").wait()
        await asyncio.sleep(A_WHILE)
        await run.steer("too late").wait()


# -- looking ---------------------------------------------------------------------------------------------------------


async def looked_at_while_it_stops() -> None:
    async with agent(call("post"), say("done"), tools=[post]).start("go") as run:
        await asyncio.sleep(A_WHILE)
        run.preview_cancel(recursive=True)
        receipt = run.cancel()
        await asyncio.sleep(0)
        assert all(holding.seconds >= 0 for holding in run.why_not_stopped())
        await receipt.wait()
        assert run.node.pushed >= Level.NONE

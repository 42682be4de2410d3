"""Entry points that lead to an answer: `run`, the block, the readers, the stream, and models in trouble."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing, suppress
from typing import Any

from pydantic import BaseModel

from safepoint import Agent, Message, ModelSettings, Run, RunFailed
from safepoint.agent.model import Finish, TextDelta
from safepoint.errors import ModelUnavailable
from safepoint.testing import ScriptedModel, call, fail, raw, say, stall, think
from tests.injection.parts import A_MOMENT, A_WHILE, LONG, StepModel, agent, look, post


async def plain_answer() -> None:
    await agent([think("Hm.", signature="s"), say("Hello to you", pieces=3)]).run("hi")


async def trimmed_answer() -> None:
    async def summary(messages: list[Message]) -> Sequence[Message]:
        await asyncio.sleep(A_MOMENT)
        return messages

    await agent(call("look"), say("done"), tools=[look], trim=summary).run("go")


async def answer_in_a_block() -> None:
    async with agent(call("look"), say("done"), tools=[look]).start("go") as run:
        await run.wait()


async def block_left_early() -> None:
    async with agent(call("post"), say("done"), tools=[post]).start("go"):
        await asyncio.sleep(A_MOMENT)


async def block_left_by_an_error() -> None:
    with suppress(LookupError):
        async with agent(call("post"), say("done"), tools=[post]).start("go"):
            await asyncio.sleep(A_MOMENT)
            raise LookupError


async def events_read() -> None:
    async with agent([say("one two", pieces=2), call("look")], say("done"), tools=[look]).start("go") as run:
        async for _ in run.events():
            await asyncio.sleep(0)


async def events_read_for_a_while() -> None:
    async with agent([say("one two", pieces=2), call("look")], say("done"), tools=[look]).start("go") as run:
        async for _ in run.events():
            break


async def text_read() -> None:
    async with agent([say("one two", pieces=2), call("look")], say("three"), tools=[look]).start("go") as run:
        async for _ in run.text():
            await asyncio.sleep(A_MOMENT)


async def read_by_two_tasks() -> None:
    async def read(run: Run[Any, Any]) -> None:  # Any: a run of any agent
        async for _ in run.events():
            await asyncio.sleep(0)

    handle = agent([say("one"), call("look")], say("done"), tools=[look]).start("go")
    async with handle as run, asyncio.TaskGroup() as group:
        group.create_task(read(run))
        group.create_task(read(run))


async def streamed() -> None:
    async for _ in agent([say("one two", pieces=2), call("look")], say("done"), tools=[look]).stream("go"):
        pass


async def stream_left_early() -> None:
    async with agent([say("one two", pieces=2), call("post")], say("done"), tools=[post]).stream("go") as events:
        async for event in events:
            if type(event).__name__ == "ToolCallStarted":
                break


async def stream_closed() -> None:
    async with aclosing(agent([say("one"), call("post")], say("done"), tools=[post]).stream("go")) as events:
        async for _ in events:
            await asyncio.sleep(A_MOMENT)
            break


async def stream_detached() -> None:
    events = agent([say("one"), call("look")], say("done"), tools=[look]).stream("go", on_close="detach")
    try:
        async with events:
            async for _ in events:
                break
        await events.run.wait()
    finally:
        events.run.cancel()
        await events.run.join()


async def retries_with_back_off() -> None:
    busy = fail(ModelUnavailable("429", retry_after=A_WHILE))
    with suppress(RunFailed):
        await Agent("patient", model=ScriptedModel(busy, busy, say("at last"))).run("go")


async def fallback_model() -> None:
    down = ScriptedModel(fail(ModelUnavailable("down")), repeat=True)
    await Agent("flexible", model=down, fallback=[ScriptedModel(say("from the other"))], retries=0).run("go")


async def silent_before_the_first_token() -> None:
    model = ScriptedModel(stall(), say("awake"))
    await Agent("sleepy", model=model, settings=ModelSettings(timeout_first_token=A_WHILE)).run("go")


async def silent_in_the_middle() -> None:
    settings = ModelSettings(timeout_idle=A_WHILE)
    with suppress(RunFailed):
        await Agent("faint", model=ScriptedModel([say("Once upon"), stall()]), settings=settings).run("go")


async def model_fails() -> None:
    with suppress(RunFailed):
        await agent(call("look"), [say("half"), fail(ConnectionError("reset"))], tools=[look]).run("go")


async def model_misbehaves() -> None:
    with suppress(RunFailed):
        await agent(raw(TextDelta("Half a"))).run("go")


async def answer_cut_by_the_limit() -> None:
    await agent(raw(TextDelta("As long as"), Finish("max_tokens"))).run("go")


async def refused() -> None:
    await agent(raw(Finish("refused"))).run("go")


async def instructions_that_wait() -> None:
    async def instructions(run: Run[Any, Any]) -> str:  # Any: a run of any agent
        await asyncio.sleep(A_MOMENT)
        return f"You are {run.agent.name}."

    await agent(call("look"), say("done"), tools=[look], instructions=instructions).run("go")


class City(BaseModel):
    name: str
    people: int


async def typed_answer() -> None:
    model = StepModel(call("look"), call("final_answer", name="Bern", people=134_000))
    await Agent("typed", model=model, tools=[look], output=City).run("go")


async def typed_answer_at_the_second_try() -> None:
    model = StepModel(say("It is Bern."), say('{"name": "Bern", "people": 134000}'))
    await Agent("typed", model=model, output=City).run("go")


async def waited_for_by_two_tasks() -> None:
    async with agent(call("look"), say("done"), tools=[look]).start("go") as run:
        await asyncio.gather(run.wait(), run.wait())


async def two_runs_of_one_agent() -> None:
    one = agent(call("look"), say("done"), tools=[look])
    async with asyncio.TaskGroup() as group:
        group.create_task(one.run("first"))
        group.create_task(one.run("second"))


async def one_run_after_the_other() -> None:
    one = agent(call("look"), say("done"), tools=[look])
    first = await one.run("first")
    await one.run("second", history=first.messages)


async def slow_model() -> None:
    """The provider takes its time to answer and is not cut by anybody's time-out."""

    def on_reached() -> None:
        asyncio.get_running_loop().call_later(LONG, run.cancel)

    async with agent([say("Once upon"), stall(on_reached)]).start("go") as run:
        await run.wait()

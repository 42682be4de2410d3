"""Agents made of agents: every shape, two nested mixes, and each of them resumed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeAlias

from safepoint import (
    BaseAgent,
    Branch,
    Budget,
    Checkpoint,
    Handoff,
    Loop,
    Parallel,
    RunFailed,
    RunResult,
    SafePoint,
    Sequential,
    loop_done,
    run_many,
)
from safepoint.sessions import Session, Store
from safepoint.testing import call, fail, say
from tests.injection.parts import A_MOMENT, LONG, agent, look, post
from tests.injection.resuming import asks

Composite: TypeAlias = BaseAgent[None, Any]  # Any: outputs of every type


def _sequence() -> Composite:
    first = agent(call("post"), say("found", pieces=2), name="first", tools=[post])
    return Sequential("sequence", first).then(agent(call("look"), say("done"), name="last", tools=[look]))


def _parallel() -> Composite:
    one = agent(call("post"), say("one"), name="one", tools=[post])
    other = agent(call("look"), call("look"), say("other"), name="other", tools=[look])
    third = Branch(agent(say("third"), name="third"), name="three", input=lambda prompt: f"{prompt}!")
    return Parallel("parallel", [one, other, third], limit=2)


def _loop() -> Composite:
    return Loop("loop", agent(call("look"), say("round"), name="body", tools=[look]), max_rounds=2)


def _handoff() -> Composite:
    triage = agent([say("hm"), call("transfer_to_billing")], name="triage")
    billing = agent(say("unused"), call("post"), say("paid"), name="billing", tools=[post])
    return Handoff("handoff", triage, to={triage: [billing]})


def _loop_of_a_sequence_of_a_parallel() -> Composite:
    search = Parallel("search", [agent(call("look"), say(name), name=name, tools=[look]) for name in ("web", "papers")])
    critic = agent(call("loop_done"), say("fine"), name="critic", tools=[loop_done])
    return Loop("outer", Sequential("round", search).then(critic), max_rounds=2)


def _agent_with_a_composite_as_a_tool() -> Composite:
    inner = agent(call("look"), say("sub"), name="inner", tools=[look])
    first = agent([call("inner", input="x"), call("look")], say("found"), name="first", tools=[inner.as_tool(), look])
    pipeline = Sequential("pipeline", first).then(_handoff())
    return agent(call("pipeline", input="sub"), say("done"), name="boss", tools=[pipeline.as_tool()])


async def sequence() -> None:
    await _sequence().run("go")


async def parallel() -> None:
    await _parallel().run("go")


def _ignore(done: int, total: int) -> None:
    pass


async def many_inputs() -> None:
    await run_many(agent(call("look"), say("one"), name="one", tools=[look]), ["a"], on_progress=_ignore)


async def loop() -> None:
    await _loop().run("go")


async def handoff() -> None:
    async with _handoff().start("go") as run:
        async for _ in run.text():
            await asyncio.sleep(0)


async def loop_of_a_sequence_of_a_parallel() -> None:
    await _loop_of_a_sequence_of_a_parallel().run("go")


async def agent_with_a_composite_as_a_tool() -> None:
    await _agent_with_a_composite_as_a_tool().run("go")


# -- stopped and resumed ---------------------------------------------------------------------------------------------


def _carried(result: RunResult[Any]) -> Checkpoint | None:  # Any: as above
    return None if result.checkpoint is None else Checkpoint.from_bytes(result.checkpoint.to_bytes())


async def _there_and_back(make: Callable[[], Composite], at: SafePoint, *, after: float, recursive: bool) -> None:
    one = make()
    async with one.start("go") as run:
        await asyncio.sleep(after)
        await run.cancel(at, recursive=recursive).wait()
    checkpoint = _carried(run.result)
    while checkpoint is not None:
        answers = {question.id: True for question in checkpoint.questions}
        checkpoint = _carried(await one.resume(checkpoint, answers=answers))


async def sequence_resumed_between_its_children() -> None:
    await _there_and_back(_sequence, SafePoint.AFTER_MODEL, after=0, recursive=False)


async def sequence_resumed_inside_a_child() -> None:
    await _there_and_back(_sequence, SafePoint.AFTER_TOOLS, after=0, recursive=True)


async def parallel_resumed() -> None:
    await _there_and_back(_parallel, SafePoint.NOW, after=A_MOMENT, recursive=False)


async def parallel_resumed_before_any_branch_began() -> None:
    one = _parallel()
    run = one.start("go")
    run.cancel()
    async with run:
        pass
    checkpoint = _carried(run.result)
    if checkpoint is not None:
        await one.resume(checkpoint)


async def loop_resumed() -> None:
    await _there_and_back(_loop, SafePoint.ANY, after=A_MOMENT, recursive=False)


async def handoff_resumed() -> None:
    await _there_and_back(_handoff, SafePoint.ANY, after=0, recursive=False)


async def loop_of_a_sequence_of_a_parallel_resumed() -> None:
    await _there_and_back(_loop_of_a_sequence_of_a_parallel, SafePoint.NOW, after=A_MOMENT, recursive=False)


async def agent_with_a_composite_as_a_tool_resumed() -> None:
    await _there_and_back(_agent_with_a_composite_as_a_tool, SafePoint.ANY, after=A_MOMENT, recursive=True)


# -- the rest --------------------------------------------------------------------------------------------------------


async def parallel_with_a_branch_that_fails() -> None:
    bad = agent(fail(ConnectionError("gone")), name="bad")
    with suppress(RunFailed):
        await Parallel("parallel", [bad, agent(call("look"), say("x"), name="good", tools=[look])]).run("go")


async def parallel_with_a_branch_stopped_alone() -> None:
    branches = [agent(call("look"), say(name), name=name, tools=[look]) for name in ("one", "other")]
    async with Parallel("parallel", branches).start("go") as run:
        await asyncio.sleep(0)
        for node in list(run.tree.walk())[1:2]:
            await node.cancel(SafePoint.ANY, within=LONG).wait()


async def sequence_that_asks_a_person() -> None:
    one = Sequential("sequence", agent(call("asks"), say("asked"), name="first", tools=[asks])).then(
        agent(say("done"), name="last")
    )
    checkpoint = _carried(await one.run("go"))
    while checkpoint is not None:
        answers = {question.id: True for question in checkpoint.questions}
        checkpoint = _carried(await one.resume(checkpoint, answers=answers))


async def sequence_with_a_budget() -> None:
    first = agent(call("look"), say("found"), name="first", tools=[look])
    await Sequential("sequence", first, budget=Budget(steps=2)).then(agent(say("done"), name="last")).run("go")


async def handoff_with_a_message() -> None:
    async with _handoff().start("go") as run:
        await asyncio.sleep(A_MOMENT)
        run.steer("and hurry")


async def sequence_in_a_session(store: Store) -> None:
    session = await Session.create(store, "s")
    await _sequence().run("one", session=session)
    await _sequence().run("two", session=session)

"""`result.text` is what the model said last in this run, whatever came after its words."""

from __future__ import annotations

import pytest

from safepoint import Agent, RunResult, SafePoint, ToolContext, tool
from safepoint.sessions import MemoryStore, Session
from safepoint.testing import ScriptedModel, call, say
from tests.virtual import virtual


@tool
def step() -> str:
    """Do a step."""
    return "done"


@tool
async def ask(ctx: ToolContext) -> str:
    """Ask a person."""
    return str(await ctx.interrupt("may I?"))


async def stopped(agent: Agent, at: SafePoint, **options: object) -> RunResult:
    run = agent.start("go", **options)  # type: ignore[arg-type]  # of every kind
    run.cancel(at)
    async with run:
        return await run.wait()


@pytest.mark.parametrize("at", [SafePoint.AFTER_MODEL, SafePoint.AFTER_TOOL, SafePoint.AFTER_TOOLS])
@virtual
async def test_words_before_a_tool_call_are_the_last_words_of_a_run_that_was_stopped_there(at: SafePoint) -> None:
    result = await stopped(Agent("a", model=ScriptedModel([say("I will"), call("step")]), tools=[step]), at)
    assert (result.stop_reason, result.text) == ("cancelled", "I will")


@virtual
async def test_words_before_a_question_are_the_last_words_of_a_run_that_waits() -> None:
    result = await Agent("a", model=ScriptedModel([say("I ask"), call("ask")]), tools=[ask]).run("go")
    assert (result.stop_reason, result.text) == ("interrupted", "I ask")


@virtual
async def test_the_last_words_stay_the_last_after_a_reply_that_only_calls() -> None:
    model = ScriptedModel([say("I will"), call("step")], call("step"))
    agent = Agent("a", model=model, tools=[step])
    async with agent.start("go") as run:
        async for event in run.events():
            if type(event).__name__ == "ModelCallEnded" and model.calls == 2:
                run.cancel(SafePoint.AFTER_MODEL)
    assert run.result.text == "I will"


@virtual
async def test_words_of_an_earlier_turn_are_not_those_of_a_run_that_said_nothing() -> None:
    model = ScriptedModel(say("old"), say("unused"), call("step"))
    agent = Agent("a", model=model, tools=[step])
    session = await Session.create(MemoryStore())
    first = await agent.run("go", session=session)
    assert first.text == "old"
    assert (await stopped(agent, SafePoint.NOW, session=session)).text == ""
    assert (await stopped(agent, SafePoint.NOW, history=first.messages)).text == ""


@virtual
async def test_a_resumed_run_knows_the_last_words_of_its_turn() -> None:
    agent = Agent("a", model=ScriptedModel([say("I will"), call("step")], say("done")), tools=[step])
    first = await stopped(agent, SafePoint.AFTER_MODEL)
    assert first.checkpoint is not None
    run = agent.start(checkpoint=first.checkpoint)
    run.cancel(SafePoint.NOW)
    async with run:
        again = await run.wait()
    assert (again.text, again.ledger[0].state) == ("I will", "not_started")

"""What one run is started with: one list of options for every way to start, and the agent's own parts replaced."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Unpack

import pytest

from safepoint import (
    Agent,
    Budget,
    CancelToken,
    Checkpoint,
    Ladder,
    ModelSettings,
    Price,
    Run,
    RunOptions,
    SafePoint,
    Sequential,
    ToolContext,
    tool,
)
from safepoint.agent.output import OUTPUT_TOOL
from safepoint.errors import ModelError, TokenCancelled, UsageError
from safepoint.testing import ScriptedModel, call, fail, say
from tests.virtual import virtual


@dataclass(frozen=True)
class Deps:
    name: str


@tool(effect="pure")
def old() -> str:
    """The agent's own."""
    return "old"


@tool(effect="pure")
def new() -> str:
    """For one run."""
    return "new"


@tool(effect="pure", grace=5, on_cancel="finish")
async def slow() -> str:
    """Needs time to finish."""
    return "slow"


async def stopped(agent: Agent) -> Checkpoint:
    run = agent.start("go")
    run.cancel()
    async with run:
        result = await run.wait()
    assert result.checkpoint is not None
    return result.checkpoint


@pytest.mark.parametrize("form", ["start", "run", "stream", "resume", "run_sync", "stream_sync", "resume_sync"])
def test_every_way_to_start_takes_the_parts_of_a_run(form: str) -> None:
    own, other = ScriptedModel(), ScriptedModel(call("new"), say("done"))
    agent = Agent("a", model=own, instructions="own", tools=[old])
    settings = ModelSettings(temperature=0.5)

    async def started() -> None:
        options = RunOptions(model=other, settings=settings, instructions="other", tools=[new])
        match form:
            case "start":
                async with agent.start("go", **options) as run:
                    await run.wait()
            case "run":
                await agent.run("go", **options)
            case "stream":
                async for _ in agent.stream("go", **options):
                    pass
            case _:
                await agent.resume(await stopped(agent), **options)

    match form:
        case "run_sync":
            agent.run_sync("go", model=other, settings=settings, instructions="other", tools=[new])
        case "stream_sync":
            list(agent.stream_sync("go", model=other, settings=settings, instructions="other", tools=[new]))
        case "resume_sync":
            checkpoint = asyncio.run(stopped(agent))
            agent.resume_sync(checkpoint, model=other, settings=settings, instructions="other", tools=[new])
        case _:
            asyncio.run(started())
    assert own.calls == 0
    request = other.requests[0]
    assert (request.instructions, request.settings, [spec.name for spec in request.tools]) == (
        "other",
        settings,
        ["new"],
    )
    assert other.requests[1].messages[-1].parts[0].content == "new"  # type: ignore[union-attr]  # a result


@virtual
async def test_what_is_left_out_or_none_is_the_agents_own_and_stays_it() -> None:
    model, other = ScriptedModel(say("own"), say("own")), ScriptedModel(say("other"))
    agent = Agent("a", model=model, instructions="own", tools=[old], settings=ModelSettings(temperature=0.1))
    assert (await agent.run("go", model=other)).text == "other"
    assert (other.requests[0].instructions, other.requests[0].settings.temperature) == ("own", 0.1)
    assert (await agent.run("go", model=None, tools=None, instructions="")).text == "own"
    assert (model.requests[0].instructions, [spec.name for spec in model.requests[0].tools]) == ("", ["old"])
    await agent.run("go")
    assert model.requests[1].instructions == "own"


@virtual
async def test_fallbacks_and_the_typed_output_stay() -> None:
    answer = ScriptedModel(call(OUTPUT_TOOL, value=3))
    agent = Agent("a", model=ScriptedModel(), fallback=[answer], output=int)
    result = await agent.run("go", model=ScriptedModel(fail(ModelError("down"))), tools=[])
    assert result.output == 3


@virtual
async def test_a_run_with_parts_of_its_own_is_a_run_of_the_agent_that_can_be_cancelled() -> None:
    agent = Agent("a", model=ScriptedModel())
    run = agent.start("go", model=ScriptedModel(say("hi")))
    async with run:
        assert agent.cancel().accepted
    assert run.result.stop_reason == "cancelled"


def test_parts_that_do_not_fit_are_refused_where_they_are_given() -> None:
    agent = Agent(
        "a", model=ScriptedModel(), ladder=Ladder(cap=2), budget=Budget(cost=1, prices={"scripted": Price(1, 1)})
    )
    with pytest.raises(ValueError, match="grace"):
        agent.start("go", tools=[slow])
    with pytest.raises(ValueError, match="tool_choice='new' is no tool"):
        agent.start("go", settings=ModelSettings(tool_choice="new"))
    with pytest.raises(ValueError, match="is not a model"):
        agent.start("go", model=7)  # type: ignore[arg-type]  # what is tested
    with pytest.raises(ValueError, match="other"):
        agent.start("go", model=ScriptedModel(name="other"))


def test_a_composite_refuses_a_model_and_says_where_it_belongs() -> None:
    pipeline = Sequential("both", Agent("one", model=ScriptedModel()))
    with pytest.raises(UsageError, match="'both' is made of agents and has no model of its own"):
        pipeline.start("go", model=ScriptedModel())


def test_a_misspelt_option_is_refused_and_the_options_are_named() -> None:
    agent = Agent("a", model=ScriptedModel())
    with pytest.raises(TypeError, match="no option 'sesion': the options are history, session,"):
        agent.start("go", sesion=None)  # type: ignore[call-arg]  # what is tested
    with pytest.raises(TypeError, match="no option 'modle'"):
        agent.run_sync("go", modle="x")  # type: ignore[call-arg]  # likewise


def test_the_options_are_written_once() -> None:
    for name in ("start", "run", "stream", "resume", "run_sync", "stream_sync", "resume_sync"):
        assert not {"history", "session", "deps", "token", "model"} & set(
            inspect.signature(getattr(Agent, name)).parameters
        )


def test_a_program_can_hand_the_options_on_with_their_types() -> None:
    @tool
    def greet(ctx: ToolContext[Deps]) -> str:
        """Greet."""
        return ctx.deps.name

    def ask(agent: Agent[Deps], **options: Unpack[RunOptions[Deps]]) -> str:
        return agent.run_sync("go", **options).ledger[0].content or ""

    agent = Agent[Deps]("a", model=ScriptedModel(call("greet"), say("hi")), tools=[greet])
    assert ask(agent, deps=Deps("ada")) == "ada"


# -- tokens ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["start", "run", "stream", "resume", "run_sync", "stream_sync", "resume_sync"])
def test_a_token_left_cancelled_refuses_every_way_to_start(form: str) -> None:
    model, token = ScriptedModel(), CancelToken()
    agent = Agent("a", model=model)
    checkpoint = asyncio.run(stopped(agent))
    token.cancel(reason="closing time")

    ways: dict[str, Callable[[], object]] = {
        "start": lambda: agent.start("go", token=token),
        "run": lambda: asyncio.run(agent.run("go", token=token)),
        "stream": lambda: agent.stream("go", token=token),
        "resume": lambda: asyncio.run(agent.resume(checkpoint, token=token)),
        "run_sync": lambda: agent.run_sync("go", token=token),
        "stream_sync": lambda: agent.stream_sync("go", token=token),
        "resume_sync": lambda: agent.resume_sync(checkpoint, token=token),
    }
    with pytest.raises(TokenCancelled, match="closing time"):
        ways[form]()
    assert model.calls == 0


@virtual
async def test_a_token_cancelled_after_the_handle_was_made_stops_the_run_before_its_first_step() -> None:
    model, token = ScriptedModel(), CancelToken()
    agent = Agent("a", model=model)
    run, stream = agent.start("go", token=token), agent.stream("go", token=token)
    receipt = token.cancel(reason="closing time")
    async with run:
        result = await run.wait()
    async for _ in stream:
        pass
    for ended in (result, stream.run.result):
        assert (ended.stop_reason, ended.messages[0].text) == ("cancelled", "go")
        assert ended.cancellation is not None
        assert ended.cancellation.reason.text == "closing time"
    assert (len(receipt.receipts), await receipt.wait(), model.calls) == (2, "stopped", 0)


@virtual
async def test_a_safe_point_ask_on_a_token_counts_for_a_run_that_starts_later_under_it() -> None:
    token = CancelToken()
    run: Run[None] = Agent("a", model=ScriptedModel([say("I will"), call("old")]), tools=[old]).start("go", token=token)
    token.cancel(SafePoint.AFTER_MODEL)
    async with run:
        result = await run.wait()
    assert (result.stop_reason, result.text) == ("cancelled", "I will")

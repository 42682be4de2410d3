"""Budgets: each mark is exact, asks once, gives its reason, and is carried into the run that continues."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from safepoint import Agent, Budget, Checkpoint, Limit, Price, RunResult, SafePoint, check_history, tool
from safepoint.agent.model import CallDelta, Finish, TextDelta
from safepoint.events import ToolCallStarted
from safepoint.testing import ScriptedModel, call, pass_time, say, stall
from safepoint.testing.models import Reply, raw
from tests.virtual import now, virtual


@tool
async def act(x: int = 0) -> str:
    """Act."""
    return f"did {x}"


def actor(*replies: Reply, budget: Budget | None = None) -> Agent:
    return Agent("actor", model=ScriptedModel(*replies), tools=[act], budget=budget, max_parallel_tools=1)


def done(result: RunResult[str]) -> int:
    check_history(result.messages)
    return sum(entry.state == "finished" for entry in result.ledger)


def steps(count: int) -> list[Reply]:
    return [call("act", x=number) for number in range(count)]


@virtual
async def test_the_last_step_is_made_and_one_more_ends_with_max_steps() -> None:
    exact = await actor(*steps(2), say("done")).run("go", budget=Budget(steps=3))
    assert exact.stop_reason == "end_turn"
    over = await actor(*steps(3)).run("go", budget=Budget(steps=3))
    assert (over.stop_reason, done(over), over.cancellation) == ("max_steps", 3, None)


@virtual
async def test_a_soft_mark_of_steps_stops_before_the_next_model_call() -> None:
    result = await actor(*steps(3)).run("go", budget=Budget(steps=Limit(soft=2, hard=9)))
    assert (result.stop_reason, done(result), result.usage.model_calls) == ("budget", 2, 2)
    assert result.cancellation is not None
    assert result.cancellation.reason.text == "the budget of 2 steps is used up"
    exact = await actor(*steps(1), say("done")).run("go", budget=Budget(steps=Limit(soft=2)))
    assert exact.stop_reason == "end_turn"


@virtual
async def test_the_last_tool_call_is_made_and_the_next_one_is_not() -> None:
    exact = await actor(*steps(2), say("done")).run("go", budget=Budget(tool_calls=2))
    assert (exact.stop_reason, done(exact)) == ("end_turn", 2)
    over = await actor(*steps(3)).run("go", budget=Budget(tool_calls=2))
    assert (over.stop_reason, done(over), over.ledger[2].state) == ("budget", 2, "not_started")
    soft = await actor(*steps(3)).run("go", budget=Budget(tool_calls=Limit(soft=2)))
    assert (soft.stop_reason, done(soft), soft.ledger[2].state) == ("budget", 2, "not_started")


@virtual
async def test_the_same_call_may_be_repeated_so_often_and_others_do_not_count() -> None:
    same: list[Reply] = [call("act", x=1)] * 2
    exact = await actor(*same, *steps(1), say("done")).run("go", budget=Budget(repeats=2))
    assert exact.stop_reason == "end_turn"
    over = await actor(*same, call("act", x=1)).run("go", budget=Budget(repeats=2))
    assert (over.stop_reason, done(over)) == ("budget", 2)
    assert over.cancellation is not None
    assert over.cancellation.reason.text == "the budget of 2 repeats is used up"


def counted(text: str, tokens: int) -> Reply:
    return raw(TextDelta(text), Finish("end_turn", input_tokens=tokens, output_tokens=0))


@virtual
async def test_tokens_and_cost_stop_the_run_at_their_mark_and_not_before() -> None:
    for budget in (
        Budget(tokens=100),
        Budget(cost=1, prices={"scripted": Price(input=10_000, output=0)}),
    ):
        below = await Agent("a", model=ScriptedModel(counted("x", 99)), budget=budget).run("go")
        assert below.stop_reason == "end_turn"
        at = await Agent("a", model=ScriptedModel(counted("x", 100)), budget=budget).run("go")
        assert at.stop_reason == "budget"


@virtual
async def test_a_soft_mark_of_seconds_waits_for_a_safe_point_and_a_hard_one_does_not() -> None:
    @tool
    async def slow(seconds: float) -> str:
        """Take that long."""
        await asyncio.sleep(seconds)
        return "slept"

    for limit, state, took in ((Limit(soft=2, hard=9), "finished", 5), (Limit(hard=2), "cut", 2)):
        agent = Agent("a", model=ScriptedModel(call("slow", seconds=5), say("x")), tools=[slow])
        start = now()
        result = await agent.run("go", budget=Budget(seconds=limit))
        assert (result.stop_reason, result.ledger[0].state, now() - start) == ("budget", state, took)


@virtual
async def test_a_hard_mark_of_tokens_cuts_a_reply_that_streams_on() -> None:
    model = ScriptedModel([say("word " * 200, pieces=200), stall()])
    result = await Agent("a", model=model, budget=Budget(tokens=50)).run("go")
    assert result.stop_reason == "budget"
    assert 0 < len(result.text) < 1000


@virtual
async def test_the_stop_reason_is_budget_only_if_the_budget_is_the_headline() -> None:
    agent = actor(*steps(3))
    async with agent.start("go", budget=Budget(tool_calls=Limit(soft=1))) as run:
        run.cancel(SafePoint.named("nowhere"), reason="a person")
    assert run.result.stop_reason == "cancelled"
    assert run.result.cancellation is not None
    assert run.result.cancellation.reason.text == "a person"


# -- carried over resume ----------------------------------------------------------------------------------------------


async def go_on(agent: Agent, result: RunResult[str], budget: Budget) -> RunResult[str]:
    assert result.checkpoint is not None
    assert result.checkpoint.stop_reason == result.stop_reason
    checkpoint = Checkpoint.from_bytes(result.checkpoint.to_bytes())
    async with agent.start(checkpoint=checkpoint, budget=budget) as run:
        pass
    return run.result


@pytest.mark.parametrize("kind", ["steps", "tool_calls", "repeats"])
def test_what_was_used_counts_in_the_run_that_continues(kind: str) -> None:
    @virtual
    async def body() -> None:
        agent = actor(*[call("act", x=1)] * 9)

        def budget(marks: int) -> Budget:
            kinds: dict[str, Any] = {kind: marks}  # Any: one option
            return Budget(**kinds)

        first = await agent.run("go", budget=budget(2))
        assert done(first) == 2
        second = await go_on(agent, first, budget(2))
        assert done(second) == 2, "the budget began anew"
        third = await go_on(agent, second, budget(4))
        assert done(third) == 4

    body()


@virtual
async def test_seconds_and_cost_count_in_the_run_that_continues() -> None:
    @tool(effect="pure")
    async def slow() -> str:
        """Take five seconds."""
        await pass_time(5)
        return "slept"

    agent = Agent("a", model=ScriptedModel(call("slow"), say("done")), tools=[slow])
    first = await agent.run("go", budget=Budget(seconds=3))
    start = now()
    second = await go_on(agent, first, Budget(seconds=7))
    assert (second.stop_reason, now() - start) == ("budget", 4)

    prices = {"scripted": Price(input=10_000, output=0)}
    model = ScriptedModel(counted("x", 100), counted("y", 50))
    again = Agent("b", model=model)
    third = await again.run("go", budget=Budget(cost=1, prices=prices))
    assert third.checkpoint is not None
    assert third.checkpoint.used["cost"] == 1


# -- refused -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["steps", "tokens", "seconds", "tool_calls", "repeats", "cost"])
@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), True, "3"])
def test_a_bad_mark_is_refused_by_name_and_value(kind: str, value: object) -> None:
    kinds: dict[str, Any] = {kind: value}  # Any: one option, wrong on purpose
    with pytest.raises(ValueError, match=rf"Budget\({kind}={value!r}\)"):
        Budget(**kinds)


def test_a_bad_limit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Limit\(soft=0\)"):
        Limit(soft=0)
    with pytest.raises(ValueError, match=r"Limit\(\) has no mark"):
        Limit()
    with pytest.raises(ValueError, match=r"Limit\(soft=3, hard=2\): the soft mark comes first"):
        Limit(soft=3, hard=2)


@pytest.mark.parametrize("price", [-1, float("nan"), float("inf"), "1"])
def test_a_bad_price_is_refused(price: Any) -> None:  # Any: wrong on purpose
    with pytest.raises(ValueError, match=rf"Price\(output={price!r}\)"):
        Price(input=1, output=price)


@pytest.mark.parametrize("prices", [["scripted"], {"scripted": 3}, None])
def test_prices_are_prices_by_the_name_of_the_model(prices: Any) -> None:  # Any: wrong on purpose
    with pytest.raises(ValueError, match=r"write prices=\{'model name': Price\(input=…, output=…\)\}"):
        Budget(cost=1, prices=prices)


def test_a_cost_without_the_price_of_the_model_is_refused_before_anything_runs() -> None:
    with pytest.raises(ValueError, match=r"Budget\(cost=…\) needs prices"):
        Budget(cost=1)
    budget = Budget(cost=1, prices={"another": Price(1, 1)})
    with pytest.raises(ValueError, match="no price for the model 'scripted'"):
        Agent("a", model=ScriptedModel(say("x")), budget=budget)
    agent = Agent("a", model=ScriptedModel(say("x")))
    with pytest.raises(ValueError, match="no price for the model 'scripted'"):
        agent.start("go", budget=budget)


# -- sub-agents --------------------------------------------------------------------------------------------------------


def spends(tokens: int) -> Reply:
    return raw(TextDelta("Some words."), Finish("end_turn", tokens, 0))


def family(*replies: Reply, in_a_tool: bool = False, budget: Budget | None = None) -> Agent:
    """An agent whose sub-agent calls a tool and answers, with so many tokens each time."""
    inner = Agent("inner", model=ScriptedModel(*replies, name="small"), tools=[act])

    @tool
    async def hand_written(input: str) -> str:
        """Ask the sub-agent."""
        return (await inner.run(input)).text

    outer = ScriptedModel(call("hand_written" if in_a_tool else "inner", input="go"), say("done"), name="large")
    return Agent("outer", model=outer, tools=[hand_written if in_a_tool else inner.as_tool()], budget=budget)


@pytest.mark.parametrize("in_a_tool", [False, True])
@virtual
async def test_a_sub_agents_tokens_count_for_its_caller_when_they_are_spent(in_a_tool: bool) -> None:
    first = raw(CallDelta(0, "c1", "act", '{"x": 1}'), Finish("tool_calls", 5000, 0))
    agent = family(first, spends(1), in_a_tool=in_a_tool)
    async with agent.start("go", budget=Budget(tokens=5000)) as run:
        pass
    assert run.result.stop_reason == "budget"
    assert run.result.usage.input_tokens >= 5000
    inside = [event for event in run.kept_events() if isinstance(event, ToolCallStarted) and event.call.name == "act"]
    assert inside == [], "the sub-agent went on after its caller's budget was used up"


@pytest.mark.parametrize("in_a_tool", [False, True])
@virtual
async def test_what_a_sub_agent_spends_is_counted_once(in_a_tool: bool) -> None:
    result = await family(spends(100_000), in_a_tool=in_a_tool).run("go")
    assert 100_000 <= result.usage.input_tokens < 110_000
    assert result.usage.model_calls == 3


@virtual
async def test_a_result_that_a_tool_hands_back_is_counted_once() -> None:
    inner = Agent("inner", model=ScriptedModel(spends(100_000), repeat=True))

    @tool
    async def joined() -> object:
        """A run of this tree."""
        return await inner.run("go")

    @tool
    async def detached() -> object:
        """A run of its own, whose result is handed back all the same."""
        return await inner.run("go", parent=None)

    model = ScriptedModel([call("joined"), call("detached")], say("done"))
    result = await Agent("outer", model=model, tools=[joined, detached]).run("go")
    assert 200_000 <= result.usage.input_tokens < 210_000


@virtual
async def test_a_sub_agents_cost_counts_for_its_caller_and_its_model_needs_a_price() -> None:
    prices = {"large": Price(0, 0), "small": Price(input=10, output=0)}
    async with family(spends(100_000)).start("go", budget=Budget(cost=1, prices=prices)) as run:
        pass
    assert run.result.stop_reason == "budget"
    with pytest.raises(ValueError, match="no price for the model 'small'"):
        family(spends(1), budget=Budget(cost=1, prices={"large": Price(1, 1)}))


@virtual
async def test_a_hard_cost_stops_a_reply_while_it_is_streamed() -> None:
    model = ScriptedModel([say("word " * 4000, pieces=40), stall()], name="large")
    async with Agent("a", model=model).start("go", budget=Budget(cost=1, prices={"large": Price(0, 1000)})) as run:
        pass
    assert run.result.stop_reason == "budget"
    assert 4000 <= len(run.result.text) < 6000

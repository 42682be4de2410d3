"""Whatever a model does, the run ends within its ladder, and what it leaves behind is a valid conversation."""

from __future__ import annotations

import asyncio
import math
from typing import Any, cast

import pytest

from safepoint import Agent, RunFailed, RunResult, check_history
from safepoint.agent.model import CallDelta, Finish, TextDelta
from safepoint.errors import ModelMisbehaved, ModelUnavailable
from safepoint.testing.clock import run_virtual
from tests.hostile.hostile_models import (
    GARBAGE,
    HANGING,
    Hanging,
    Once,
    Open,
    raises,
    raises_on_entering,
    raises_on_leaving,
    sends,
)
from tests.hostile.raising_tools import Rude, Unprintable, UnprintableForGood
from tests.hostile.task_tools import swallows_always
from tests.hostile.visit import (
    LADDER,
    Caller,
    Push,
    World,
    check_one_terminal_event,
    check_what_is_left,
    quick,
    visit,
)


def agent_on(world: World, open_: Open, **options: Any) -> Agent[World]:  # Any: an agent's own options
    return Agent("victim", model=Once(world, open_), tools=[quick], ladder=LADDER, **options)


@pytest.mark.parametrize("push", Push)
@pytest.mark.parametrize("row", HANGING, ids=lambda row: row.name)
def test_a_model_that_hangs_holds_nobody_longer_than_the_ladder(row: Hanging, push: Push) -> None:
    async def scenario() -> None:
        world = World()
        left = await visit(agent_on(world, row.open), world, push)
        assert left.seconds == (0 if push is Push.FORCE else row.seconds)
        if push is not Push.FORCE:
            assert left.orphans == (["hostile_model"] if row.orphan else [])
            assert left.result.text == row.text
        assert set(left.orphans) <= {"hostile_model"}
        assert left.caller.task.cancelled() is (push is Push.CALLER)
        await check_what_is_left(left)

    run_virtual(scenario)


async def run_to_its_end(agent: Agent[World], world: World) -> RunResult[str]:
    """Run it, check what is left, and see that the agent still works."""
    run = agent.start("go", deps=world)
    caller = Caller(run)
    await asyncio.wait({caller.task})
    result = run.result
    check_history(result.messages)
    check_one_terminal_event(run)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    again = await agent.run("again", history=result.messages, deps=world)
    assert (again.stop_reason, again.text) == ("end_turn", "fine")
    check_history(again.messages)
    return result


@pytest.mark.parametrize("name", GARBAGE)
def test_nonsense_from_a_model_leaves_a_valid_conversation(name: str) -> None:
    async def scenario() -> None:
        world = World()
        result = await run_to_its_end(agent_on(world, GARBAGE[name]), world)
        assert result.stop_reason in ("end_turn", "error", "max_tokens", "refused")
        assert result.error is None or isinstance(result.error, ModelMisbehaved) or name.startswith("no_stream")
        assert all(isinstance(count, int) for count in (result.usage.input_tokens, result.usage.output_tokens))

    run_virtual(scenario)


ERRORS: dict[str, BaseException] = {
    "connection": ConnectionError("gone"),
    "cancelled": asyncio.CancelledError(),
    "rude": Rude("rude"),
    "exit": SystemExit(3),
    "generator_exit": GeneratorExit(),
    "unprintable": Unprintable(),
    "unprintable_for_good": UnprintableForGood(),
    "group": ExceptionGroup("several", [ValueError("one")]),
}


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("where", ["stream", "entering", "first", "middle"])
def test_an_error_of_a_model_fails_the_run_and_nothing_else(error: str, where: str) -> None:
    it = ERRORS[error]
    places: dict[str, Open] = {
        "stream": raises(it),
        "entering": raises_on_entering(it),
        "first": sends(then=it),
        "middle": sends(TextDelta("Once"), then=it),
    }

    async def scenario() -> None:
        world = World()
        result = await run_to_its_end(agent_on(world, places[where]), world)
        assert (result.stop_reason, result.text) == ("error", "Once" if where == "middle" else "")
        with pytest.raises(RunFailed) as failed:
            await agent_on(world, places[where]).run("go", deps=world)
        assert failed.value.result.stop_reason == "error"

    run_virtual(scenario)


@pytest.mark.parametrize("error", ERRORS)
def test_an_error_after_a_whole_reply_takes_nothing_away(error: str) -> None:
    async def scenario() -> None:
        world = World()
        open_ = raises_on_leaving(ERRORS[error], TextDelta("Once"), Finish("end_turn"))
        result = await run_to_its_end(agent_on(world, open_), world)
        assert (result.stop_reason, result.text) == ("end_turn", "Once")

    run_virtual(scenario)


@pytest.mark.parametrize("where", ["stream", "middle"])
def test_a_keyboard_interrupt_in_a_model_stops_the_run_and_reaches_the_caller(where: str) -> None:
    async def scenario() -> None:
        world = World()
        it = KeyboardInterrupt()
        open_ = raises(it) if where == "stream" else sends(TextDelta("Once"), then=it)
        run = agent_on(world, open_).start("go", deps=world)
        caller = Caller(run)
        await asyncio.wait({caller.task})
        assert caller.interrupted
        assert run.result.stop_reason == "cancelled"
        check_history(run.result.messages)
        check_one_terminal_event(run)

    run_virtual(scenario)


def test_a_call_of_a_tool_that_cannot_exist_is_answered_and_runs_nothing() -> None:
    async def scenario() -> None:
        world = World()
        calls = [CallDelta(0, "a", "multi_tool_use.parallel"), CallDelta(1, "b", "qui ck"), CallDelta(2, "c", "quick")]
        result = await run_to_its_end(agent_on(world, sends(*calls, Finish("tool_calls"))), world)
        assert [(entry.name, entry.state) for entry in result.ledger] == [
            ("multi_tool_use_parallel", "failed"),
            ("qui_ck", "failed"),
            ("quick", "finished"),
        ]

    run_virtual(scenario)


def test_a_name_that_is_almost_a_tools_name_does_not_run_that_tool() -> None:
    async def scenario() -> None:
        world = World()
        model = Once(world, sends(CallDelta(0, "a", "swallows always"), Finish("tool_calls")))
        agent: Agent[World] = Agent("victim", model=model, tools=[swallows_always], ladder=LADDER)
        result = await agent.run("go", deps=world)
        assert [entry.state for entry in result.ledger] == ["failed"]
        assert not world.reached.is_set()

    run_virtual(scenario)


@pytest.mark.parametrize("wish", ["5", math.nan, math.inf, -1, True, object()])
def test_a_wish_to_come_back_later_that_is_no_number_of_seconds_is_not_granted(wish: object) -> None:
    async def scenario() -> None:
        world = World()
        before = world.loop.time()
        busy = raises(ModelUnavailable("busy", retry_after=cast(Any, wish)))
        result = await agent_on(world, busy).run("go", deps=world)
        assert (result.stop_reason, result.text) == ("end_turn", "fine")
        assert 0 < world.loop.time() - before <= 1

    run_virtual(scenario)

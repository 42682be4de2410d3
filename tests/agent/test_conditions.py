"""Safe points of one's own: tests of where a run is, and the end of a step, for cancel, hold and steer alike."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest

from safepoint import Agent, Budget, HoldState, Price, Run, RunState, SafePoint, Sequential, ToolContext, tool
from safepoint._core.points import Condition
from safepoint.agent.event_json import from_json, to_json
from safepoint.errors import Retry
from safepoint.events import CancelRequested, HookFailed
from safepoint.testing import ScriptedModel, call, say
from tests.agent.oracle import check_left_behind
from tests.agent.workshop import Gate
from tests.virtual import passes, virtual


@tool(effect="pure")
async def look(x: int = 0) -> str:
    """Look for a moment."""
    await passes(1)
    return "seen"


@tool
async def pay() -> str:
    """Pay for a moment."""
    await passes(1)
    return "paid"


@tool
async def fail() -> str:
    """Never succeed."""
    raise Retry("again")


def looker(steps: int = 5, **options: Any) -> Agent[None]:  # Any: as Agent takes them
    model = ScriptedModel(*[call("look", x=number) for number in range(steps)], say("done"))
    return Agent("a", model=model, tools=[look, pay, fail], **options)


@virtual
@pytest.mark.parametrize("steps", [1, 3, 5])
async def test_after_a_step_exactly_that_many_steps_are_complete(steps: int) -> None:
    async with looker().start("go") as run:
        assert await run.cancel(SafePoint.after_step(steps)).wait() == "stopped"
    assert run.result.checkpoint is not None
    assert run.result.checkpoint.step == steps
    assert [str(entry.state) for entry in run.result.ledger] == ["finished"] * steps
    assert run.result.cancellation is not None
    assert run.result.cancellation.place == f"after_step:{steps}"
    check_left_behind(run)
    if steps < 5:
        again = looker(5).start(checkpoint=resume_of(run))
        receipt = again.cancel(SafePoint.after_step(steps + 1))
        async with again:
            assert await receipt.wait() == "stopped"
        assert again.result.checkpoint is not None
        assert again.result.checkpoint.step == steps + 1


def resume_of(run: Run[None]) -> Any:  # Any: a Resume
    from safepoint import Resume

    assert run.result.checkpoint is not None
    return Resume(run.result.checkpoint)


@virtual
async def test_a_step_that_is_behind_the_run_means_the_end_of_the_present_one() -> None:
    async with looker().start("go") as run:
        await passes(2.5)
        assert await run.cancel(SafePoint.after_step(1)).wait() == "stopped"
    assert run.result.checkpoint is not None
    assert run.result.checkpoint.step == 3


@virtual
async def test_a_step_that_never_comes_lets_the_run_finish() -> None:
    async with looker(2).start("go") as run:
        receipt = run.cancel(SafePoint.after_step(9))
    assert await receipt.wait() == "finished_first"
    assert run.result.stop_reason == "end_turn"


TESTS: list[tuple[str, Callable[[RunState], object], int]] = [
    ("step", lambda state: state.step >= 2 and state.place == "after_tools", 2),
    ("tokens", lambda state: state.spent.output_tokens > 0, 1),
    ("calls", lambda state: state.tool_calls >= 3, 3),
    ("cost", lambda state: state.cost > 0, 1),
    ("tool", lambda state: state.last_tool is not None and state.last_tool.args.get("x") == 3, 4),
]


@virtual
@pytest.mark.parametrize(
    ("test", "steps"), [(test, steps) for _, test, steps in TESTS], ids=[name for name, *_ in TESTS]
)
async def test_a_test_reads_the_state_of_its_run(test: Callable[[RunState], object], steps: int) -> None:
    budget = Budget(cost=99, prices={"scripted": Price(input=1, output=1)})
    async with looker(budget=budget).start("go") as run:
        assert await run.cancel(SafePoint.when(test, name="mine")).wait() == "stopped"
    assert run.result.checkpoint is not None
    assert run.result.checkpoint.step == steps
    assert run.result.cancellation is not None
    assert run.result.cancellation.place.startswith("when:mine")
    check_left_behind(run)


@virtual
async def test_a_test_joins_with_places_and_whichever_comes_first_counts() -> None:
    never = SafePoint.when(lambda state: False)
    async with looker().start("go") as run:
        assert await run.cancel(never | SafePoint.after_step(9) | SafePoint.AFTER_TOOLS).wait() == "stopped"
    assert run.result.cancellation is not None
    assert run.result.cancellation.place == "after_tools"
    assert never | SafePoint.ANY == SafePoint.ANY


@virtual
async def test_a_test_that_raises_stops_the_run_and_is_told() -> None:
    async with looker().start("go") as run:
        assert await run.cancel(SafePoint.when(lambda state: 1 / 0, name="broken")).wait() == "stopped"
    assert any(isinstance(event, HookFailed) and "broken" in event.hook for event in run.kept_events())
    check_left_behind(run)


@virtual
async def test_before_an_effect_a_test_can_keep_one_tool_from_starting() -> None:
    model = ScriptedModel(call("look"), call("pay"), say("done"))
    paying = SafePoint.when(lambda state: state.place == "before_effect")
    async with Agent("a", model=model, tools=[look, pay]).start("go") as run:
        assert await run.cancel(paying).wait() == "stopped"
    assert [str(entry.state) for entry in run.result.ledger] == ["finished", "not_started"]


@virtual
async def test_a_test_is_asked_at_the_points_of_tools_too() -> None:
    @tool(effect="idempotent")
    async def pages(ctx: ToolContext) -> str:
        """Read pages."""
        for number in range(ctx.saved or 0, 3):
            await passes(1)
            await ctx.safe_point("page", save=number + 1)
        return "read"

    agent: Agent[None] = Agent("a", model=ScriptedModel(call("pages"), say("done")), tools=[pages])
    async with agent.start("go") as run:
        asked: list[str] = []

        def second(state: RunState) -> bool:
            asked.append(state.place)
            return asked.count("point:page") == 2

        assert await run.cancel(SafePoint.when(second)).wait() == "stopped"
    assert (run.result.ledger[0].state, run.result.ledger[0].point) == ("stopped", "page")
    assert run.result.stop_reason == "cancelled"


@virtual
async def test_a_recursive_test_judges_each_run_by_its_own_state() -> None:
    inner = Agent("inner", model=ScriptedModel(call("look"), call("look"), call("look"), say("found")), tools=[look])
    outer = Agent("outer", model=ScriptedModel(call("inner", input="x"), say("done")), tools=[inner.as_tool()])
    async with outer.start("go") as run:
        assert await run.cancel(SafePoint.after_step(2), recursive=True).wait() == "stopped"
    assert run.result.ledger[0].state == "stopped"


@virtual
async def test_a_boundary_of_a_composite_is_no_place_for_a_test_that_does_not_hold() -> None:
    first, second, third = (Agent(name, model=ScriptedModel(say(name))) for name in ("x", "y", "z"))
    both = Sequential("both", first).then(second).then(third)
    async with both.start("go") as run:
        receipt = run.cancel(SafePoint.when(lambda state: state.step >= 2))
        assert await receipt.wait() == "stopped"
    assert [str(entry.state) for entry in run.result.ledger] == ["finished", "finished", "not_started"]


@virtual
async def test_a_run_can_be_held_when_a_test_holds() -> None:
    async with looker().start("go") as run:
        receipt = run.hold(SafePoint.after_step(2))
        assert await receipt.wait() == HoldState.HELD
        assert len(run.ledger) == 2
        await passes(9)
        run.resume()
    assert run.result.text == "done"


@virtual
async def test_queued_calls_wait_while_a_test_holds_the_run_after_a_tool() -> None:
    model = ScriptedModel([call("look"), call("look"), call("look")], say("done"))
    async with Agent("a", model=model, tools=[look], max_parallel_tools=1).start("go") as run:
        receipt = run.hold(SafePoint.when(lambda state: state.tool_calls == 2))
        assert await receipt.wait() == HoldState.HELD
        assert [str(entry.state) for entry in run.ledger] == ["finished", "finished", "not_started"]
        receipt.release()
    assert [str(entry.state) for entry in run.result.ledger] == ["finished"] * 3


# -- messages ----------------------------------------------------------------------------------------------------------


@virtual
async def test_a_message_waits_for_its_point() -> None:
    async with looker().start("go") as run:
        steered = run.steer("hurry", at=SafePoint.after_step(3))
        await passes(2.5)
        assert steered.outcome is None
        assert await steered.wait() == "joined"
    texts = [message.text for message in run.result.messages if message.role == "user"]
    assert texts == ["go", "hurry"]
    place = next(place for place, message in enumerate(run.result.messages) if message.text == "hurry")
    assert sum(bool(message.tool_calls) for message in run.result.messages[:place]) == 3


@virtual
async def test_a_message_whose_point_never_comes_is_too_late() -> None:
    async with looker(1).start("go") as run:
        steered = run.steer("hurry", at=SafePoint.after_step(9))
    assert await steered.wait() == "too_late"


@virtual
async def test_a_message_that_can_wait_joins_and_nothing_gives_way() -> None:
    async with looker(2).start("go") as run:
        steered = run.steer("hurry", within=60)
        assert await steered.wait() == "joined"
    assert [str(entry.state) for entry in run.result.ledger] == ["finished", "finished"]


@virtual
async def test_a_message_that_waits_too_long_preempts_the_calls_that_are_left() -> None:
    slow = Gate("slow")
    model = ScriptedModel([call("slow"), call("look"), call("pay")], say("done"))
    agent = Agent("a", model=model, tools=[slow.tool, look, pay], max_parallel_tools=1)
    async with agent.start("go") as run:
        await slow.started.wait()
        steered = run.steer("stop paying", within=5)
        await passes(6)
        assert steered.outcome is None, "the call in flight is not cut"
        slow.gate.set()
        assert await steered.wait() == "preempted"
    assert [str(entry.state) for entry in run.result.ledger] == ["finished", "not_started", "not_started"]
    assert run.result.stop_reason == "end_turn"
    results = [part.content for message in run.result.messages for part in message.parts if part.kind == "tool_result"]
    assert results[1] == 'This call was not started. Reason: "a new message came".'
    assert run.result.cancellation is None


@virtual
async def test_a_tool_with_a_point_of_its_own_gives_way_there() -> None:
    @tool
    async def crawl(ctx: ToolContext) -> str:
        """Crawl for an hour."""
        for number in range(60):
            await passes(60)
            await ctx.safe_point("site", save=number)
        return "crawled"

    model = ScriptedModel(call("crawl"), say("done"))
    async with Agent("a", model=model, tools=[crawl]).start("go") as run:
        await passes(30)
        assert await run.steer("what have you found?", within=60).wait() == "preempted"
    (entry,) = run.result.ledger
    assert (entry.state, entry.point) == ("stopped", "site")
    assert run.result.text == "done"


@virtual
async def test_a_message_that_comes_while_the_model_writes_keeps_its_calls_from_starting() -> None:
    from tests.agent.workshop import HeldModel

    model = HeldModel(call("pay"), say("done"))
    async with Agent("a", model=model, tools=[pay]).start("go") as run:
        await model.reached.wait()
        steered = run.steer("do not pay", within=1)
        await passes(2)
        model.gate.set()
        assert await steered.wait() == "preempted"
    assert [str(entry.state) for entry in run.result.ledger] == ["not_started"]


@virtual
async def test_a_message_for_a_composite_preempts_the_child_that_runs() -> None:
    slow = Gate("slow")
    model = ScriptedModel([call("slow"), call("pay")], say("one"))
    child = Agent("child", model=model, tools=[slow.tool, pay], max_parallel_tools=1)
    async with Sequential("all", child).then(Agent("last", model=ScriptedModel(say("two")))).start("go") as run:
        await slow.started.wait()
        steered = run.steer("hurry", within=1)
        await passes(2)
        slow.gate.set()
        assert await steered.wait() == "preempted"
    assert run.result.text == "two"


# -- what is refused, and how it is written ----------------------------------------------------------------------------

WRONG: list[tuple[Callable[[Run[None]], object], str]] = [
    (lambda run: SafePoint.after_step(0), "from 1 up"),
    (lambda run: SafePoint.after_step(True), "from 1 up"),
    (lambda run: SafePoint.parse("after_step:x"), "from 1 up"),
    (lambda run: SafePoint.when("step > 3"), "lambda"),  # type: ignore[arg-type]  # an untyped caller
    (lambda run: run.steer("x", at=SafePoint.NOW), "SafePoint.ANY"),
    (lambda run: run.steer("x", within=0), "above 0"),
    (lambda run: run.steer("x", at=SafePoint.ANY, within=1), "one of them"),
]


@virtual
async def test_a_contradiction_is_refused_with_what_to_write() -> None:
    run = looker().start("go")
    run.discard()
    for make, words in WRONG:
        with pytest.raises(ValueError, match=words):
            make(run)


def test_a_step_can_be_written_sent_and_pickled() -> None:
    point = SafePoint.after_step(3) | SafePoint.AFTER_MODEL
    assert SafePoint.parse("after_step:3", "after_model") == point
    assert repr(SafePoint.after_step(3)) == "SafePoint.after_step(3)"
    assert repr(SafePoint.when(lambda state: True, name="rich")) == "SafePoint.when(rich)"
    again = pickle.loads(pickle.dumps(point))
    assert again == point
    assert [type(place) for place in again.conditions] == [Condition]


@virtual
async def test_a_test_is_told_by_its_name_in_events() -> None:
    async with looker().start("go") as run:
        await run.cancel(SafePoint.when(lambda state: state.step > 1, name="two") | SafePoint.after_step(4)).wait()
    (event,) = [event for event in run.kept_events() if isinstance(event, CancelRequested)]
    again = from_json(to_json(event))
    assert isinstance(again, CancelRequested)
    assert {place.partition("#")[0] for place in again.ask.at.places} == {"when:two", "after_step:4"}
    assert [str(each) for each in again.ask.at.conditions] == ["after_step:4"]

"""Pushing: plainly, from threads and callbacks, and with a wish to preempt the turn that is seen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from safepoint import Agent, SafePoint, TurnLoop
from safepoint.agent.event_hub import EventReader
from safepoint.errors import UsageError, WaitInsideRun
from safepoint.testing import ScriptedModel, call, pass_time, say, stall
from safepoint.turns import ItemCodec, Plan, PlanContext, PushOptions, PushReceipt, Turn
from tests.turns.parts import Gate, all_at_once, in_a_thread, talker, until
from tests.virtual import now, virtual


@virtual
async def test_what_is_pushed_before_the_start_is_one_message_of_the_first_turn() -> None:
    agent = talker("hello")
    loop = TurnLoop(agent)
    assert loop.push("one").accepted
    assert loop.push("two").accepted
    async with loop:
        await until(loop, lambda: model(agent).calls == 1)
    assert model(agent).requests[0].messages[-1].text == "one\ntwo"
    assert (await loop.wait()).unhandled == []


@virtual
async def test_the_conversation_is_carried_from_turn_to_turn() -> None:
    agent = talker("hello", "again")
    async with TurnLoop(agent) as loop:
        loop.push("one")
        await until(loop, lambda: model(agent).calls == 1)
        loop.push("two")
        await until(loop, lambda: model(agent).calls == 2)
    assert [message.text for message in model(agent).requests[1].messages] == ["one", "hello", "two"]


@virtual
async def test_items_keep_their_order_and_remaining_ones_go_to_the_front() -> None:
    seen: list[list[int]] = []

    def plan(ctx: PlanContext[int], items: list[int]) -> Plan[int]:
        seen.append(items)
        return Plan("go", items[1:2] or items[:1], [*items[:1], *items[2:]] if len(items) > 1 else [])

    loop: TurnLoop[int] = TurnLoop(talker(), plan=plan)
    for number in range(4):
        loop.push(number)
    async with loop:
        await until(loop, lambda: len(seen) == 4)
    assert seen == [[0, 1, 2, 3], [0, 2, 3], [0, 3], [0]]


@virtual
async def test_a_push_from_another_thread_wakes_the_loop() -> None:
    agent = talker()
    async with TurnLoop(agent) as loop:
        await until(loop, lambda: True)
        assert in_a_thread(lambda: loop.push("from a thread")).accepted
        await until(loop, lambda: model(agent).calls == 1)


@virtual
async def test_a_callback_may_push_and_stop() -> None:
    seen: list[list[str]] = []

    def plan(ctx: PlanContext[str], items: list[str]) -> Plan[str]:
        seen.append(items)
        if items == ["first"]:
            ctx.loop.push("second")
        else:
            ctx.loop.stop()
        return Plan(items[0], items)

    async with TurnLoop(talker(), plan=plan) as loop:
        loop.push("first")
        exit = await loop.wait()
    assert seen == [["first"], ["second"]]
    assert exit.reason == "clean"
    assert exit.unhandled == ["second"]  # it was being planned when the stop came


@virtual
async def test_a_plan_without_input_waits_for_something_new() -> None:
    batches: list[list[str]] = []

    def plan(ctx: PlanContext[str], items: list[str]) -> Plan[str]:
        batches.append(items)
        return Plan(None, [], items) if len(items) < 3 else Plan(" ".join(items), items)

    def seen_so_many(number: int) -> bool:
        return len(batches) == number

    agent = talker()
    async with TurnLoop(agent, plan=plan) as loop:
        for number, word in enumerate(("a", "b", "c"), 1):
            loop.push(word)
            await until(loop, partial(seen_so_many, number))
        await until(loop, lambda: model(agent).calls == 1)
    assert batches == [["a"], ["a", "b"], ["a", "b", "c"]]
    assert (await loop.wait()).unhandled == []


# -- preempt ---------------------------------------------------------------------------------------------------------


@virtual
async def test_a_preempt_stops_the_turn_at_its_safe_point_and_hands_over_its_history() -> None:
    gate = Gate()
    agent = gate.agent(say("urgent done"))
    before: list[PlanContext[str]] = []

    def plan(ctx: PlanContext[str], items: list[str]) -> Plan[str]:
        before.append(ctx)
        return Plan(" ".join(items), items, history=ctx.history)

    async with TurnLoop(agent, plan=plan) as loop:
        loop.push("routine")
        await gate.reached.wait()
        receipt = loop.push("urgent", preempt=SafePoint.AFTER_TOOLS)
        gate.opened.set()
        assert await receipt.wait() == "preempted"
        await until(loop, lambda: model(agent).calls == 2)
    previous = before[1].previous
    assert previous is not None
    assert (previous.outcome, previous.preempted) == ("preempted", ("routine",))
    assert [message.role for message in previous.messages] == ["user", "assistant", "tool", "assistant"]
    assert previous.messages[2].parts[0].kind == "tool_result"


@virtual
async def test_carry_requeue_puts_the_items_of_a_preempted_turn_back_in_front() -> None:
    gate = Gate()
    seen: list[list[str]] = []

    def plan(ctx: PlanContext[str], items: list[str]) -> Plan[str]:
        seen.append(items)
        return Plan(" ".join(items), items)

    async with TurnLoop(gate.agent(), plan=plan, carry="requeue") as loop:
        loop.push("routine")
        await gate.reached.wait()
        loop.push("urgent", preempt=SafePoint.ANY)
        gate.opened.set()
        await until(loop, lambda: len(seen) == 2)
    assert seen[1] == ["routine", "urgent"]


@virtual
async def test_a_preempt_with_a_limit_becomes_now_and_reaches_everything() -> None:
    reached = asyncio.Event()
    agent = Agent("stuck", model=ScriptedModel(stall(on_reached=reached.set), say("next")))
    async with TurnLoop(agent) as loop:
        loop.push("first")
        await reached.wait()
        begun = now()
        receipt = loop.push("second", preempt=SafePoint.ANY, within=2)
        assert await receipt.wait() == "preempted"
        assert now() - begun == 2


@virtual
async def test_a_delayed_preempt_is_asked_after_the_delay() -> None:
    reached = asyncio.Event()
    agent = Agent("stuck", model=ScriptedModel(stall(on_reached=reached.set), say("next")))
    async with TurnLoop(agent) as loop:
        loop.push("first")
        await reached.wait()
        begun = now()
        receipt = loop.push("second", preempt=SafePoint.ANY, within=1, delay=3)
        assert await receipt.wait() == "preempted"
        assert now() - begun == 4


@virtual
async def test_a_preempt_never_hits_a_later_turn() -> None:
    gate = Gate()
    agent = gate.agent(say("one"), call("gate"), say("two"))
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    async with TurnLoop(agent) as loop:
        loop.push("first")
        await gate.reached.wait()
        receipt = loop.push("second", preempt=SafePoint.ANY, delay=5)
        gate.opened.set()
        await until(loop, lambda: model(agent).calls == 2)
        assert await receipt.wait() == "finished_first"
        await pass_time(10)
        assert model(agent).calls == 4
    assert (await loop.wait()).reason == "clean"
    assert complaints == []


@virtual
async def test_a_push_that_saw_one_turn_does_not_touch_the_next_however_late_it_is_heard() -> None:
    gate = Gate()
    agent = gate.agent(say("one"), call("gate"), say("two"))
    running = asyncio.get_running_loop()
    saw, decides = asyncio.Event(), asyncio.Event()

    def slow(turn: Turn[str] | None) -> PushOptions:
        assert turn is not None
        assert turn.number == 1
        running.call_soon_threadsafe(saw.set)
        asyncio.run_coroutine_threadsafe(decides.wait(), running).result()
        return PushOptions(SafePoint.ANY)

    async with TurnLoop(agent) as loop:
        loop.push("first")
        await gate.reached.wait()
        pushing = running.run_in_executor(None, lambda: loop.push("third", strategy=slow))
        await saw.wait()
        loop.push("second")
        gate.opened.set()
        await until(loop, lambda: model(agent).calls == 2)
        gate.opened.clear()
        await until(loop, lambda: model(agent).calls == 3)
        decides.set()
        receipt = await pushing
        assert await receipt.wait() == "finished_first"  # the second turn still stands at the gate
        gate.opened.set()
        await until(loop, lambda: model(agent).calls == 4)
        loop.stop(SafePoint.NOW)


@virtual
async def test_a_limit_lets_nested_agents_judge_the_preempt_at_their_own_safe_points() -> None:
    for within, inner_calls in ((10.0, 1), (None, 2)):
        gate = Gate()
        inner = gate.agent(say("inner is done"), name="inner")
        outer = Agent("outer", model=ScriptedModel(call("inner", input="go"), say("next")), tools=[inner.as_tool()])
        async with TurnLoop(outer) as loop:
            loop.push("first")
            await gate.reached.wait()
            receipt = loop.push("second", preempt=SafePoint.AFTER_TOOLS, within=within)
            gate.opened.set()
            assert await receipt.wait() == "preempted"
        assert model(inner).calls == inner_calls


@virtual
async def test_a_preempt_of_nothing_says_so() -> None:
    loop = TurnLoop(talker())
    before, plain = loop.push("x", preempt=SafePoint.ANY), loop.push("y")
    assert plain.outcome == "nothing_to_preempt"
    async with loop:
        assert await before.wait() == "nothing_to_preempt"


@virtual
async def test_a_preempt_that_sees_a_turn_being_planned_waits_for_its_run() -> None:
    gate, planning, planned = Gate(), asyncio.Event(), asyncio.Event()

    async def plan(ctx: PlanContext[str], items: list[str]) -> Plan[str]:
        planning.set()
        await planned.wait()
        return Plan(" ".join(items), items)

    async with TurnLoop(gate.agent(), plan=plan) as loop:
        loop.push("first")
        await planning.wait()
        receipt = loop.push("second", preempt=SafePoint.AFTER_TOOLS)
        planned.set()
        await gate.reached.wait()
        gate.opened.set()
        assert await receipt.wait() == "preempted"


@virtual
async def test_a_preempt_held_for_a_turn_that_is_never_planned_is_settled() -> None:
    planning, planned = asyncio.Event(), asyncio.Event()

    async def plan(ctx: PlanContext[str], items: list[str]) -> Plan[str]:
        planning.set()
        await planned.wait()
        raise ValueError("no plan")

    loop = TurnLoop(talker(), plan=plan)
    loop.start()
    loop.push("first")
    await planning.wait()
    receipt = loop.push("second", preempt=SafePoint.ANY)
    planned.set()
    assert await receipt.wait() == "nothing_to_preempt"
    exit = await loop.wait()
    assert isinstance(exit.error, ValueError)
    assert exit.unhandled == ["first", "second"]


@virtual
async def test_several_preempts_fold_and_all_of_them_say_preempted() -> None:
    gate = Gate()
    async with TurnLoop(gate.agent()) as loop:
        loop.push("first")
        await gate.reached.wait()
        receipts = [
            loop.push("second", preempt=SafePoint.AFTER_TOOLS),
            loop.push("third", preempt=SafePoint.named("never")),
            in_a_thread(lambda: loop.push("fourth", preempt=SafePoint.AFTER_TOOLS)),
        ]
        gate.opened.set()
        assert [await receipt.wait() for receipt in receipts] == ["preempted"] * 3


@virtual
async def test_a_preempting_push_does_not_jump_the_queue() -> None:
    gate = Gate()
    seen: list[list[str]] = []

    def plan(ctx: PlanContext[str], items: list[str]) -> Plan[str]:
        seen.append(items)
        return Plan(" ".join(items), items)

    async with TurnLoop(gate.agent(), plan=plan) as loop:
        loop.push("first")
        await gate.reached.wait()
        loop.push("second")
        loop.push("urgent", preempt=SafePoint.ANY)
        loop.push("third")
        gate.opened.set()
        await until(loop, lambda: len(seen) == 2)
    assert seen[1] == ["second", "urgent", "third"]


@virtual
async def test_a_strategy_sees_the_live_turn_and_chooses_the_options() -> None:
    gate = Gate()
    seen: list[list[str] | None] = []

    def strategy(turn: Turn[str] | None) -> PushOptions | None:
        seen.append(None if turn is None else turn.consumed)
        return PushOptions(SafePoint.AFTER_TOOLS) if turn is not None else None

    async with TurnLoop(gate.agent()) as loop:
        assert loop.push("first", strategy=strategy).outcome == "nothing_to_preempt"
        await gate.reached.wait()
        receipt = in_a_thread(lambda: loop.push("second", strategy=strategy))
        gate.opened.set()
        assert await receipt.wait() == "preempted"
    assert seen == [None, ["first"]]


@virtual
async def test_a_strategy_that_fails_leaves_nothing_behind() -> None:
    loop = TurnLoop(talker())
    with pytest.raises(ZeroDivisionError):
        loop.push("x", strategy=lambda turn: PushOptions(delay=1 / 0))
    loop.start()
    loop.stop()
    assert (await loop.wait()).unhandled == []


WRONG: list[tuple[str, Callable[[TurnLoop[str]], object]]] = [
    ("NOW", lambda loop: loop.push("x", preempt=SafePoint.NOW)),
    ("FORCE", lambda loop: loop.push("x", preempt=SafePoint.FORCE)),
    ("within=0", lambda loop: loop.push("x", preempt=SafePoint.ANY, within=0)),
    ("within=-1", lambda loop: loop.push("x", preempt=SafePoint.ANY, within=-1)),
    ("delay=0", lambda loop: loop.push("x", preempt=SafePoint.ANY, delay=0)),
    ("within=1 without", lambda loop: loop.push("x", within=1)),
    ("delay=1 without", lambda loop: loop.push("x", delay=1)),
    ("strategy", lambda loop: loop.push("x", preempt=SafePoint.ANY, strategy=lambda turn: None)),
    ("strategy", lambda loop: loop.push("x", delay=1, strategy=lambda turn: None)),
    ("not a safe point", lambda loop: loop.push("x", preempt="any")),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # untyped callers
    ("the strategy returned", lambda loop: loop.push("x", strategy=lambda turn: "any")),  # type: ignore[arg-type,return-value]  # pyright: ignore[reportArgumentType]  # untyped callers
]


@pytest.mark.parametrize(("said", "wrong"), WRONG, ids=[f"{number} {said}" for number, (said, _) in enumerate(WRONG)])
def test_a_contradiction_is_refused_and_nothing_is_pushed(said: str, wrong: Callable[[TurnLoop[str]], object]) -> None:
    loop = TurnLoop(talker())
    with pytest.raises(ValueError, match=said):
        wrong(loop)
    assert "0 items" in repr(loop)


# -- late ------------------------------------------------------------------------------------------------------------


@virtual
async def test_a_push_after_a_stop_is_late_until_the_list_is_taken() -> None:
    loop = TurnLoop(talker())
    loop.push("in time")
    with pytest.raises(UsageError, match="none is late yet"):
        loop.take_late_items()
    loop.stop()
    assert not loop.push("late").accepted
    assert not in_a_thread(lambda: loop.push("later", preempt=SafePoint.ANY)).accepted
    loop.start()
    assert (await loop.wait()).unhandled == ["in time"]
    assert loop.take_late_items() == ["late", "later"] == loop.take_late_items()
    with pytest.raises(UsageError, match="would be lost"):
        loop.push("latest")
    assert loop.take_late_items() == ["late", "later"]


@virtual
async def test_waiting_for_a_preempt_inside_its_own_turn_is_refused() -> None:
    receipts: list[PushReceipt] = []
    refused: list[BaseException] = []

    async def on_events(turn: Turn[str], events: EventReader) -> None:
        receipts.append(turn.loop.push("again", preempt=SafePoint.ANY))
        for wait in (receipts[0].wait, turn.loop.wait):
            try:
                await wait()
            except WaitInsideRun as error:
                refused.append(error)
        turn.loop.stop()

    async with TurnLoop(talker(), on_events=on_events) as loop:
        loop.push("x")
        await loop.wait()
    assert len(refused) == 2
    assert receipts[0].outcome == "finished_first"


def test_the_arguments_of_a_loop_are_checked() -> None:
    agent = talker()
    make: Any = TurnLoop  # Any: untyped callers

    def prepare(ctx: PlanContext[str], items: list[str]) -> Agent:
        return agent

    wrong: list[dict[str, Any]] = [  # Any: as above
        {},
        {"agent": agent, "prepare": prepare},
        {"prepare": prepare},
        {"agent": "desk"},
        {"agent": agent, "carry": "keep"},
        {"agent": agent, "on_turn_error": "ignore"},
        {"agent": agent, "on_interrupt": "stop"},
        {"agent": agent, "checkpoint_id": "x"},
        {"agent": agent, "store": object(), "checkpoint_id": "x"},
        {"agent": agent, "codec": ItemCodec.plain()},
        {"agent": agent, "plan_resume": prepare},
    ]
    for kwargs in wrong:
        with pytest.raises(ValueError, match=r"write|needs|go together"):
            make(**kwargs)


@virtual
async def test_items_of_any_type_have_a_plan_of_their_own() -> None:
    async with TurnLoop[int](talker(), plan=all_at_once) as loop:
        loop.push(1)
    loop_of_text: TurnLoop[Any] = TurnLoop(talker())
    loop_of_text.start()
    loop_of_text.push(3)
    exit = await loop_of_text.wait()
    assert isinstance(exit.error, TypeError)
    assert exit.unhandled == [3]


def model(agent: Agent) -> ScriptedModel:
    found = agent.models[0]
    assert isinstance(found, ScriptedModel)
    return found

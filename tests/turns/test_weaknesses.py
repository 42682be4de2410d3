"""The known weaknesses of another turn loop, numbered as they were found there: each has a test of the better way."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from safepoint import Agent, SafePoint, ToolContext, TurnLoop, check_history, tool
from safepoint.agent.event_hub import EventReader
from safepoint.errors import StoreCorrupt
from safepoint.testing import ScriptedModel, call, pass_time, say
from safepoint.turns import MemoryTurnStore, Plan, PlanContext, PushOptions, ResumePlan, Turn, TurnStore
from tests.turns.parts import ByteStore, Gate, TroubledStore, all_at_once, in_a_thread, talker, until
from tests.virtual import now, virtual

KEY: dict[str, Any] = {"checkpoint_id": "loop"}


async def stopped_in_a_turn(store: TurnStore) -> None:
    """Leaves a record: a turn of `first` that can go on, and `second` that waits."""
    gate = Gate()
    async with TurnLoop(gate.agent(), store=store, **KEY) as loop:
        loop.push("first")
        await gate.reached.wait()
        loop.push("second")
        loop.stop(SafePoint.ANY)
        gate.opened.set()
    exit = await loop.wait()
    assert (exit.checkpoint.state, exit.interrupted, exit.unhandled) == ("saved", ["first"], ["second"])


def resuming_agent(*words: str) -> Agent:
    return Agent("desk", model=ScriptedModel(*(say(word) for word in words)), tools=[Gate().tool])


@virtual
async def test_w15_no_failure_deletes_or_replaces_the_only_copy() -> None:
    store = ByteStore()
    await stopped_in_a_turn(store)
    kept = store.records["loop"]

    def fails(*_: object) -> Any:
        raise KeyError("not now")

    async def ends_with(error: type[BaseException], **options: Any) -> None:
        agent = options.pop("agent", resuming_agent())
        loop: TurnLoop[str] = TurnLoop(agent, store=store, **options, **KEY)
        loop.push("new")
        loop.start()
        exit = await loop.wait()
        assert exit.reason == "error"
        assert isinstance(exit.error, error), exit
        assert "new" in exit.unhandled

    store.fails = OSError("the disk is gone")
    await ends_with(OSError)
    store.fails = None
    assert store.records["loop"] == kept

    store.records["loop"] = kept[:-3]
    await ends_with(StoreCorrupt)
    assert store.records["loop"] == kept[:-3]

    for options in ({"plan_resume": fails}, {"agent": None, "prepare": fails, "plan": fails}):
        store.records["loop"] = kept
        await ends_with(KeyError, **options)
        again = await left_in(store)
        assert (again.interrupted, again.unhandled) == (["first"], ["second", "new"])
    assert store.deletes == 0


async def left_in(store: TurnStore) -> Any:
    """What a loop finds in the store, and leaves there."""
    loop = TurnLoop(resuming_agent(), store=store, **KEY)
    loop.stop()
    loop.start()
    return await loop.wait()


@virtual
async def test_w15_cancelling_the_task_of_the_loop_keeps_the_record() -> None:
    store = MemoryTurnStore()
    await stopped_in_a_turn(store)
    planning = asyncio.Event()

    async def plan_resume(*_: object) -> Plan[str]:
        planning.set()
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    loop = TurnLoop(resuming_agent(), store=store, plan_resume=plan_resume, **KEY)
    loop.push("new")
    loop.start()
    await planning.wait()
    (task,) = [task for task in asyncio.all_tasks() if task.get_name() == "safepoint:turns"]
    task.cancel()
    exit = await loop.wait()
    assert (exit.reason, exit.checkpoint.state) == ("cancelled", "saved")
    assert (exit.interrupted, exit.unhandled) == (["first"], ["second", "new"])
    again = await left_in(store)
    assert (again.interrupted, again.unhandled) == (["first"], ["second", "new"])


@virtual
async def test_w16_a_stop_before_the_first_turn_keeps_everything() -> None:
    store = MemoryTurnStore()
    await stopped_in_a_turn(store)
    loop = TurnLoop(resuming_agent(), store=store, **KEY)
    loop.push("new")
    loop.stop()
    loop.start()
    exit = await loop.wait()
    assert (exit.reason, exit.checkpoint.state) == ("clean", "saved")
    assert (exit.interrupted, exit.unhandled) == (["first"], ["second", "new"])
    resumed = resuming_agent("went on", "then the rest")
    async with TurnLoop(resumed, store=store, **KEY) as loop:
        await until(loop, lambda: model(resumed).calls == 2)
    assert [message.text for message in model(resumed).requests[1].messages][-2:] == ["went on", "second\nnew"]


@virtual
async def test_w17_a_turn_that_was_resumed_to_its_end_is_never_resumed_again() -> None:
    store = MemoryTurnStore()
    await stopped_in_a_turn(store)
    resumed = resuming_agent("went on")

    async def on_events(turn: Turn[str], events: EventReader) -> None:
        async for _ in events:
            pass
        turn.loop.stop()

    async with TurnLoop(resumed, store=store, on_events=on_events, **KEY) as loop:
        await loop.wait()
    exit = await loop.wait()
    assert (exit.reason, exit.interrupted, exit.unhandled) == ("clean", [], ["second"])
    again = await left_in(store)
    assert (again.interrupted, again.unhandled) == ([], ["second"])


@virtual
async def test_w18_nothing_is_processed_again_and_a_store_that_cannot_delete_is_refused() -> None:
    store = TroubledStore()
    agent = talker()

    def plan(ctx: PlanContext[str], items: list[str]) -> Plan[str]:
        return Plan(" ".join(items), items, session=None)

    async with TurnLoop(agent, plan=plan, store=store, **KEY) as loop:
        loop.push("once")
        await until(loop, lambda: model(agent).calls == 1)
    assert (await left_in(store)).unhandled == []

    class Forgetless:
        async def load(self, id: str) -> bytes | None: ...

        async def save(self, id: str, record: bytes) -> None: ...

    with pytest.raises(ValueError, match="delete"):
        TurnLoop(agent, store=Forgetless(), **KEY)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]  # the point


@virtual
async def test_w19_no_accepted_push_vanishes_at_the_end() -> None:
    loop = TurnLoop(talker())
    accepted: list[str] = []

    def push_at_every_turn_of_the_loop(number: int) -> None:
        if in_a_thread(lambda: loop.push(f"item {number}")).accepted:
            accepted.append(f"item {number}")
        if not loop.ended:
            asyncio.get_running_loop().call_soon(push_at_every_turn_of_the_loop, number + 1)

    events: list[Any] = []
    reader = loop.events()
    loop.start()
    push_at_every_turn_of_the_loop(0)
    await until(loop, lambda: len(accepted) > 20)
    loop.stop(SafePoint.ANY)
    exit = await loop.wait()
    async for event in reader:
        events.append(event)
    done = [item for event in events if type(event).__name__ == "TurnEnded" for item in event.consumed]
    assert done + exit.unhandled == accepted
    assert len(loop.take_late_items()) > 0


@virtual
async def test_w20_a_callback_that_returns_early_does_not_leave_the_run_beside_the_next_turn() -> None:
    gate = Gate()
    agent = gate.agent(say("one"), say("two"))
    live: list[int] = []

    async def on_events(turn: Turn[str], events: EventReader) -> None:
        live.append(turn.number)

    async with TurnLoop(agent, on_events=on_events) as loop:
        loop.push("first")
        await gate.reached.wait()
        loop.push("second")
        await pass_time(10)
        assert live == [1]
        gate.opened.set()
        await until(loop, lambda: live == [1, 2])


@virtual
async def test_w21_a_preempted_turn_does_not_swallow_the_error_of_its_callback() -> None:
    gate = Gate()

    async def on_events(turn: Turn[str], events: EventReader) -> None:
        async for _ in events:
            pass
        assert turn.preempted
        raise KeyError("a real one")

    loop = TurnLoop(gate.agent(), on_events=on_events)
    loop.start()
    loop.push("first")
    await gate.reached.wait()
    receipt = loop.push("second", preempt=SafePoint.ANY)
    gate.opened.set()
    exit = await loop.wait()
    assert isinstance(exit.error, KeyError)
    assert (exit.unhandled, receipt.outcome) == (["first", "second"], "preempted")


@virtual
async def test_w22_a_preempted_turn_hands_over_its_items_and_its_history() -> None:
    gate = Gate()
    agent = gate.agent(say("both"))
    previous: list[Any] = []

    def plan(ctx: PlanContext[str], items: list[str]) -> Plan[str]:
        previous.append(ctx.previous)
        merged = [*(ctx.previous.preempted if ctx.previous is not None else ()), *items]
        return Plan(" and ".join(merged), items, history=ctx.history)

    async with TurnLoop(agent, plan=plan) as loop:
        loop.push("first")
        await gate.reached.wait()
        loop.push("second", preempt=SafePoint.ANY)
        gate.opened.set()
        await until(loop, lambda: model(agent).calls == 2)
    assert model(agent).requests[1].messages[-1].text == "first and second"
    check_history(list(previous[1].messages))


@tool
async def asks(ctx: ToolContext) -> str:
    """Ask a person."""
    return f"they said {await ctx.interrupt('may I?')}"


@virtual
async def test_w23_a_turn_that_pauses_beside_a_preempt_is_saved_whole() -> None:
    store = MemoryTurnStore()
    agent = Agent("asker", model=ScriptedModel(call("asks"), say("thanks"), say("more")), tools=[asks])
    receipts: list[Any] = []

    async def on_events(turn: Turn[str], events: EventReader) -> None:
        async for _ in events:
            pass
        receipts.append(turn.loop.push("second", preempt=SafePoint.ANY))

    loop = TurnLoop(agent, store=store, on_events=on_events, **KEY)
    loop.push("first")
    loop.start()
    exit = await loop.wait()
    assert (exit.reason, exit.checkpoint.state) == ("interrupted", "saved")
    assert (exit.interrupted, exit.unhandled) == (["first"], ["second"])
    assert receipts[0].outcome == "finished_first"
    (question,) = loop.questions
    loop = TurnLoop(agent, store=store, **KEY)
    loop.answer(question.id, "yes")
    async with loop:
        loop.stop(idle_for=1)
    assert (await loop.wait()).unhandled == []
    assert [message.text for message in model(agent).requests[2].messages[-2:]] == ["thanks", "second"]


@virtual
async def test_w24_a_stop_and_a_preempt_in_one_turn_have_one_outcome_in_either_order() -> None:
    for stop_first in (True, False):
        gate = Gate()
        turns: list[Turn[str]] = []
        async with TurnLoop(gate.agent(), on_events=lambda turn, events: turns.append(turn)) as loop:  # noqa: B023 (one each)
            loop.push("first")
            await gate.reached.wait()
            stop = loop.stop(SafePoint.ANY) if stop_first else None
            push = loop.push("second", preempt=SafePoint.ANY)
            stop = stop or loop.stop(SafePoint.ANY)
            gate.opened.set()
        exit = await loop.wait()
        assert (exit.reason, exit.interrupted, stop.outcome) == ("cancelled", ["first"], "stopped")
        assert turns[0].stopped
        if stop_first:
            assert (push.accepted, push.outcome, turns[0].preempted) == (False, "nothing_to_preempt", False)
        else:
            assert (push.accepted, push.outcome, turns[0].preempted) == (True, "preempted", True)


@virtual
async def test_w25_a_preempted_turn_leaves_no_trace_in_a_later_exit() -> None:
    gate = Gate()
    store = MemoryTurnStore()

    async def on_events(turn: Turn[str], events: EventReader) -> None:
        async for _ in events:
            pass
        if turn.number == 2:
            raise KeyError("in the second turn")

    agent = gate.agent(say("two"))
    loop = TurnLoop(agent, on_events=on_events, store=store, **KEY)
    loop.start()
    loop.push("first")
    await gate.reached.wait()
    loop.push("second", preempt=SafePoint.ANY)
    gate.opened.set()
    await until(loop, lambda: model(agent).calls == 2)
    loop.stop()
    exit = await loop.wait()
    assert exit.reason == "error"
    assert isinstance(exit.error, KeyError)
    assert (exit.interrupted, exit.unhandled) == ([], ["second"])


@virtual
async def test_w26_a_repeated_stop_until_idle_neither_restarts_the_clock_nor_changes_it() -> None:
    async with TurnLoop(talker()) as loop:
        await pass_time(1)
        begun = now()
        receipts = [loop.stop(idle_for=10)]
        for seconds in (3.0, 30.0, 1.0):
            await pass_time(3)
            receipts.append(loop.stop(idle_for=seconds))
        assert [await receipt.wait() for receipt in receipts] == ["clean"] * 4
        assert now() - begun == 10


@virtual
async def test_w27_the_cause_is_on_the_turn_only_once_the_stop_took_part_in_its_end() -> None:
    gate = Gate()
    turns: list[Turn[str]] = []
    async with TurnLoop(gate.agent(), on_events=lambda turn, events: turns.append(turn)) as loop:
        loop.push("first")
        await gate.reached.wait()
        loop.stop(cause="closing time")
        await pass_time(1)
        assert turns[0].cause is None
        gate.opened.set()
    assert (turns[0].stopped, turns[0].cause) == (False, None)
    assert (await loop.wait()).cause == "closing time"


def test_w28_a_preempt_with_a_limit_that_is_not_positive_is_refused() -> None:
    for seconds in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="above 0"):
            TurnLoop(talker()).push("x", preempt=SafePoint.ANY, within=seconds)


@virtual
async def test_w29_whatever_a_planning_callback_raises_is_the_error_of_the_loop() -> None:
    for error in (SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError(), ValueError("x")):

        def raises(*_: object, error: BaseException = error) -> Any:
            raise error

        for loop in (TurnLoop[str](talker(), plan=raises), TurnLoop[str](plan=all_at_once, prepare=raises)):
            loop.push("kept")
            loop.start()
            exit = await loop.wait()
            assert exit.error is error or (exit.error is not None and exit.error.__cause__ is error)
            assert not isinstance(exit.error, asyncio.CancelledError)
            assert exit.unhandled == ["kept"]


@virtual
async def test_w30_a_strategy_that_blocks_holds_its_own_push_and_nothing_else() -> None:
    agent = talker()
    loop = TurnLoop(agent)
    free = asyncio.Event()
    running = asyncio.get_running_loop()
    done: list[str] = []

    def blocks(turn: Turn[str] | None) -> PushOptions | None:
        running.call_soon_threadsafe(lambda: None)
        asyncio.run_coroutine_threadsafe(free.wait(), running).result()
        return None

    def push() -> None:
        loop.push("slow", strategy=blocks)
        done.append("slow")

    async with loop:
        pushing = running.run_in_executor(None, push)
        loop.push("one")
        await until(loop, lambda: model(agent).calls == 1)
        loop.push("two")
        await until(loop, lambda: model(agent).calls == 2)
        assert done == []
        free.set()
        await pushing
        await until(loop, lambda: model(agent).calls == 3)


@virtual
async def test_a_resumed_turn_may_start_anew_instead() -> None:
    store = MemoryTurnStore()
    await stopped_in_a_turn(store)
    seen: list[Any] = []

    def plan_resume(
        ctx: PlanContext[str], interrupted: list[str], unhandled: list[str], new: list[str]
    ) -> Plan[str] | ResumePlan[str]:
        seen.append((interrupted, unhandled, new, ctx.checkpoint is not None))
        return Plan("anew", [*interrupted, *unhandled], new, history=ctx.history)

    agent = resuming_agent("anew", "new")
    loop = TurnLoop(agent, store=store, plan_resume=plan_resume, **KEY)
    loop.push("new")
    async with loop:
        await until(loop, lambda: model(agent).calls == 2)
    assert seen == [(["first"], ["second"], ["new"], True)]
    check_history(list(model(agent).requests[1].messages))
    assert (await left_in(store)).unhandled == []


def model(agent: Agent) -> ScriptedModel:
    found = agent.models[0]
    assert isinstance(found, ScriptedModel)
    return found

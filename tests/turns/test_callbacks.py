"""Plans, agents and watchers of the user's own: what they see, what they may return, and what their errors cost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from safepoint import Agent, Budget, CancelToken, RunFailed, SafePoint, Sequential, TurnLoop
from safepoint.agent.event_hub import EventReader
from safepoint.agent.events import RunEnded
from safepoint.errors import HistoryError, ModelError, UsageError
from safepoint.sessions import MemoryStore, Session
from safepoint.testing import ScriptedModel, call, fail, pass_time, say
from safepoint.turns import (
    ItemsDropped,
    LoopEnded,
    LoopEvent,
    MemoryTurnStore,
    Plan,
    PlanContext,
    Turn,
    TurnEnded,
    TurnStarted,
)
from safepoint.turns.events import LIMIT, EventsMissed, LoopHub, LoopReader
from safepoint.turns.plan import OnEvents
from tests.turns.parts import Gate, TroubledStore, one_each, stored_places, talker, told, until
from tests.virtual import virtual


@virtual
async def test_items_that_a_plan_does_not_name_are_dropped_and_told() -> None:
    events: list[LoopEvent[str]] = []

    def plan(ctx: PlanContext[str], items: list[str]) -> Plan[str]:
        return Plan("go", items[:1], items[2:]) if len(items) > 1 else Plan(None, [])

    loop = TurnLoop(talker(), plan=plan)
    for word in "abc":
        loop.push(word)
    async with asyncio.TaskGroup() as group:
        group.create_task(told(loop, events))
        await asyncio.sleep(0)
        async with loop:
            loop.stop(idle_for=1)
    exit = await loop.wait()
    assert events == [
        ItemsDropped(1, ("b",)),
        TurnStarted(1, events[1].run_id if isinstance(events[1], TurnStarted) else "", ("a",)),
        TurnEnded(1, events[2].outcome if isinstance(events[2], TurnEnded) else events[2], ("a",)),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # told apart by the comparison
        ItemsDropped(2, ("c",)),
        LoopEnded(exit),
    ]
    assert exit.unhandled == []


@virtual
async def test_a_plan_chooses_the_agent_and_the_options_of_its_run() -> None:
    agents = {name: Agent(name, model=ScriptedModel(say("ok"), repeat=True)) for name in ("a", "b")}
    turns: list[Turn[str]] = []

    def plan(ctx: PlanContext[str], items: list[str]) -> Plan[str]:
        budget, token = Budget(steps=3), CancelToken()
        return Plan("go", items[:1], items[1:], deps=items[0], budget=budget, token=token, metadata={"for": items[0]})

    async def prepare(ctx: PlanContext[str], consumed: list[str]) -> Agent:
        await asyncio.sleep(0)
        return agents[consumed[0]]

    loop = TurnLoop(plan=plan, prepare=prepare, on_events=lambda turn, events: turns.append(turn))
    loop.push("a")
    loop.push("b")
    async with loop:
        await until(loop, lambda: len(turns) == 2)
    assert [turn.run.agent.name for turn in turns] == ["a", "b"]
    assert [turn.run.deps for turn in turns] == ["a", "b"]
    assert [turn.metadata for turn in turns] == [{"for": "a"}, {"for": "b"}]
    assert [turn.result.text for turn in turns] == ["ok", "ok"]
    assert "over" in repr(turns[0])


@virtual
async def test_a_turn_may_go_through_a_session() -> None:
    session = await Session.create(MemoryStore())

    def plan(ctx: PlanContext[str], items: list[str]) -> Plan[str]:
        return Plan(items[0], items[:1], items[1:], session=session)

    async with TurnLoop(talker("hello"), plan=plan) as loop:
        loop.push("one")
        loop.push("two")
        loop.stop(idle_for=1)
    assert [message.text for message in session.messages] == ["one", "hello", "two", "hello"]


@pytest.mark.parametrize(
    "wrong",
    [
        Plan("go", ["not given"]),
        Plan("go", ["a", "a"]),
        Plan("go", ["a"], ["a"]),
        Plan("go", "ab"),
        Plan("", ["a"]),
        Plan("go", ["a"], history=[]),
        "go",
        None,
    ],
    ids=repr,
)
def test_a_plan_that_cannot_be_carried_out_ends_the_loop_and_loses_nothing(wrong: Any) -> None:
    @virtual
    async def body() -> None:
        def plan(ctx: PlanContext[str], items: list[str]) -> Any:
            if wrong == Plan("go", ["a"], history=[]):
                return Plan("go", ["a"], history=[talker_message()])
            return wrong

        loop = TurnLoop(talker(), plan=plan)
        loop.push("a")
        loop.push("b")
        loop.start()
        exit = await loop.wait()
        assert isinstance(exit.error, TypeError | ValueError | HistoryError), exit
        assert (exit.reason, exit.unhandled) == ("error", ["a", "b"])

    body()


def talker_message() -> Any:
    from safepoint import Message, Text

    return Message("user", (Text("two of these in a row"),))


def test_a_plan_without_input_can_not_consume() -> None:
    with pytest.raises(ValueError, match="consumed=\\[\\]"):
        Plan(None, ["a"])


@virtual
async def test_equal_items_are_told_apart() -> None:
    taken: list[tuple[list[str], list[str]]] = []

    def plan(ctx: PlanContext[str], items: list[str]) -> Plan[str]:
        taken.append((items, items[1:]))
        return Plan("go", ["".join("x")], ["x"] * (len(items) - 1))

    loop = TurnLoop(talker(), plan=plan)
    for _ in range(3):
        loop.push("x")
    async with loop:
        loop.stop(idle_for=1)
    assert [len(items) for items, _ in taken] == [3, 2, 1]
    assert (await loop.wait()).unhandled == []


@virtual
async def test_an_agent_that_is_none_ends_the_loop() -> None:
    nobody: Any = None  # Any: what untyped callers return
    loop = TurnLoop[str](plan=one_each, prepare=lambda ctx, items: nobody)
    loop.push("a")
    loop.start()
    exit = await loop.wait()
    assert isinstance(exit.error, TypeError)
    assert exit.unhandled == ["a"]


@virtual
async def test_an_error_of_a_watcher_stops_the_run_and_ends_the_loop() -> None:
    gate = Gate()

    async def on_events(turn: Turn[str], events: EventReader) -> None:
        await gate.reached.wait()
        raise KeyError("watching failed")

    loop = TurnLoop(gate.agent(), on_events=on_events)
    loop.push("first")
    loop.start()
    exit = await loop.wait()
    assert isinstance(exit.error, KeyError)
    assert (exit.reason, exit.unhandled, exit.interrupted) == ("error", ["first"], [])


@pytest.mark.parametrize("in_session", [False, True])
@virtual
async def test_a_resumed_turn_whose_watcher_fails_is_told_as_it_is_stored(in_session: bool) -> None:
    store, gate = TroubledStore(), Gate()
    session = await Session.create(MemoryStore(), "s") if in_session else None

    def plan(ctx: PlanContext[str], items: list[str]) -> Plan[str]:
        return Plan(items[0], items[:1], session=session, keep_rest=True)

    def loop_of(agent: Agent, on_events: OnEvents[str] | None = None) -> TurnLoop[str]:
        return TurnLoop(agent, plan=plan, on_events=on_events, store=store, checkpoint_id="loop")

    loop = loop_of(gate.agent())
    loop.push("item")
    loop.start()
    await gate.reached.wait()
    loop.stop(SafePoint.NOW)
    assert (await loop.wait()).interrupted == ["item"]

    async def fails_at_the_end(turn: Turn[str], events: EventReader) -> None:
        async for _ in events:
            pass
        raise ValueError("told to fail")

    loop = loop_of(Agent("desk", model=ScriptedModel(say("well")), tools=[gate.tool]), fails_at_the_end)
    loop.start()
    exit = await loop.wait()
    assert (str(exit.error), exit.unhandled, exit.interrupted) == ("told to fail", ["item"], [])
    assert stored_places(store.peek("loop")) == (exit.interrupted, exit.unhandled, [])
    async with loop_of(talker("again")) as loop:
        pass
    assert (await loop.wait()).unhandled == []
    assert store.peek("loop") is None or stored_places(store.peek("loop")) == ([], [], [])


@virtual
async def test_a_watcher_may_be_a_plain_function_and_sees_every_event() -> None:
    readers: list[EventReader] = []
    async with TurnLoop(talker(), on_events=lambda turn, events: readers.append(events)) as loop:
        loop.push("first")
        await until(loop, lambda: len(readers) == 1)
    events = [event async for event in readers[0]]
    assert isinstance(events[-1], RunEnded)


@virtual
async def test_a_turn_that_fails_stops_the_loop_or_not() -> None:
    broken = ScriptedModel(fail(ModelError("broken")), say("ok"), repeat=True)
    loop = TurnLoop[str](Agent("broken", model=broken), plan=one_each)
    loop.push("first")
    loop.push("second")
    loop.start()
    exit = await loop.wait()
    assert isinstance(exit.error, RunFailed)
    assert (exit.reason, exit.unhandled) == ("error", ["second"])

    outcomes: list[str] = []

    def plan(ctx: PlanContext[str], items: list[str]) -> Plan[str]:
        outcomes.append(str(ctx.previous.outcome) if ctx.previous is not None else "-")
        return one_each(ctx, items)

    broken = ScriptedModel(fail(ModelError("broken")), say("ok"), repeat=True)
    loop = TurnLoop(Agent("broken", model=broken), plan=plan, on_turn_error="continue")
    for word in "abc":
        loop.push(word)
    async with loop:
        loop.stop(idle_for=1)
    assert outcomes == ["-", "failed", "ended"]


@virtual
async def test_a_run_that_somebody_cancels_by_itself_ends_its_turn_and_nothing_else() -> None:
    gate = Gate()
    turns: list[Turn[str]] = []
    agent = gate.agent(say("next"))
    async with TurnLoop(agent, on_events=lambda turn, events: turns.append(turn)) as loop:
        loop.push("first")
        await gate.reached.wait()
        turns[0].run.cancel(SafePoint.NOW)
        loop.push("second")
        await until(loop, lambda: len(turns) == 2)
        loop.stop(idle_for=1)
    exit = await loop.wait()
    assert (exit.reason, exit.interrupted, exit.unhandled) == ("clean", [], [])
    assert not turns[0].stopped
    assert not turns[0].preempted


@virtual
async def test_a_second_task_that_waits_at_one_reader_is_refused_and_the_first_is_told() -> None:
    loop = TurnLoop(talker())
    reader = loop.events()
    first = asyncio.ensure_future(anext(reader))
    await pass_time(1)
    with pytest.raises(UsageError, match=r"call loop\.events\(\) once for each reader"):
        await anext(reader)
    loop.stop()
    loop.start()
    assert await first == LoopEnded(await loop.wait())


@virtual
async def test_a_reader_that_is_too_slow_is_told_what_it_missed() -> None:
    hub: LoopHub[int] = LoopHub()
    reader = hub.read()
    for number in range(LIMIT + 5):
        hub.emit(ItemsDropped(number, ()))
    assert await anext(reader) == EventsMissed(5)
    assert await anext(reader) == ItemsDropped(5, ())


def test_a_live_loop_is_read_on_its_own_event_loop_only() -> None:
    async def elsewhere(reader: LoopReader[str]) -> None:
        with pytest.raises(UsageError, match="lives on another event loop: read its events there"):
            await anext(reader)

    async def main() -> None:
        async with TurnLoop(talker()) as loop:
            await asyncio.to_thread(asyncio.run, elsewhere(loop.events()))

    asyncio.run(main())


@virtual
async def test_a_reader_of_a_loop_that_has_ended_ends() -> None:
    async with TurnLoop(talker()) as loop:
        pass
    assert [event async for event in loop.events()] == []


@virtual
async def test_a_turn_of_a_tool_may_push_and_is_preempted_before_the_next_model_call() -> None:
    from safepoint import tool

    loops: list[TurnLoop[str]] = []

    @tool
    async def interrupts_itself() -> str:
        """Push with a preempt from inside the turn."""
        loops[0].push("more", preempt=SafePoint.AFTER_TOOLS)
        return "pushed"

    model = ScriptedModel(call("interrupts_itself"), say("second turn"))
    async with TurnLoop(Agent("self", model=model, tools=[interrupts_itself])) as loop:
        loops.append(loop)
        loop.push("first")
        await until(loop, lambda: model.calls == 2)
    assert model.requests[1].messages[-1].text == "more"


@virtual
async def test_a_turn_may_be_a_composite_and_goes_on_at_the_child_that_was_stopped() -> None:
    gate = Gate()
    first, second = gate.agent(say("found"), name="first"), Agent("second", model=ScriptedModel(say("written")))
    pipeline = Sequential("pipeline", first).then(second)
    store = MemoryTurnStore()
    loop = TurnLoop(pipeline, store=store, checkpoint_id="loop")
    loop.start()
    loop.push("go")
    await gate.reached.wait()
    loop.stop(SafePoint.ANY)
    gate.opened.set()
    assert (await loop.wait()).interrupted == ["go"]
    outcomes: list[LoopEvent[str]] = []
    loop = TurnLoop(pipeline, store=store, checkpoint_id="loop")
    async with asyncio.TaskGroup() as group:
        group.create_task(told(loop, outcomes))
        await asyncio.sleep(0)
        async with loop:
            loop.stop(idle_for=1)
    assert [event.outcome for event in outcomes if isinstance(event, TurnEnded)] == ["ended"]

"""What a push gives back: what became of the item, whether it can be taken back, and what a view shows meanwhile."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from safepoint import Agent, SafePoint, Text, TurnLoop
from safepoint.agent.event_hub import EventReader
from safepoint.errors import StoreError, UsageError, WaitInsideRun
from safepoint.events import TextStreamed
from safepoint.testing import ScriptedModel, call, pass_time, say, stall
from safepoint.turns import MemoryTurnStore, Plan, PlanContext, PushOptions, PushReceipt, Turn
from tests.turns.parts import Gate, TroubledStore, all_at_once, in_a_thread, one_each, talker, texts, until
from tests.virtual import now, virtual

KEY: dict[str, Any] = {"checkpoint_id": "loop"}


def model(agent: Agent) -> ScriptedModel:
    found = agent.models[0]
    assert isinstance(found, ScriptedModel)
    return found


# -- the result ------------------------------------------------------------------------------------------------------


@virtual
async def test_a_receipt_brings_the_result_of_the_turn_that_dealt_with_its_item() -> None:
    async with TurnLoop[str](talker("one", "two"), plan=one_each) as loop:
        receipts = [loop.push("a"), loop.push("b")]
        results = [await receipt.result() for receipt in receipts]
    assert [result.text for result in results if not isinstance(result, str)] == ["one", "two"]


@virtual
async def test_a_result_can_be_waited_for_in_a_thread_and_not_where_that_would_hang() -> None:
    refused: list[BaseException] = []

    async def on_events(turn: Turn[str], events: EventReader) -> None:
        try:
            await receipt.result()
        except WaitInsideRun as error:
            refused.append(error)

    async with TurnLoop(talker("one"), on_events=on_events) as loop:
        receipt = loop.push("a")
        with pytest.raises(UsageError, match=r"await receipt\.result"):
            receipt.result_sync()
        result = await asyncio.get_running_loop().run_in_executor(None, receipt.result_sync)
    assert not isinstance(result, str)
    assert (result.text, len(refused)) == ("one", 1)
    with pytest.raises(TimeoutError):
        in_a_thread(lambda: TurnLoop(talker()).push("x").result_sync(0.01))


@virtual
async def test_an_item_without_a_result_says_why() -> None:
    gate = Gate()

    def plan(ctx: PlanContext[str], items: list[str]) -> Plan[str]:
        return Plan(items[0], items[:1], [item for item in items[1:] if item != "drop me"])

    loop = TurnLoop(gate.agent(say("ok"), call("gate")), plan=plan)
    loop.start()
    receipts = {"preempted": loop.push("first"), "dropped": loop.push("drop me")}
    await gate.reached.wait()
    loop.push("second", preempt=SafePoint.ANY)
    gate.opened.set()
    await until(loop, lambda: loop.view.turn is not None and loop.view.turn.items == ("second",))
    await pass_time(1)
    gate.reached.clear()
    gate.opened.clear()
    receipts["interrupted"] = loop.push("third")
    receipts["unhandled"] = loop.push("fourth")
    await gate.reached.wait()
    loop.stop(SafePoint.NOW)
    receipts["late"] = loop.push("fifth")
    await loop.wait()
    assert {word: await receipt.result() for word, receipt in receipts.items()} == {word: word for word in receipts}


@virtual
async def test_a_result_comes_when_the_end_of_the_turn_is_stored() -> None:
    store, agent = TroubledStore(), talker()
    loop = TurnLoop(agent, store=store, **KEY)
    loop.start()
    receipt = loop.push("first")
    await receipt.saved()
    store.gate = asyncio.Event()
    await store.waiting.wait()
    await pass_time(5)
    assert model(agent).calls == 1
    assert receipt._result.value is None  # pyright: ignore[reportPrivateUsage]  # without waiting
    store.gate.set()
    assert not isinstance(await receipt.result(), str)
    loop.stop()
    await loop.wait()


# -- taking back -----------------------------------------------------------------------------------------------------


@virtual
async def test_an_item_that_waits_can_be_withdrawn_and_one_that_was_consumed_can_not() -> None:
    store, gate = TroubledStore(), Gate()
    agent = gate.agent(say("ok"), say("next"))
    async with TurnLoop[str](agent, plan=one_each, store=store, **KEY) as loop:
        first = loop.push("first")
        await gate.reached.wait()
        second, third = loop.push("second"), loop.push("third")
        await second.saved()
        assert in_a_thread(second.withdraw)
        assert not second.withdraw()
        assert not first.withdraw()
        await pass_time(1)
        assert texts(store.peek("loop")) == ['"first"', '"third"']
        assert loop.view.queue == ("third",)
        gate.opened.set()
        assert await second.result() == "withdrawn"
        assert not isinstance(await third.result(), str)
        assert not third.withdraw()
    assert (await loop.wait()).unhandled == []
    assert not loop.push("late").withdraw()


@virtual
async def test_an_item_that_is_withdrawn_while_a_plan_looks_at_it_is_planned_without() -> None:
    planning, planned = asyncio.Event(), asyncio.Event()
    seen: list[list[str]] = []

    async def plan(ctx: PlanContext[str], items: list[str]) -> Plan[str]:
        seen.append(items[:])
        planning.set()
        await planned.wait()
        return Plan(" ".join(items), items)

    agent = talker()
    async with TurnLoop(agent, plan=plan) as loop:
        receipts = [loop.push("first"), loop.push("second")]
        await planning.wait()
        assert receipts[1].withdraw()
        planned.set()
    assert seen == [["first", "second"], ["first"]]
    assert model(agent).requests[0].messages[-1].text == "first"


def test_of_a_withdrawal_and_a_turn_one_has_the_item_whatever_the_threads_do() -> None:
    for _ in range(300):
        receipt = PushReceipt(None, stored=False)
        receipt.on_withdrawn = lambda withdrawn: None
        gate, won = threading.Barrier(2), list[str]()

        def withdraw(receipt: PushReceipt = receipt, gate: threading.Barrier = gate, won: list[str] = won) -> None:
            gate.wait()
            if receipt.withdraw():
                won.append("withdrawn")

        thread = threading.Thread(target=withdraw)
        thread.start()
        gate.wait()
        if receipt.consume():
            won.append("consumed")
        thread.join()
        assert len(won) == 1


@virtual
async def test_an_item_can_be_withdrawn_before_the_start() -> None:
    loop = TurnLoop(talker(), store=MemoryTurnStore(), **KEY)
    receipt = loop.push("never")
    assert receipt.withdraw()
    assert (await receipt.saved()).state == "none"
    async with loop:
        pass
    exit = await loop.wait()
    assert exit.checkpoint == "none"
    assert exit.unhandled == []


# -- saved -----------------------------------------------------------------------------------------------------------


@virtual
async def test_saved_says_so_of_an_item_that_was_refused_and_has_a_twin_for_threads() -> None:
    loop = TurnLoop(talker(), store=MemoryTurnStore(), **KEY)
    loop.start()
    receipt = loop.push("first")
    saved = await asyncio.get_running_loop().run_in_executor(None, receipt.saved_sync)
    assert saved == "saved"
    with pytest.raises(UsageError, match=r"await receipt\.saved"):
        loop.push("second").saved_sync()
    loop.stop()
    late = loop.push("late")
    for said in (await late.saved(), in_a_thread(late.saved_sync)):
        assert said == "refused"
        assert isinstance(said.error, StoreError)
    await loop.wait()


# -- the view --------------------------------------------------------------------------------------------------------


@virtual
async def test_a_view_shows_the_live_turn_and_the_queue_from_any_thread() -> None:
    gate = Gate()
    loop: TurnLoop[str] = TurnLoop(gate.agent(say("one"), say("two")), plan=one_each)
    loop.push("first")
    assert (loop.view.turn, loop.view.queue) == (None, ("first",))
    async with loop:
        await gate.reached.wait()
        begun = now()
        await pass_time(3)
        loop.push("second")
        seen = in_a_thread(lambda: loop.view)
        assert seen.queue == ("second",)
        assert seen.turn is not None
        assert (seen.turn.number, seen.turn.phase, seen.turn.items) == (1, "active", ("first",))
        assert seen.turn.run is not None
        assert not seen.turn.run.ended
        assert seen.turn.since <= begun + asyncio.get_running_loop().wall() - now()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]  # of a virtual clock
        gate.opened.set()
    assert (loop.view.turn, loop.view.queue, loop.view.failed) == (None, (), ())


# -- joining the turn ------------------------------------------------------------------------------------------------


@virtual
async def test_an_item_joins_the_running_turn_if_a_model_call_follows() -> None:
    for store in (None, MemoryTurnStore()):
        gate = Gate()
        agent = gate.agent(say("both"))
        options: dict[str, Any] = {} if store is None else {"store": store, **KEY}
        async with TurnLoop(agent, **options) as loop:
            first = loop.push("first")
            await gate.reached.wait()
            second = loop.push("also this", join=True)
            await pass_time(1)
            assert not second.withdraw()
            gate.opened.set()
            assert await second.wait() == "joined"
            assert await second.result() is await first.result()
        assert model(agent).calls == 2
        assert model(agent).requests[1].messages[-1].text == "also this"
        assert (await loop.wait()).unhandled == []


@virtual
async def test_an_item_that_is_withdrawn_before_it_could_join_has_an_outcome() -> None:
    store, gate = TroubledStore(), Gate()
    async with TurnLoop(gate.agent(), store=store, **KEY) as loop:
        loop.push("first")
        await gate.reached.wait()
        await pass_time(1)
        store.gate = asyncio.Event()
        receipt = loop.push("second", join=True)
        await store.waiting.wait()  # it joins once it is stored
        assert receipt.withdraw()
        assert await receipt.wait(10) == "queued", "it does not join"
        assert await receipt.result() == "withdrawn"
        store.gate.set()
        gate.opened.set()
    assert (await loop.wait()).unhandled == []


@virtual
async def test_an_item_that_finds_no_further_model_call_is_queued() -> None:
    late: list[PushReceipt] = []

    async def on_events(turn: Turn[str], events: EventReader) -> None:
        async for event in events:
            if isinstance(event, TextStreamed) and not late:
                late.append(turn.loop.push("late", join=True))

    loop = TurnLoop(talker("one", "two"), on_events=on_events)
    before = loop.push("before", join=True)
    assert before.outcome == "queued"
    async with loop:
        pass
    assert late[0].outcome == "queued"
    result = await late[0].result()
    assert not isinstance(result, str)
    assert result.text == "two"


@virtual
async def test_an_item_that_joined_a_turn_that_was_stopped_is_interrupted_with_it_and_said_once() -> None:
    store, gate = MemoryTurnStore(), Gate()
    agent = gate.agent(call("gate"), say("done"))
    loop = TurnLoop(agent, store=store, **KEY)
    loop.start()
    loop.push("first")
    await gate.reached.wait()
    receipt = loop.push("second", join=True)
    await pass_time(1)
    gate.reached.clear()
    gate.opened.set()
    await gate.reached.wait()
    assert await receipt.wait() == "joined"
    gate.opened.clear()
    loop.stop(SafePoint.NOW)
    exit = await loop.wait()
    assert exit.interrupted == ["first", "second"]
    resumed = Agent("desk", model=ScriptedModel(say("done")), tools=[gate.tool])
    async with TurnLoop(resumed, store=store, **KEY):
        pass
    said = [part for message in model(resumed).requests[0].messages if message.role == "user" for part in message.parts]
    assert [part.text for part in said if isinstance(part, Text)] == ["first", "second"]


def test_a_join_is_for_messages_and_goes_with_nothing_else() -> None:
    loop: TurnLoop[Any] = TurnLoop(talker(), plan=all_at_once)
    refused: list[dict[str, Any]] = [{"preempt": SafePoint.ANY}, {"interrupt": True}, {"within": 1}]
    for options in refused:
        with pytest.raises(ValueError, match="join=True lets the turn go on"):
            loop.push("x", join=True, **options)
    with pytest.raises(ValueError, match="is no text"):
        loop.push(3, join=True)
    with pytest.raises(ValueError, match="strategy"):
        loop.push("x", join=True, strategy=lambda turn: None)


# -- barging in ------------------------------------------------------------------------------------------------------


@virtual
async def test_an_interrupting_push_cuts_a_streaming_answer_at_once() -> None:
    reached = asyncio.Event()
    agent = Agent("voice", model=ScriptedModel([say("Once upon "), stall(on_reached=reached.set)], say("Four.")))
    async with TurnLoop(agent) as loop:
        first = loop.push("Tell me a story.")
        await reached.wait()
        begun = now()
        second = loop.push("What is 2 + 2?", interrupt=True)
        assert await second.wait() == "preempted"
        assert now() == begun
        assert await first.result() == "preempted"
        result = await second.result()
    assert not isinstance(result, str)
    assert result.text == "Four."
    assert [message.role for message in model(agent).requests[1].messages] == ["user", "assistant", "user"]


@virtual
async def test_an_interrupting_push_hits_the_turn_that_was_seen_and_no_other() -> None:
    gate = Gate()
    agent = gate.agent(say("one"), call("gate"), say("two"))
    async with TurnLoop(agent) as loop:
        loop.push("first")
        await gate.reached.wait()
        receipt = loop.push("second", strategy=lambda turn: PushOptions(interrupt=True, delay=5))
        gate.opened.set()
        assert await receipt.wait() == "finished_first"
        await pass_time(10)
        assert model(agent).calls == 4
    assert (await loop.wait()).reason == "clean"


def test_the_refusal_of_a_preempt_at_now_names_the_interrupt() -> None:
    with pytest.raises(ValueError, match="interrupt=True"):
        TurnLoop(talker()).push("x", preempt=SafePoint.NOW)
    refused: list[dict[str, Any]] = [{"preempt": SafePoint.ANY}, {"within": 1.0}]
    for options in refused:
        with pytest.raises(ValueError, match="interrupt=True stops the turn at once"):
            TurnLoop(talker()).push("x", interrupt=True, **options)


@virtual
async def test_a_preempting_push_before_the_start_is_settled_at_once() -> None:
    loop = TurnLoop(talker())
    given: list[dict[str, Any]] = [{"preempt": SafePoint.ANY}, {"interrupt": True}]
    for options in given:
        assert loop.push("x", **options).outcome == "nothing_to_preempt"
    async with loop:
        pass


# -- the block, the plan, the words ----------------------------------------------------------------------------------


@virtual
async def test_leaving_the_block_handles_what_was_pushed() -> None:
    agent = talker("one", "two")
    async with TurnLoop[str](agent, plan=one_each) as loop:
        loop.push("hello")
        loop.push("again")
    assert (model(agent).calls, (await loop.wait()).unhandled) == (2, [])


@virtual
async def test_leaving_the_block_does_not_wait_for_items_that_no_plan_wants() -> None:
    async with TurnLoop(talker(), plan=lambda ctx, items: Plan(None, [], items)) as loop:
        loop.push("hello")
    assert ((await loop.wait()).reason, (await loop.wait()).unhandled) == ("clean", ["hello"])


@virtual
async def test_a_stop_inside_the_block_leaves_what_waits_unhandled() -> None:
    gate = Gate()
    async with TurnLoop[str](gate.agent(), plan=one_each) as loop:
        loop.push("first")
        await gate.reached.wait()
        loop.push("second")
        loop.stop()
        gate.opened.set()
    assert (await loop.wait()).unhandled == ["second"]


@virtual
async def test_prepare_sees_the_plan() -> None:
    seen: list[Any] = []
    agent = talker()

    def plan(ctx: PlanContext[str], items: list[str]) -> Plan[str]:
        assert ctx.plan is None
        return Plan(items[0], items, metadata={"for": "Ann"})

    def prepare(ctx: PlanContext[str], consumed: list[str]) -> Agent:
        assert ctx.plan is not None
        seen.append((ctx.plan.metadata, consumed))
        return agent

    async with TurnLoop(plan=plan, prepare=prepare) as loop:
        loop.push("hello")
    assert seen == [({"for": "Ann"}, ["hello"])]


@virtual
async def test_a_plan_sees_the_queue_read_only_and_keeps_the_rest_without_naming_it() -> None:
    seen: list[Any] = []

    def plan(ctx: PlanContext[str], items: list[str]) -> Plan[str]:
        seen.append(items)
        with pytest.raises((TypeError, AttributeError)):
            items[0] = "another"
        with pytest.raises(AttributeError):
            items.clear()
        return Plan(items[-1], items[-1:], keep_rest=True)

    agent = talker()
    loop = TurnLoop(agent, plan=plan)
    for word in ("a", "b", "c"):
        loop.push(word)
    async with loop:
        pass
    assert [request.messages[-1].text for request in model(agent).requests] == ["c", "b", "a"]
    assert seen == [["a", "b", "c"], ["a", "b"], ["a"]]  # what a plan keeps stays what it saw
    assert (seen[0][1], seen[0][::-1], len(seen[0]), repr(seen[2])) == ("b", ["c", "b", "a"], 3, "['a']")


def test_a_plan_that_keeps_the_rest_and_names_it_is_refused() -> None:
    with pytest.raises(ValueError, match="leave remaining out"):
        Plan("go", ["a"], ["b"], keep_rest=True)


def test_the_repr_of_a_loop_that_was_never_made_says_so() -> None:
    made: list[TurnLoop[str]] = []

    class Kept(TurnLoop[str]):
        def __new__(cls, *args: Any, **kwargs: Any) -> Any:  # Any: as given, and the object that is never made
            made.append(super().__new__(cls))
            return made[-1]

    with pytest.raises(ValueError, match="carry"):
        Kept(talker(), carry="keep")  # pyright: ignore[reportArgumentType]  # the point
    assert repr(made[0]) == "<TurnLoop, not made: its arguments were refused>"

"""Turns that ask a person: the loop ends with them, or waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from safepoint import Agent, Question, Receipt, Run, SafePoint, ToolContext, TurnLoop, check_history, tool
from safepoint.errors import CheckpointError, UsageError
from safepoint.events import Event
from safepoint.sessions import MemoryStore, Session
from safepoint.testing import ScriptedModel, call, pass_time, say
from safepoint.turns import MemoryTurnStore, Plan, PlanContext, ResumePlan, Turn
from tests.injection.parts import StepModel
from tests.turns.parts import in_a_thread, until
from tests.virtual import virtual

KEY: dict[str, Any] = {"checkpoint_id": "loop"}


@tool
async def asks(ctx: ToolContext) -> str:
    """Ask a person."""
    return f"they said {await ctx.interrupt('may I?')}"


def asker(*words: str) -> Agent:
    return Agent("asker", model=ScriptedModel(call("asks"), *(say(word) for word in words)), tools=[asks])


@virtual
async def test_a_loop_that_exits_says_what_is_asked_and_the_next_one_takes_the_answer() -> None:
    store = MemoryTurnStore()
    agent = asker("thanks")
    loop = TurnLoop(agent, store=store, **KEY)
    loop.push("first")
    loop.start()
    exit = await loop.wait()
    assert (exit.reason, exit.interrupted, exit.checkpoint.state) == ("interrupted", ["first"], "saved")
    (question,) = loop.questions
    assert question.payload == "may I?"
    with pytest.raises(UsageError, match="no turn waits"):
        loop.answer(question.id, "yes")
    async with TurnLoop(agent, store=store, **KEY) as loop:
        await until(loop, lambda: loop.questions != ())
        await pass_time(100)  # it waits for a person, not for a time
        with pytest.raises(CheckpointError, match="no question has the id"):
            loop.answer("another", "yes")
        in_a_thread(lambda: loop.answer(question.id, "yes"))
        await until(loop, lambda: model(agent).calls == 2)
    assert "they said yes" in str(model(agent).requests[1].messages[-1].parts)
    assert (await loop.wait()).interrupted == []


@virtual
async def test_a_loop_that_waits_accepts_pushes_and_goes_on_with_the_answer() -> None:
    agent = asker("thanks", "second turn")
    async with TurnLoop(agent, on_interrupt="wait") as loop:
        loop.push("first")
        await until(loop, lambda: loop.questions != ())
        assert loop.push("second").accepted
        loop.answer(loop.questions[0].id, "yes")
        await until(loop, lambda: model(agent).calls == 3)
    assert [message.text for message in model(agent).requests[2].messages][-2:] == ["thanks", "second"]
    assert loop.questions == ()


@virtual
async def test_a_stop_ends_a_loop_that_waits_and_keeps_the_turn() -> None:
    for at in (None, SafePoint.ANY, SafePoint.NOW):
        store = MemoryTurnStore()
        agent = asker("thanks")
        async with TurnLoop(agent, on_interrupt="wait", store=store, **KEY) as loop:
            loop.push("first")
            await until(loop, lambda: loop.questions != ())  # noqa: B023 (waited for right here)
            receipt = loop.stop(at)
        exit = await loop.wait()
        assert (exit.reason, exit.interrupted, exit.checkpoint.state) == ("interrupted", ["first"], "saved")
        assert receipt.outcome == "clean"
        loop = TurnLoop(agent, store=store, **KEY)
        loop.answer((await asked_by(store)), "yes")
        async with loop:
            await until(loop, lambda: model(agent).calls == 2)  # noqa: B023 (as above)


@virtual
async def test_a_stop_in_the_moment_of_the_answer_ends_the_loop_and_keeps_the_turn() -> None:
    for at in (None, SafePoint.ANY, SafePoint.NOW, SafePoint.FORCE):
        for answer_first in (True, False):
            agent = asker("thanks")
            async with TurnLoop(agent, on_interrupt="wait") as loop:
                loop.push("first")
                await until(loop, lambda: loop.questions != ())
                (question,) = loop.questions
                if answer_first:
                    loop.answer(question.id, "yes")
                receipt = loop.stop(at)
                if not answer_first:
                    loop.answer(question.id, "yes")
            exit = await loop.wait()
            assert (exit.reason, exit.interrupted, receipt.outcome) == ("interrupted", ["first"], "clean")
            assert model(agent).calls == 1


async def asked_by(store: MemoryTurnStore) -> str:
    loop = TurnLoop(asker(), store=store, **KEY)
    loop.stop()
    loop.start()
    await loop.wait()
    return loop.questions[0].id


@virtual
async def test_a_preempt_takes_the_floor_from_a_turn_that_waits() -> None:
    agent = asker("the other one")
    for_plan: list[PlanContext[str]] = []

    def plan(ctx: PlanContext[str], items: list[str]) -> Plan[str]:
        for_plan.append(ctx)
        return Plan(" ".join(items), items, history=ctx.history)

    async with TurnLoop(agent, plan=plan, on_interrupt="wait") as loop:
        loop.push("first")
        await until(loop, lambda: loop.questions != ())
        receipt = loop.push("urgent", preempt=SafePoint.ANY, delay=2)
        assert await receipt.wait() == "preempted"
        await until(loop, lambda: model(agent).calls == 2)
    previous = for_plan[1].previous
    assert previous is not None
    assert (previous.outcome, previous.preempted) == ("preempted", ("first",))
    check_history(list(model(agent).requests[1].messages))


@virtual
async def test_a_preempt_takes_the_floor_from_a_turn_that_came_back_to_wait() -> None:
    store = MemoryTurnStore()
    agent = asker("the other one")
    loop = TurnLoop(agent, store=store, **KEY)
    loop.push("first")
    loop.start()
    await loop.wait()
    async with TurnLoop(agent, store=store, **KEY) as loop:
        await until(loop, lambda: loop.questions != ())
        await pass_time(1)
        assert await loop.push("urgent", preempt=SafePoint.ANY).wait() == "preempted"
        await until(loop, lambda: model(agent).calls == 2)
    exit = await loop.wait()
    assert (exit.interrupted, exit.unhandled) == ([], [])


@virtual
async def test_a_plan_for_a_paused_turn_may_bring_the_answers() -> None:
    store = MemoryTurnStore()
    agent = asker("thanks")
    loop = TurnLoop(agent, store=store, **KEY)
    loop.push("first")
    loop.start()
    await loop.wait()

    def plan_resume(
        ctx: PlanContext[str], interrupted: list[str], unhandled: list[str], new: list[str]
    ) -> ResumePlan[str]:
        assert ctx.checkpoint is not None
        answers = {question.id: "of course" for question in ctx.checkpoint.questions}
        return ResumePlan(interrupted, [*unhandled, *new], answers=answers, message="and hurry")

    async with TurnLoop(agent, store=store, plan_resume=plan_resume, **KEY) as loop:
        await until(loop, lambda: model(agent).calls == 2)
    said = str(model(agent).requests[1].messages)
    assert "of course" in said
    assert "and hurry" in said


@virtual
async def test_an_answer_that_comes_twice_does_not_answer_a_later_question_of_the_same_name() -> None:
    done, gate = list[str](), asyncio.Event()

    @tool(effect="irreversible")
    async def pay(what: str, ctx: ToolContext) -> str:
        """Pay, if a person says so."""
        if await ctx.interrupt(f"pay for {what}?"):
            done.append(what)
        await gate.wait()
        return "well"

    # Each turn is a conversation of its own, and so its first call has the same id.
    def agent_for(what: str) -> Agent:
        return Agent("payer", model=StepModel(call("pay", what=what), say("ok")), tools=[pay])

    def plan(ctx: PlanContext[str], items: list[str]) -> Plan[str]:
        return Plan(items[0], items[:1], items[1:])

    loop = TurnLoop(plan=plan, prepare=lambda ctx, items: agent_for(items[0]), on_interrupt="wait")
    loop.push("tea")
    loop.push("a castle")
    async with loop:
        await until(loop, lambda: loop.questions != ())
        (question,) = loop.questions
        loop.answer(question.id, True)
        loop.answer(question.id, True)  # at once
        await until(loop, lambda: done == ["tea"])
        assert len(loop.questions) == 0
        with pytest.raises(UsageError, match="no turn waits"):
            loop.answer(question.id, True)  # while the turn goes on
        gate.set()
        await pass_time(5)
        await until(loop, lambda: loop.questions != ())
        later: tuple[Question, ...] = loop.questions
        assert [(each.id, each.payload) for each in later] == [(question.id, "pay for a castle?")]
        await pass_time(10)
        assert done == ["tea"]
        loop.stop(SafePoint.NOW)


async def asked(loop: TurnLoop[str]) -> Run[Any, Any]:  # Any: of any agent
    """The run that waits for a person."""
    await until(loop, lambda: loop.questions != ())
    seen = loop.view.turn
    assert seen is not None
    assert seen.run is not None
    return seen.run


CANCELS = [("alone", "run"), ("alone", "thread"), ("session", "run"), ("session", "thread"), ("session", "session")]


@pytest.mark.parametrize(("kept", "by"), CANCELS)
@virtual
async def test_a_cancel_of_a_turn_that_waits_ends_it_and_the_loop_goes_on(kept: str, by: str) -> None:
    store, sessions = MemoryTurnStore(), MemoryStore()
    session = await Session.create(sessions, "s") if kept == "session" else None

    def plan(ctx: PlanContext[str], items: list[str]) -> Plan[str]:
        history = () if session is not None else ctx.history
        return Plan(items[0], items[:1], session=session, history=history, keep_rest=True)

    agent = asker("second turn")
    async with TurnLoop(agent, plan=plan, on_interrupt="wait", store=store, **KEY) as loop:
        first, second = loop.push("first"), loop.push("second")
        run = await asked(loop)
        (question,) = loop.questions
        receipts: list[Receipt] = []
        if by == "session":
            assert session is not None
            receipts.append(session.cancel(reason="no more"))
        elif by == "run":
            receipts.append(run.cancel(reason="no more"))
        else:
            in_a_thread(lambda: receipts.append(run.cancel(reason="no more")))
        assert await receipts[0].wait() == "stopped"
        result = await first.result()
        assert not isinstance(result, str)
        assert (result, result.stop_reason) == (run.result, "interrupted")
        assert loop.questions == ()
        with pytest.raises(UsageError, match="no turn waits"):
            loop.answer(question.id, "yes")
        assert not isinstance(await second.result(), str)
    exit = await loop.wait()
    assert (exit.reason, exit.interrupted, exit.unhandled, exit.failed) == ("clean", [], [], [])
    said = list(model(agent).requests[1].messages)
    check_history(said)
    assert "they said" not in str(said)
    assert "This run was stopped before it was done" in str(said)
    assert "no more" in str(said)


@pytest.mark.parametrize("kept", ["alone", "session"])
@virtual
async def test_a_turn_that_was_cancelled_after_the_loop_had_ended_is_over_for_the_next_one(kept: str) -> None:
    store, sessions, waited = MemoryTurnStore(), MemoryStore(), list[Run[Any, Any]]()  # Any: of any agent
    session = await Session.create(sessions, "s") if kept == "session" else None

    def plan(ctx: PlanContext[str], items: list[str]) -> Plan[str]:
        history = () if session is not None else ctx.history
        return Plan(items[0], items[:1], session=session, history=history, keep_rest=True)

    async def watch(turn: Turn[str], events: AsyncIterator[Event]) -> None:
        waited.append(turn.run)

    agent = asker("second turn")
    loop = TurnLoop(agent, plan=plan, on_events=watch, store=store, **KEY)
    loop.push("first")
    loop.start()
    assert (await loop.wait()).reason == "interrupted"
    (question,) = loop.questions
    assert await waited[0].cancel(reason="no more").wait() == "stopped"
    loop = TurnLoop(agent, plan=plan, on_interrupt="wait", store=store, **KEY)
    loop.answer(question.id, "yes")  # from before the cancel was known
    async with loop:
        assert not isinstance(await loop.push("second").result(), str)
    exit = await loop.wait()
    assert (exit.reason, exit.interrupted, exit.failed) == ("clean", [], [])
    said = list(model(agent).requests[1].messages)
    assert "they said" not in str(said)
    assert "no more" in str(said)
    check_history(said)


@virtual
async def test_a_turn_that_came_back_to_wait_is_cancelled_by_its_session() -> None:
    store, session = MemoryTurnStore(), await Session.create(MemoryStore(), "s")

    def plan(ctx: PlanContext[str], items: list[str]) -> Plan[str]:
        return Plan(items[0], items[:1], session=session, keep_rest=True)

    agent = asker("second turn")
    loop = TurnLoop(agent, plan=plan, store=store, **KEY)
    loop.push("first")
    loop.start()
    await loop.wait()
    async with TurnLoop(agent, plan=plan, store=store, on_interrupt="wait", **KEY) as loop:
        await until(loop, lambda: loop.questions != ())
        assert await session.cancel(reason="no more").wait() == "stopped"
        assert not isinstance(await loop.push("second").result(), str)
    assert (await loop.wait()).interrupted == []
    assert "no more" in str(model(agent).requests[1].messages)


@pytest.mark.parametrize("first", ["cancel", "stop", "answer", "preempt"])
@virtual
async def test_a_cancel_that_meets_another_end_of_the_waiting_loses_and_repeats_nothing(first: str) -> None:
    agent, store = asker("thanks", "more"), MemoryTurnStore()
    async with TurnLoop(agent, on_interrupt="wait", store=store, **KEY) as loop:
        item = loop.push("first")
        run = await asked(loop)
        (question,) = loop.questions
        meets: dict[str, Callable[[], object]] = {
            "cancel": lambda: None,
            "stop": lambda: loop.stop(SafePoint.NOW),
            "answer": lambda: loop.answer(question.id, "yes"),
            "preempt": lambda: loop.push("urgent", preempt=SafePoint.ANY),
        }
        meets[first]()
        receipt = run.cancel()  # in the same step, before the loop has heard of the first
        assert await receipt.wait() == "stopped"
        told = await item.result()
    exit = await loop.wait()
    assert exit.error is None
    assert exit.interrupted == exit.failed == exit.unhandled == []
    assert (told == "preempted") == (first == "preempt")
    assert "they said" not in str([request.messages for request in model(agent).requests])


@virtual
async def test_an_answer_that_nobody_waits_for_is_refused() -> None:
    async with TurnLoop(asker()) as loop:
        with pytest.raises(UsageError, match="no turn waits"):
            loop.answer("x", "yes")


def model(agent: Agent) -> ScriptedModel:
    found = agent.models[0]
    assert isinstance(found, ScriptedModel)
    return found

"""A message is in the conversation once: after a requeue, a resume, a restart, and the death of a process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from safepoint import Agent, Budget, SafePoint, Text, ToolContext, TurnLoop, tool
from safepoint.history.parts import Message
from safepoint.sessions import MemoryStore, Session
from safepoint.testing import ScriptedModel, call, pass_time, say, stall
from safepoint.turns import MemoryTurnStore, Plan, PlanContext, ResumePlan, Turn
from tests.turns.parts import Gate, TroubledStore, copy_of, until
from tests.virtual import virtual

KEY: dict[str, Any] = {"checkpoint_id": "loop"}


def model(agent: Agent) -> ScriptedModel:
    found = agent.models[0]
    assert isinstance(found, ScriptedModel)
    return found


def said(messages: Sequence[Message]) -> str:
    return " | ".join(message.text for message in messages if message.role == "user")


def one_at_a_time(session: Session) -> Callable[[PlanContext[str], list[str]], Plan[str]]:
    return lambda ctx, items: Plan(items[0], items[:1], session=session, keep_rest=True)


def all_together(session: Session) -> Callable[[PlanContext[str], list[str]], Plan[str]]:
    return lambda ctx, items: Plan(" ".join(items), items, session=session)


def urgent_first(session: Session) -> Callable[[PlanContext[str], list[str]], Plan[str]]:
    def plan(ctx: PlanContext[str], items: list[str]) -> Plan[str]:
        first = "urgent" if "urgent" in items else items[0]
        return Plan(first, [first], session=session, keep_rest=True)

    return plan


@pytest.mark.parametrize(
    ("planner", "expected"),
    [(one_at_a_time, "routine | urgent"), (all_together, "routine urgent"), (urgent_first, "urgent | routine")],
)
def test_a_requeued_message_is_in_the_session_once(planner: Callable[[Session], Any], expected: str) -> None:
    @virtual
    async def body() -> None:
        session, gate = await Session.create(MemoryStore()), Gate()
        agent = gate.agent(say("one"), say("two"), say("three"))
        async with TurnLoop(agent, plan=planner(session), carry="requeue") as loop:
            loop.push("routine")
            await gate.reached.wait()
            loop.push("urgent", preempt=SafePoint.ANY)
            gate.opened.set()
        found = said(session.messages)
        assert (found.count("routine"), found.count("urgent")) == (1, 1)
        assert found.endswith(expected)
        effect_is_known = "gate" in str(session.messages)  # what the first try has done is in the conversation
        assert effect_is_known

    body()


@virtual
async def test_a_requeued_message_of_the_simple_loop_is_not_said_again_and_its_turn_goes_on() -> None:
    gate = Gate()
    agent = gate.agent(say("both are done"))
    async with TurnLoop(agent, carry="requeue") as loop:
        routine = loop.push("routine")
        await gate.reached.wait()
        urgent = loop.push("urgent", preempt=SafePoint.AFTER_TOOLS)
        gate.opened.set()
    assert await routine.result() is await urgent.result()
    assert said(model(agent).requests[1].messages) == "routine | urgent"
    assert model(agent).calls == 2  # the gate was passed once


@virtual
async def test_a_requeued_turn_that_goes_on_does_not_repeat_its_effects() -> None:
    done: list[str] = []
    session = await Session.create(MemoryStore())
    gate = Gate()

    @tool
    async def pay() -> str:
        """Pay once."""
        done.append("paid")
        return "paid"

    replies: list[Any] = [call("pay"), call("gate"), say("routine is done"), say("urgent is done")]
    agent = Agent("payer", model=ScriptedModel(*replies), tools=[pay, gate.tool])
    async with TurnLoop(agent, plan=one_at_a_time(session), carry="requeue") as loop:
        loop.push("routine")
        await gate.reached.wait()
        loop.push("urgent", preempt=SafePoint.ANY)
        gate.opened.set()
    assert done == ["paid"]
    assert said(session.messages) == "routine | urgent"


# -- a resumed turn has the options of its plan ----------------------------------------------------------------------


@virtual
async def test_a_resumed_turn_has_the_session_deps_budget_and_metadata_of_its_plan() -> None:
    session, store, gate = await Session.create(MemoryStore()), MemoryTurnStore(), Gate()
    deps: list[str] = []
    turns: list[Turn[str]] = []

    @tool
    async def note(ctx: ToolContext[str]) -> str:
        """Note for whom."""
        deps.append(ctx.deps)
        return "noted"

    def plan(ctx: PlanContext[str], items: list[str]) -> Plan[str]:
        options: dict[str, Any] = {"session": session, "deps": "Ann", "metadata": {"for": "Ann"}}
        return Plan(items[0], items[:1], keep_rest=True, budget=Budget(steps=3), **options)

    def agent(*replies: Any) -> Agent[Any]:
        return Agent("desk", model=ScriptedModel(*replies), tools=[gate.tool, note])

    loop = TurnLoop(agent(call("gate")), plan=plan, store=store, **KEY)
    loop.start()
    loop.push("first")
    await gate.reached.wait()
    loop.stop(SafePoint.ANY)
    gate.opened.set()
    assert (await loop.wait()).interrupted == ["first"]
    resumed = agent(call("note"), call("note"), say("never said"))
    async with TurnLoop(resumed, plan=plan, store=store, on_events=lambda turn, events: turns.append(turn), **KEY):
        pass
    assert (deps, turns[0].metadata) == (["Ann", "Ann"], {"for": "Ann"})
    assert turns[0].result.stop_reason == "max_steps"  # one step before the stop and two after it
    assert said(session.messages) == "first"
    assert turns[0].run.session is session


@virtual
async def test_a_plan_for_a_stopped_turn_may_leave_options_to_the_plan_or_say_otherwise() -> None:
    store, gate = MemoryTurnStore(), Gate()
    deps: list[Any] = []

    def plan(ctx: PlanContext[str], items: list[str]) -> Plan[str]:
        return Plan(items[0], items[:1], keep_rest=True, deps="planned", metadata={"by": "plan"})

    async def resumed_with(**options: Any) -> Turn[str]:
        turns: list[Turn[str]] = []
        loop = TurnLoop(gate.agent(), plan=plan, store=store, **KEY)
        loop.start()
        loop.push("first")
        await gate.reached.wait()
        loop.stop(SafePoint.NOW)
        await loop.wait()
        gate.reached.clear()

        def plan_resume(
            ctx: PlanContext[str], interrupted: list[str], unhandled: list[str], new: list[str]
        ) -> ResumePlan[str]:
            return ResumePlan(interrupted, [*unhandled, *new], **options)

        agent = Agent("desk", model=ScriptedModel(say("done")), tools=[gate.tool])

        def watch(turn: Turn[str], events: object) -> None:
            turns.append(turn)

        async with TurnLoop(agent, plan=plan, plan_resume=plan_resume, on_events=watch, store=store, **KEY):
            pass
        return turns[0]

    deps = [(turn.run.deps, turn.metadata) for turn in [await resumed_with(), await resumed_with(deps=None)]]
    assert deps == [("planned", {"by": "plan"}), (None, {"by": "plan"})]


@virtual
async def test_a_plan_may_resume_the_checkpoint_of_its_session() -> None:
    session, reached = await Session.create(MemoryStore()), asyncio.Event()
    stuck = Agent("desk", model=ScriptedModel(stall(on_reached=reached.set)))
    async with stuck.start("a long task", session=session) as run:
        await reached.wait()
        run.cancel()
    assert session.checkpoint is not None
    agent = Agent("desk", model=ScriptedModel(say("done"), say("and this")))

    def plan(ctx: PlanContext[str], items: list[str]) -> Plan[str] | ResumePlan[str]:
        if session.checkpoint is not None and items[0] == "go on":
            return ResumePlan(items[:1], keep_rest=True, checkpoint=session.checkpoint, session=session)
        return Plan(items[0], items[:1], keep_rest=True, session=session)

    async with TurnLoop(agent, plan=plan, store=MemoryTurnStore(), **KEY) as loop:
        loop.push("go on")
        loop.push("another")
    assert said(session.messages) == "a long task | another"


@virtual
async def test_a_resumption_without_a_checkpoint_ends_the_loop_and_loses_nothing() -> None:
    agent = Agent("desk", model=ScriptedModel(say("never")))
    loop: TurnLoop[str] = TurnLoop(agent, plan=lambda ctx, items: ResumePlan(items[:1], keep_rest=True))
    loop.push("first")
    loop.start()
    exit = await loop.wait()
    assert isinstance(exit.error, TypeError)
    assert "checkpoint=session.checkpoint" in str(exit.error)
    assert exit.unhandled == ["first"]


# -- processes that die ----------------------------------------------------------------------------------------------


class Dead(Exception):
    """The process has died here."""


async def died_at_write(number: int, *, push: Sequence[str]) -> tuple[TroubledStore, MemoryStore]:
    """A loop in a session whose process dies at the n-th write of either store; what both have then."""
    sessions, store, gate = MemoryStore(), TroubledStore(), Gate()
    gate.opened.set()
    session = await Session.create(sessions, "s")
    left: list[tuple[TroubledStore, MemoryStore]] = []
    writes = 0

    def count() -> None:
        nonlocal writes
        writes += 1
        if writes == number and not left:
            left.append((store.copy(), copy_of(sessions)))

    class Counted(MemoryStore):
        async def append(self, session_id: str, epoch: int, changes: Any) -> None:
            count()
            await sessions.append(session_id, epoch, changes)

    counted = Counted()
    counted.storage = sessions.storage
    real, apply = store, store.apply

    async def counting(id: str, epoch: int, changes: Any) -> None:
        count()
        await apply(id, epoch, changes)

    real.apply = counting  # type: ignore[method-assign]  # pyright: ignore[reportAttributeAccessIssue]  # this one store counts
    session = await Session.load(counted, "s")
    agent = Agent("desk", model=ScriptedModel(call("gate"), say("ok"), repeat=True), tools=[gate.tool])
    async with TurnLoop(agent, plan=one_at_a_time(session), store=real, **KEY) as loop:
        for item in push:
            await loop.push(item).saved()
    return left[0] if left else (store.copy(), sessions)


@pytest.mark.parametrize("number", range(1, 22))
def test_wherever_a_process_dies_every_saved_message_is_said_once(number: int) -> None:
    @virtual
    async def body() -> None:
        store, sessions = await died_at_write(number, push=["first", "second"])
        known = store.peek("loop")
        saved = {item.text for item in known.items} if known is not None else set[str]()
        before = said((await sessions.load("s")).messages)
        session = await Session.load(sessions, "s")
        gate = Gate()
        gate.opened.set()
        agent = Agent("desk", model=ScriptedModel(say("ok"), repeat=True), tools=[gate.tool])
        async with TurnLoop(agent, plan=one_at_a_time(session), store=store, **KEY):
            pass
        found = said(session.messages)
        for item in ("first", "second"):
            assert found.count(item) == (f'"{item}"' in saved or item in before), found

    body()


@virtual
async def test_an_item_that_was_about_to_join_when_the_process_died_is_said_once() -> None:
    """The message may be in the session or not; the record says that it was about to be."""
    for after_joining in (False, True):
        sessions, store, gate = MemoryStore(), TroubledStore(), Gate()
        session = await Session.create(sessions, "s")
        agent = gate.agent(call("gate"), say("done"))
        loop = TurnLoop(agent, plan=one_at_a_time(session), store=store, **KEY)
        loop.start()
        loop.push("first")
        await gate.reached.wait()
        receipt = loop.push("second", join=True)
        await receipt.saved()
        if after_joining:
            gate.reached.clear()
            gate.opened.set()
            await gate.reached.wait()
        left, other = store.copy(), copy_of(sessions)
        loop.stop(SafePoint.NOW)
        await loop.wait()
        again = await Session.load(other, "s")
        resumed = Agent("desk", model=ScriptedModel(say("done"), repeat=True), tools=[gate.tool])
        async with TurnLoop(resumed, plan=one_at_a_time(again), store=left, **KEY):
            pass
        parts = [part for message in again.messages if message.role == "user" for part in message.parts]
        assert sorted(part.text for part in parts if isinstance(part, Text)) == ["first", "second"]
        await pass_time(1)


@virtual
async def test_a_turn_that_was_resumed_when_the_process_died_goes_on_from_where_it_came_to() -> None:
    sessions, store, gate = MemoryStore(), TroubledStore(), Gate()
    done: list[int] = []

    @tool
    async def step() -> int:
        """One step."""
        done.append(len(done))
        return len(done)

    def agent(*replies: Any) -> Agent:
        return Agent("desk", model=ScriptedModel(*replies), tools=[step, gate.tool])

    session = await Session.create(sessions, "s")
    loop = TurnLoop(agent(call("step"), call("gate")), plan=one_at_a_time(session), store=store, **KEY)
    loop.start()
    loop.push("first")
    await gate.reached.wait()
    loop.stop(SafePoint.NOW)
    await loop.wait()
    gate.reached.clear()
    loop = TurnLoop(agent(call("step"), call("gate")), plan=one_at_a_time(session), store=store, **KEY)
    loop.start()
    await gate.reached.wait()
    left, other = store.copy(), copy_of(sessions)
    loop.stop(SafePoint.NOW)
    await loop.wait()
    again = await Session.load(other, "s")
    last = agent(say("done"))
    async with TurnLoop(last, plan=one_at_a_time(again), store=left, **KEY) as loop:
        pass
    assert (await loop.wait()).error is None
    assert (said(again.messages), done) == ("first", [0, 1])
    await until_over(loop)


async def until_over(loop: TurnLoop[str]) -> None:
    if not loop.ended:
        await until(loop, lambda: loop.ended)

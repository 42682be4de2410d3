"""A late result exists only if the call really returned a value after it was cut."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest

from safepoint import Agent, Ladder, RunResult, SafePoint, ToolContext, check_history, tool
from safepoint._core.clock import current_clock
from safepoint._core.orphans import Orphan
from safepoint.errors import StopTool
from safepoint.sessions import LateResult, Session, Store
from safepoint.sessions.late_results import late_result
from safepoint.testing import ScriptedModel, call, pass_time, run_virtual, say
from safepoint.tools.base import BaseTool
from tests.sessions.stores import both_stores, opened
from tests.virtual import rounds

LADDER = Ladder(task=0.1, kill=0.1, cap=0.2)
Body = Callable[[asyncio.Event], Coroutine[Any, Any, Any]]  # Any: whatever a tool returns


async def outlasts(gate: asyncio.Event) -> None:
    """Swallow every cancellation until the gate opens."""
    while not gate.is_set():
        with suppress(asyncio.CancelledError):
            await gate.wait()


async def is_cancelled(gate: asyncio.Event) -> str:
    await outlasts(gate)
    raise asyncio.CancelledError


async def cleans_up_and_is_cancelled(gate: asyncio.Event) -> str:
    try:
        await asyncio.get_running_loop().create_future()
    finally:
        await outlasts(gate)
    return "paid"


async def raises(gate: asyncio.Event) -> str:
    await outlasts(gate)
    raise ValueError("no money")


async def leaves_at_its_check(gate: asyncio.Event) -> str:
    await outlasts(gate)
    raise StopTool


async def returns(gate: asyncio.Event) -> str:
    await outlasts(gate)
    return "paid"


async def returns_nothing(gate: asyncio.Event) -> None:
    await outlasts(gate)


NO_RESULT: dict[str, Body] = {
    each.__name__: each for each in (is_cancelled, cleans_up_and_is_cancelled, raises, leaves_at_its_check)
}
RESULT: dict[str, tuple[Body, str]] = {
    "returns": (returns, "paid"),
    "returns_nothing": (returns_nothing, "done, no result"),
}


def payer(body: Body, gate: asyncio.Event, inside: asyncio.Event) -> BaseTool:
    @tool
    async def pay(ctx: ToolContext) -> Any:  # Any: as above
        """Pay."""
        inside.set()
        return await body(gate)

    return pay


async def left_behind(store: Store, body: Body, at: SafePoint) -> tuple[Session, Agent]:
    """A session whose run was stopped while it paid, and the call has ended since."""
    session = await Session.create(store, "s")
    gate, inside = asyncio.Event(), asyncio.Event()
    model = ScriptedModel(call("pay"), say("fine"), say("fine"))
    agent = Agent("a", model=model, tools=[payer(body, gate, inside)], ladder=LADDER)
    async with agent.start("go", session=session) as run:
        await inside.wait()
        run.cancel(at)
    (entry,) = run.result.ledger
    (orphan,) = run.result.orphans
    assert (entry.state, entry.still_running, orphan.still_running) == ("cut", True, True)
    gate.set()
    await rounds(50)  # until what it brought is stored
    assert not orphan.still_running
    return session, agent


async def resumed(session: Session, agent: Agent) -> tuple[str, str | None]:
    assert session.checkpoint is not None
    result = await agent.resume(session.checkpoint, session=session)
    check_history(result.messages)
    return str(result.ledger[0].state), result.ledger[0].content


@both_stores
@pytest.mark.parametrize("at", [SafePoint.NOW, SafePoint.FORCE], ids=repr)
@pytest.mark.parametrize("name", NO_RESULT)
def test_a_cut_call_that_ends_without_a_value_has_no_late_result(
    name: str, at: SafePoint, kind: str, tmp_path: Path
) -> None:
    async def main() -> None:
        async with opened(kind, tmp_path) as store:
            session, agent = await left_behind(store, NO_RESULT[name], at)
            assert session.late == (await store.load("s")).late == ()
            assert await resumed(session, agent) == ("cut", None), "its outcome is still not known"

    run_virtual(main)


@both_stores
@pytest.mark.parametrize("at", [SafePoint.NOW, SafePoint.FORCE], ids=repr)
@pytest.mark.parametrize("name", RESULT)
def test_a_cut_call_that_returns_after_all_has_one(name: str, at: SafePoint, kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        body, content = RESULT[name]
        async with opened(kind, tmp_path) as store:
            session, agent = await left_behind(store, body, at)
            while not (await store.load("s")).late:  # noqa: ASYNC110  # the store has no event to wait for
                await asyncio.sleep(0)
            assert session.late == (await store.load("s")).late == (LateResult("call_1_1", "pay", content),)
            assert await resumed(session, agent) == ("finished_late", content)

    run_virtual(main)


@pytest.mark.parametrize("at", [SafePoint.NOW, SafePoint.FORCE], ids=repr)
def test_a_cut_effect_that_never_happened_is_not_recorded_as_done(at: SafePoint) -> None:
    paid: list[int] = []

    @tool
    async def pay() -> None:
        """Pay, and tidy up."""
        inside.set()
        try:
            await pass_time(3600)
            paid.append(1)
        finally:
            await asyncio.sleep(0)

    inside = asyncio.Event()

    async def main() -> None:
        async with opened("memory", Path()) as store:
            session = await Session.create(store, "s")
            agent = Agent("a", model=ScriptedModel(call("pay"), say("fine")), tools=[pay])
            async with agent.start("go", session=session) as run:
                await inside.wait()
                run.cancel(at)
            (entry,) = run.result.ledger
            assert (entry.state, entry.still_running, run.result.orphans) == ("cut", False, ())
            await rounds(50)
            assert session.late == ()
            assert (await resumed(session, agent))[0] == "cut"
            assert paid == []

    run_virtual(main)


def test_an_abandoned_sub_agent_that_stops_later_has_no_late_result() -> None:
    @tool
    async def work() -> None:
        """Tidy up for longer than the boss waits."""
        inside.set()
        try:
            await pass_time(3600)
        finally:
            await pass_time(0.5)

    inside = asyncio.Event()

    async def main() -> None:
        async with opened("memory", Path()) as store:
            session = await Session.create(store, "s")
            helper = Agent("helper", model=ScriptedModel(call("work")), tools=[work])
            boss = Agent(
                "boss", model=ScriptedModel(call("helper", input="x")), tools=[helper.as_tool()], ladder=LADDER
            )
            async with boss.start("go", session=session) as run:
                await inside.wait()
                run.cancel()
            (orphan,) = run.result.orphans
            await pass_time(5)
            assert orphan.returned
            assert cast("RunResult[str]", orphan.result).stop_reason == "cancelled"
            await rounds(50)
            assert session.late == (await store.load("s")).late == ()
            assert session.checkpoint is not None
            assert [str(entry.state) for entry in session.checkpoint.ledger] == ["cut"]

    run_virtual(main)


def test_of_a_sub_agent_that_answered_late_the_answer_is_told_and_nothing_else() -> None:
    async def main() -> None:
        task = asyncio.ensure_future(rounds(0))
        result = await Agent("helper", model=ScriptedModel(say("the answer"))).run("go")
        orphan = Orphan("helper", "boss/helper:call_1", clock=current_clock(), task=task)
        assert late_result(orphan, {}) is None, "it still runs"
        orphan.returned_late(result)
        assert late_result(orphan, {}) == LateResult("call_1", "helper", "the answer")
        await task

    run_virtual(main)

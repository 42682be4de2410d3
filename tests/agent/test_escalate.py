"""A Stop button pressed again pushes harder: safe point, NOW, FORCE; and every press has its receipt."""

from __future__ import annotations

import pytest

from safepoint import Agent, Run, SafePoint, tool
from safepoint._core.asks import FIRST_PRESS
from safepoint.testing import ScriptedModel, call, say
from tests.agent.workshop import Gate
from tests.core.piece import for_ever, stubborn
from tests.virtual import passes, rounds, virtual


def held(run: Run[None]) -> SafePoint:
    request = run.node.request()
    assert request is not None
    return request.at


@tool(grace=5)
async def slow() -> None:
    """Clean up for ever."""
    await stubborn(60)()


@virtual
async def test_each_press_is_a_level_harder_than_the_one_before() -> None:
    async with Agent("a", model=ScriptedModel(call("slow")), tools=[slow]).start("go") as run:
        await passes(1)
        first = run.cancel(escalate=True)
        assert held(run) == FIRST_PRESS == SafePoint.AFTER_TOOL | SafePoint.AFTER_MODEL
        await passes(1)
        second = run.cancel(escalate=True)
        assert held(run) == SafePoint.NOW
        await passes(1)
        third = run.cancel(escalate=True)
        assert held(run) == SafePoint.FORCE
        assert [await each.wait() for each in (first, second, third)] == ["stopped"] * 3
    assert [orphan.name for orphan in run.result.orphans] == ["slow"]
    await passes(60)


@virtual
async def test_presses_within_300_ms_count_once() -> None:
    async with Agent("a", model=ScriptedModel(call("slow")), tools=[slow]).start("go") as run:
        await passes(1)
        for _ in range(3):
            run.cancel(escalate=True)
            await passes(0.09)
        assert held(run) == FIRST_PRESS
        await passes(0.3)
        for _ in range(3):
            run.cancel(escalate=True)
            await passes(0.09)
        assert held(run) == SafePoint.NOW
        run.cancel(SafePoint.FORCE)
    await passes(60)


@virtual
async def test_a_press_after_a_plain_cancel_climbs_from_there() -> None:
    gate = Gate("gate")
    async with Agent("a", model=ScriptedModel(call("gate")), tools=[gate.tool]).start("go") as run:
        await gate.started.wait()
        run.cancel(SafePoint.AFTER_TOOLS)
        assert await run.cancel(escalate=True).wait() == "stopped"
    assert run.result.cancellation is not None
    assert run.result.cancellation.place == "now"


@virtual
async def test_plain_cancels_stay_as_hard_as_they_are_however_often_they_come() -> None:
    async with Agent("a", model=ScriptedModel(call("slow")), tools=[slow]).start("go") as run:
        await passes(1)
        for _ in range(5):
            run.cancel()
            await passes(0.5)
        assert held(run) == SafePoint.NOW
        run.cancel(SafePoint.FORCE)
    await passes(60)


@virtual
async def test_a_press_that_was_withdrawn_leaves_nothing_to_climb_from() -> None:
    gate = Gate("gate")
    async with Agent("a", model=ScriptedModel(call("gate"), say("done")), tools=[gate.tool]).start("go") as run:
        await gate.started.wait()
        assert run.cancel(escalate=True).withdraw()
        await rounds(3)
        run.cancel(escalate=True).withdraw()
        gate.gate.set()
    assert run.result.stop_reason == "end_turn"


@virtual
async def test_a_press_after_the_end_tells_so() -> None:
    async with Agent("a", model=ScriptedModel(say("done"))).start("go") as run:
        await run.wait()
        assert await run.cancel(escalate=True).wait() == "finished_first"


@virtual
async def test_a_press_with_a_place_or_a_deadline_is_refused() -> None:
    async with Agent("a", model=ScriptedModel(call("wait")), tools=[tool(name="wait")(for_ever)]).start("go") as run:
        for at in (SafePoint.NOW, SafePoint.ANY):
            with pytest.raises(ValueError, match="leave at and within out"):
                run.cancel(at, escalate=True)
        with pytest.raises(ValueError, match="leave at and within out"):
            run.cancel(within=3, escalate=True)
        assert run.node.request() is None
        run.cancel()

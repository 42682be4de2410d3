"""Stopping: every row of the table, in every combination that matters, and what the exit state says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

import pytest

from safepoint import Agent, SafePoint, TurnLoop
from safepoint.agent.event_hub import EventReader
from safepoint.errors import UsageError
from safepoint.testing import ScriptedModel, pass_time, say, stall
from safepoint.turns import Plan, PlanContext, Turn
from tests.turns.parts import Gate, in_a_thread, talker
from tests.virtual import now, virtual


def stuck(reached: asyncio.Event) -> Agent:
    return Agent("stuck", model=ScriptedModel(stall(on_reached=reached.set), say("next"), repeat=True))


@virtual
async def test_a_bare_stop_lets_the_turn_finish_and_is_clean() -> None:
    gate = Gate()
    async with TurnLoop(gate.agent()) as loop:
        loop.push("first")
        await gate.reached.wait()
        loop.push("second")
        receipt = loop.stop(cause="closing time")
        gate.opened.set()
    exit = await loop.wait()
    assert (exit.reason, exit.unhandled, exit.interrupted) == ("clean", ["second"], [])
    assert (exit.cause, receipt.outcome) == ("closing time", "clean")


@virtual
async def test_a_graceful_stop_stops_the_turn_at_a_safe_point() -> None:
    gate = Gate()
    turns: list[Turn[str]] = []

    async def on_events(turn: Turn[str], events: EventReader) -> None:
        turns.append(turn)
        async for _ in events:
            assert turn.run.ended or turn.cause is None

    async with TurnLoop(gate.agent(), on_events=on_events) as loop:
        loop.push("first")
        await gate.reached.wait()
        receipt = loop.stop(SafePoint.ANY, cause="deploy")
        assert turns[0].cause is None
        assert not turns[0].stopped
        gate.opened.set()
    exit = await loop.wait()
    assert (exit.reason, exit.interrupted) == ("cancelled", ["first"])
    assert receipt.outcome == "stopped"
    assert turns[0].stopped
    assert not turns[0].preempted
    assert turns[0].cause == "deploy"


@virtual
async def test_a_graceful_stop_that_the_turn_outruns_is_clean() -> None:
    gate = Gate()
    async with TurnLoop(gate.agent()) as loop:
        loop.push("first")
        await gate.reached.wait()
        receipt = loop.stop(SafePoint.named("never"))
        gate.opened.set()
    exit = await loop.wait()
    assert (exit.reason, exit.interrupted) == ("clean", [])
    assert receipt.outcome == "finished_first"


@virtual
async def test_a_stop_with_a_limit_becomes_now() -> None:
    reached = asyncio.Event()
    async with TurnLoop(stuck(reached)) as loop:
        loop.push("first")
        await reached.wait()
        begun = now()
        receipt = loop.stop(SafePoint.ANY, within=3)
        assert await receipt.wait() == "escalated"
        assert now() - begun == 3
    assert (await loop.wait()).interrupted == ["first"]


@virtual
async def test_now_and_force_cut_the_turn() -> None:
    for at in (SafePoint.NOW, SafePoint.FORCE):
        reached = asyncio.Event()
        async with TurnLoop(stuck(reached)) as loop:
            loop.push("first")
            await reached.wait()
            assert await loop.stop(at).wait() == "stopped"
        exit = await loop.wait()
        assert (exit.reason, exit.interrupted) == ("cancelled", ["first"])


@virtual
async def test_a_later_stop_makes_it_stronger_and_a_bare_one_takes_nothing_back() -> None:
    reached = asyncio.Event()
    async with TurnLoop(stuck(reached)) as loop:
        loop.push("first")
        await reached.wait()
        receipts = [
            loop.stop(SafePoint.ANY, within=10),
            loop.stop(),
            in_a_thread(lambda: loop.stop(SafePoint.ANY, within=2)),
            loop.stop(SafePoint.AFTER_TOOLS),
        ]
        begun = now()
        assert [await receipt.wait() for receipt in receipts] == ["escalated"] * 4
        assert now() - begun == 2
    assert loop.stop(SafePoint.NOW).outcome == "finished_first"


@virtual
async def test_a_stop_before_the_start_ends_the_loop_at_once() -> None:
    loop = TurnLoop(talker())
    loop.push("never")
    receipt = loop.stop(SafePoint.NOW, cause="not today")
    loop.start()
    loop.start()
    exit = await loop.wait()
    assert (exit.reason, exit.unhandled, exit.cause) == ("clean", ["never"], "not today")
    assert receipt.outcome == "clean"


@virtual
async def test_the_first_cause_that_is_not_empty_wins() -> None:
    loop = TurnLoop(talker())
    for cause in (None, "", "first", "second"):
        loop.stop(cause=cause)
    async with loop:
        pass
    assert (await loop.wait()).cause == "first"


@virtual
async def test_a_stop_while_planning_puts_the_items_back() -> None:
    planning = asyncio.Event()

    async def plan(ctx: PlanContext[str], items: list[str]) -> Plan[str]:
        planning.set()
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    async with TurnLoop(talker(), plan=plan) as loop:
        loop.push("first")
        await planning.wait()
        loop.push("second")
        receipt = loop.stop(SafePoint.ANY, within=4)
        begun = now()
        await receipt.wait()
        assert now() - begun == 4
    exit = await loop.wait()
    assert (exit.reason, exit.unhandled, receipt.outcome) == ("clean", ["first", "second"], "clean")


@virtual
async def test_a_callback_that_goes_on_after_now_gets_a_moment_and_no_longer() -> None:
    reached = asyncio.Event()
    cut: list[float] = []

    async def on_events(turn: Turn[str], events: EventReader) -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.get_running_loop().create_future()
        cut.append(now())

    async with TurnLoop(stuck(reached), on_events=on_events) as loop:
        loop.push("first")
        await reached.wait()
        begun = now()
        await loop.stop(SafePoint.NOW).wait()
    assert cut == [begun + 1]


# -- until idle ------------------------------------------------------------------------------------------------------


@virtual
async def test_a_stop_until_idle_waits_for_a_break_in_the_work() -> None:
    agent = talker()
    async with TurnLoop(agent) as loop:
        loop.push("first")
        receipt = loop.stop(idle_for=5)
        begun = now()
        await pass_time(4)
        assert loop.push("second").accepted
        await pass_time(4)
        assert not loop.ended
        assert await receipt.wait() == "clean"
        assert now() - begun == 9
    assert (await loop.wait()).unhandled == []


@virtual
async def test_the_time_spent_in_a_turn_is_not_idle() -> None:
    gate = Gate()
    async with TurnLoop(gate.agent()) as loop:
        loop.push("first")
        await gate.reached.wait()
        receipt = loop.stop(idle_for=1)
        await pass_time(50)
        assert not loop.ended
        gate.opened.set()
        begun = now()
        await receipt.wait()
        assert now() - begun == 1


@virtual
async def test_any_other_stop_overrides_one_that_waits_for_idleness() -> None:
    async with TurnLoop(talker()) as loop:
        waiting = loop.stop(idle_for=100)
        await pass_time(1)
        begun = now()
        assert await loop.stop().wait() == "clean"
        assert now() == begun
    assert waiting.outcome == "clean"


@virtual
async def test_idleness_counts_from_the_ask() -> None:
    async with TurnLoop(talker()) as loop:
        await pass_time(60)
        begun = now()
        await loop.stop(idle_for=2).wait()
        assert now() - begun == 2


WRONG: list[tuple[str, Callable[[TurnLoop[str]], object]]] = [
    ("idle_for=0", lambda loop: loop.stop(idle_for=0)),
    ("idle_for=-1", lambda loop: loop.stop(idle_for=-1)),
    ("idle_for leaves", lambda loop: loop.stop(SafePoint.NOW, idle_for=1)),
    ("idle_for leaves", lambda loop: loop.stop(within=1, idle_for=1)),
    ("within=1 without", lambda loop: loop.stop(within=1)),
    ("within=0", lambda loop: loop.stop(SafePoint.ANY, within=0)),
    ("immediate already", lambda loop: loop.stop(SafePoint.NOW, within=1)),
    ("cause=3", lambda loop: loop.stop(cause=3)),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # untyped callers
    ("not a safe point", lambda loop: loop.stop("now")),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # untyped callers
]


@pytest.mark.parametrize(("said", "wrong"), WRONG)
def test_a_contradiction_is_refused_and_nothing_is_stopped(said: str, wrong: Callable[[TurnLoop[str]], object]) -> None:
    loop = TurnLoop(talker())
    with pytest.raises(ValueError, match=said):
        wrong(loop)
    assert loop.push("still accepted").accepted


# -- the block, the caller, the threads ------------------------------------------------------------------------------


@virtual
async def test_leaving_the_block_stops_after_the_turn_if_nobody_has_stopped() -> None:
    gate = Gate()
    async with TurnLoop(gate.agent()) as loop:
        loop.push("first")
        await gate.reached.wait()
        gate.opened.set()
    assert (await loop.wait()).reason == "clean"


@virtual
async def test_leaving_the_block_by_an_exception_stops_now() -> None:
    reached = asyncio.Event()
    loop = TurnLoop(stuck(reached))

    async def block() -> None:
        async with loop:
            loop.push("first")
            await reached.wait()
            raise KeyError("x")

    with pytest.raises(KeyError):
        await block()
    exit = await loop.wait()
    assert (exit.reason, exit.interrupted, exit.cause) == ("cancelled", ["first"], "its block was left by KeyError")


@virtual
async def test_leaving_the_block_raises_the_error_of_the_loop_and_wait_does_not() -> None:
    def plan(ctx: PlanContext[str], items: list[str]) -> Plan[str]:
        raise KeyError("no plan")

    loop = TurnLoop(talker(), plan=plan)

    async def block() -> None:
        async with loop:
            loop.push("first")
            await loop.wait()

    with pytest.raises(KeyError, match="no plan"):
        await block()
    assert isinstance((await loop.wait()).error, KeyError)


@virtual
async def test_the_callers_cancellation_stops_now_and_goes_on() -> None:
    reached = asyncio.Event()
    loop = TurnLoop(stuck(reached))

    async def block() -> None:
        async with asyncio.timeout(5), loop:
            loop.push("first")
            loop.push("second")
            await reached.wait()

    with pytest.raises(TimeoutError):
        await block()
    exit = await loop.wait()
    assert (exit.reason, exit.interrupted, exit.unhandled) == ("cancelled", ["first", "second"], [])


@virtual
async def test_cancelling_the_task_of_the_loop_ends_it_and_is_raised_again() -> None:
    reached = asyncio.Event()
    loop = TurnLoop(stuck(reached))
    loop.start()
    loop.push("first")
    await reached.wait()
    (task,) = [task for task in asyncio.all_tasks() if task.get_name() == "safepoint:turns"]
    task.cancel()
    assert not (await asyncio.wait([task]))[1]
    assert task.cancelled()
    exit = await loop.wait()
    assert (exit.reason, exit.interrupted) == ("cancelled", ["first"])


@virtual
async def test_a_loop_whose_task_is_cancelled_before_its_first_step_ends_all_the_same() -> None:
    loop = TurnLoop(talker())
    loop.push("first")
    loop.start()
    receipt = loop.stop()
    (task,) = [task for task in asyncio.all_tasks() if task.get_name() == "safepoint:turns"]
    task.cancel()
    exit = await loop.wait()
    assert (exit.reason, exit.unhandled, receipt.outcome) == ("cancelled", ["first"], "clean")


@virtual
async def test_everybody_who_waits_gets_the_same_exit_state() -> None:
    loop = TurnLoop(talker())
    early = asyncio.ensure_future(loop.wait())
    await asyncio.sleep(0)
    loop.start()
    with pytest.raises(UsageError, match=r"await loop\.wait"):
        loop.wait_sync()
    outside = asyncio.get_running_loop().run_in_executor(None, loop.wait_sync)
    loop.stop()
    assert await early is await outside is await loop.wait() is loop.wait_sync()


def test_a_loop_whose_event_loop_is_gone_refuses_what_comes() -> None:
    loop = TurnLoop(talker())

    async def main() -> None:
        loop.start()

    asyncio.run(main())  # it is cancelled with everything else, and saves what it has
    assert loop.wait_sync().reason == "cancelled"
    assert not loop.push("late").accepted
    assert loop.stop().outcome == "finished_first"

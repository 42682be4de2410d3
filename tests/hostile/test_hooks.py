"""Whatever a hook does, the run ends within its ladder, and what it leaves behind is true."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import cast

import pytest

from safepoint import Agent, Hooks, SafePoint, ToolContext, check_history, tool
from safepoint.agent.events import HookFailed, RunEnded, ToolCallStarted
from safepoint.agent.hooks import AnyRun
from safepoint.agent.ledger import LedgerEntry
from safepoint.errors import WaitInsideRun
from safepoint.history.parts import ToolCall
from safepoint.testing import ScriptedModel, call, say, stall
from safepoint.testing.clock import run_virtual
from tests.hostile.hooked import Misbehaving, hang, hooked, swallow
from tests.hostile.raising_tools import Rude, Unprintable
from tests.hostile.visit import Caller, Left, Push, World, check_one_terminal_event, let_go, visit

# When each hook runs, and the state of the one call of the run if it stops there.
CUT_MOMENTS = {
    "before_run": None,
    "before_model": None,
    "after_model": "not_started",
    "before_tool": "not_started",
    "after_tool": "finished",
    "after_run": "finished",
}
# What the supervisor calls the piece of work that the hook is part of.
WORK = {"before_model": "prepare", "before_tool": "quick", "after_tool": "quick"}


async def check_a_hooked_run(left: Left, moment: str) -> None:
    result = left.result
    check_history(result.messages)
    check_one_terminal_event(left.run)
    assert result.stop_reason == ("end_turn" if moment == "after_run" else "cancelled")
    assert [entry.state for entry in result.ledger] == ([state] if (state := CUT_MOMENTS[moment]) else [])
    assert asyncio.all_tasks() == {asyncio.current_task()}
    facts = (result.ledger, list(result.messages), left.run.kept_events())
    again = await left.agent.run("again", history=result.messages, deps=left.world)
    assert again.stop_reason == "end_turn"
    await let_go(left)
    assert (result.ledger, result.messages, left.run.kept_events()) == facts, "changed after its end"


@pytest.mark.parametrize("push", Push)
@pytest.mark.parametrize("moment", CUT_MOMENTS)
def test_a_hook_that_hangs_is_cut_at_once(moment: str, push: Push) -> None:
    async def scenario() -> None:
        left = await visit(hooked(Misbehaving(moment, hang)), World(), push)
        assert (left.waited, left.seconds, left.orphans) == (0, 0, [])
        assert left.caller.task.cancelled() is (push is Push.CALLER)
        await check_a_hooked_run(left, moment)

    run_virtual(scenario)


@pytest.mark.parametrize("push", Push)
@pytest.mark.parametrize("moment", CUT_MOMENTS)
def test_a_hook_that_swallows_the_cut_is_abandoned_and_named(moment: str, push: Push) -> None:
    async def scenario() -> None:
        left = await visit(hooked(Misbehaving(moment, swallow)), World(), push)
        assert left.seconds == (0 if push is Push.FORCE else 1)
        assert left.orphans == [WORK.get(moment, moment)]
        assert "swallow" in left.result.orphans[0].stack()
        await check_a_hooked_run(left, moment)
        started = [event for event in left.run.kept_events() if isinstance(event, ToolCallStarted)]
        assert len(started) == (0 if CUT_MOMENTS[moment] in (None, "not_started") else 1)

    run_virtual(scenario)


@pytest.mark.parametrize("push", Push)
@pytest.mark.parametrize("moment", ["on_cancel_requested", "on_stopped"])
@pytest.mark.parametrize(("act", "seconds"), [(hang, 1), (swallow, 2)])
def test_a_hook_that_hears_of_a_stop_holds_the_caller_only_within_the_ladder(
    moment: str, push: Push, act: Callable[[AnyRun], object], seconds: float, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        world = World()
        model = ScriptedModel(stall(on_reached=world.reach), say("fine"))
        agent: Agent[World] = Agent("hooked", model=model, hooks=[Misbehaving(moment, act)])
        left = await visit(agent, world, push)
        assert left.seconds == seconds
        ended = next(event for event in left.run.kept_events() if isinstance(event, RunEnded))
        assert ended.time == left.result.cancellation.asked_at if left.result.cancellation else None
        assert left.result.stop_reason == "cancelled"
        check_one_terminal_event(left.run)
        assert (await agent.run("again", history=left.result.messages, deps=world)).text == "fine"
        world.let_go()
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    with caplog.at_level(logging.WARNING, "safepoint"):
        run_virtual(scenario)
    named = [record.getMessage() for record in caplog.records if moment in record.getMessage()]
    assert bool(named) is (act is swallow), "an orphan that is on no list must be in the log"


ERRORS: dict[str, BaseException] = {
    "value_error": ValueError("broken"),
    "cancelled_error": asyncio.CancelledError(),
    "base_exception": Rude("rude"),
    "system_exit": SystemExit(3),
    "stop_iteration": StopIteration(1),
    "unprintable": Unprintable(),
}


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("moment", CUT_MOMENTS)
def test_a_hook_that_raises_is_reported_and_only_a_check_that_raises_denies(moment: str, error: str) -> None:
    def throw(_run: AnyRun) -> None:
        raise ERRORS[error]

    async def scenario() -> None:
        run = hooked(Misbehaving(moment, throw)).start("go", deps=World())
        async with run:
            pass
        result = run.result
        check_history(result.messages)
        check_one_terminal_event(run)
        assert (result.stop_reason, result.text) == ("end_turn", "done")
        assert [entry.state for entry in result.ledger] == ["failed" if moment == "before_tool" else "finished"]
        failed = [event for event in run.kept_events() if isinstance(event, HookFailed)]
        assert [event.hook for event in failed] == [moment]
        assert error == "stop_iteration" or failed[0].error is ERRORS[error]  # a coroutine cannot raise that one

    run_virtual(scenario)


@pytest.mark.parametrize("moment", CUT_MOMENTS)
def test_a_generator_exit_in_a_hook_is_reported_and_ends_at_most_the_run(moment: str) -> None:
    def throw(_run: AnyRun) -> None:
        raise GeneratorExit

    async def scenario() -> None:
        run = hooked(Misbehaving(moment, throw)).start("go", deps=World())
        async with run:
            pass
        check_history(run.result.messages)
        check_one_terminal_event(run)
        failed = any(isinstance(event, HookFailed) for event in run.kept_events())
        assert failed or isinstance(run.result.error, GeneratorExit)

    run_virtual(scenario)


@pytest.mark.parametrize("moment", [moment for moment in CUT_MOMENTS if moment != "after_run"])
def test_no_hook_starts_after_one_that_swallowed_the_cut(moment: str) -> None:
    async def return_when_cut(run: AnyRun) -> None:
        with suppress(asyncio.CancelledError):
            await hang(run)

    async def scenario() -> None:
        world = World()
        second = Misbehaving(moment, lambda run: run.deps.seen.append("second"))
        left = await visit(hooked(Misbehaving(moment, return_when_cut), second), world, Push.NOW)
        assert (left.seconds, world.seen) == (0, [])
        assert left.states in ({}, {"quick": CUT_MOMENTS[moment]})

    run_virtual(scenario)


def test_a_check_that_answers_neither_yes_nor_no_denies() -> None:
    async def scenario() -> None:
        result = await hooked(Misbehaving("before_tool", lambda _: False)).run("go", deps=World())
        assert [entry.state for entry in result.ledger] == ["failed"]
        assert result.ledger[0].started_at is None

    run_virtual(scenario)


@pytest.mark.parametrize("moment", [*CUT_MOMENTS, "on_stopped"])
def test_a_keyboard_interrupt_in_a_hook_stops_the_run_and_reaches_the_caller(moment: str) -> None:
    def throw(_run: AnyRun) -> None:
        raise KeyboardInterrupt

    async def scenario() -> None:
        run = hooked(Misbehaving(moment, throw)).start("go", deps=World())
        caller = Caller(run)
        if moment == "on_stopped":
            run.cancel()
        await asyncio.wait({caller.task})
        assert caller.interrupted
        check_history(run.result.messages)
        check_one_terminal_event(run)

    run_virtual(scenario)


@pytest.mark.parametrize("at", [SafePoint.NOW, SafePoint.FORCE], ids=repr)
@pytest.mark.parametrize("moment", [*CUT_MOMENTS, "on_cancel_requested", "on_stopped"])
def test_a_hook_may_cancel_its_own_run(moment: str, at: SafePoint) -> None:
    async def scenario() -> None:
        run = hooked(Misbehaving(moment, lambda run: run.cancel(at) and None)).start("go", deps=World())
        async with run:
            if moment.startswith("on_"):
                run.cancel()
        assert run.result.stop_reason == ("end_turn" if moment == "after_run" else "cancelled")
        check_history(run.result.messages)
        check_one_terminal_event(run)

    run_virtual(scenario)


@pytest.mark.parametrize("moment", [*CUT_MOMENTS, "on_cancel_requested"])
def test_a_hook_that_waits_for_its_own_run_is_told_so(moment: str) -> None:
    async def wait(run: AnyRun) -> None:
        with pytest.raises(WaitInsideRun):
            await run.cancel(SafePoint.AFTER_TOOLS).wait()
        run.deps.seen.append("told")

    async def scenario() -> None:
        world = World()
        run = hooked(Misbehaving(moment, wait)).start("go", deps=world)
        async with run:
            if moment.startswith("on_"):
                run.cancel(SafePoint.AFTER_TOOLS)
        assert world.seen == ["told"]

    run_virtual(scenario)


def test_a_run_that_a_hook_starts_belongs_to_the_hooks_run_and_not_to_whoever_asked() -> None:
    parents: list[object] = []

    async def start(run: AnyRun) -> None:
        inner = Agent("inner", model=ScriptedModel(say("hi"))).start("go")
        async with inner:
            parents.append(inner.node.parent)

    async def scenario() -> None:
        world = World()
        model = ScriptedModel(stall(on_reached=world.reach))
        asked = Agent("asked", model=model, hooks=[Misbehaving("on_cancel_requested", start)]).start("go")

        @tool
        async def asks(ctx: ToolContext[None]) -> str:
            asked.cancel()
            for _ in range(10):
                await asyncio.sleep(0)
            return "asked"

        async with asked:
            await world.reached.wait()
            await Agent("asking", model=ScriptedModel(call("asks"), say("fine")), tools=[asks]).run("go")
        assert parents == [asked.node]

    run_virtual(scenario)


def test_what_is_no_hooks_object_is_refused_where_it_is_declared() -> None:
    with pytest.raises(ValueError, match="Hooks"):
        Agent("hooked", model=ScriptedModel(), hooks=[object()])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]  # that is the point


def test_a_plain_function_as_a_hook_may_hang_up_on_its_run_too() -> None:
    class Plain(Hooks):
        def before_model(self, run: AnyRun, request: object) -> None:
            run.cancel(reason="no")

    async def scenario() -> None:
        model = ScriptedModel(say("unused"))
        result = await Agent("hooked", model=model, hooks=[Plain()]).run("go")
        assert (result.stop_reason, model.calls) == ("cancelled", 0)

    run_virtual(scenario)


def test_a_hook_cannot_change_what_the_model_asked_for_nor_what_is_recorded() -> None:
    class Meddling(Hooks):
        def before_tool(self, run: AnyRun, call: ToolCall) -> None:
            cast("dict[str, object]", call.args)["word"] = object()

        def after_tool(self, run: AnyRun, entry: LedgerEntry) -> None:
            cast("dict[str, object]", entry.args).clear()

    @tool
    async def echo(word: str) -> str:
        return word

    async def scenario() -> None:
        model = ScriptedModel(call("echo", word="said"), say("fine"))
        result = await Agent("hooked", model=model, tools=[echo], hooks=[Meddling()]).run("go")
        check_history(result.messages)
        assert result.messages[1].tool_calls[0].args == {"word": "said"}
        assert [(entry.args, entry.content) for entry in result.ledger] == [({"word": "said"}, "said")]

    run_virtual(scenario)

"""Looking before and while a run is stopped: what a cancel would do, and what holds a run that is stopping."""

from __future__ import annotations

import asyncio
import threading

import pytest

from safepoint import Agent, Hooks, Run, SafePoint, ToolContext, tool
from safepoint.agent.hooks import AnyRun
from safepoint.agent.preview import Preview
from safepoint.testing import ScriptedModel, call, say, stall
from tests.agent.workshop import Gate
from tests.core.piece import for_ever, stubborn
from tests.virtual import passes, rounds, virtual

NOW, FORCE = SafePoint.NOW, SafePoint.FORCE


# -- preview -----------------------------------------------------------------------------------------------------------


@tool(on_cancel="finish", grace=4, effect="irreversible")
async def pay() -> None:
    """Pay."""
    await for_ever()


@tool(effect="pure", grace=3)
async def look() -> None:
    """Look."""
    await for_ever()


@tool
async def send() -> None:
    """Send."""
    await for_ever()


@tool(effect="idempotent")
async def check() -> None:
    """Check."""
    await for_ever()


NAMES = {"pay": "pay:call_1_1", "look": "look:call_1_2", "send": "send:call_1_3", "check": "check:call_1_4"}


def shop(limit: int) -> Agent[None]:
    model = ScriptedModel([call("pay"), call("look"), call("send"), call("check")])
    return Agent("a", model=model, tools=[pay, look, send, check], max_parallel_tools=limit)


Told = tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...], tuple[str, ...], float | None]


def expected(
    *, cut: str = "", finish: str = "", not_started: str = "", in_doubt: str = "", seconds: float | None
) -> Told:
    def names(words: str) -> tuple[str, ...]:
        return tuple(NAMES[word] for word in words.split())

    return names(cut), names(finish), names(not_started), names(in_doubt), seconds


def told(seen: Preview) -> Told:
    return seen.cut, seen.finish, seen.not_started, seen.in_doubt, seen.seconds


PREVIEWS = {
    # `pay` (irreversible, must finish within 4 s), `look` (pure, 3 s) and `send` run; `check` (idempotent) is queued
    NOW: expected(cut="look send", finish="pay", not_started="check", in_doubt="send", seconds=5.0),
    FORCE: expected(cut="pay look send", not_started="check", in_doubt="pay send", seconds=0.0),
    SafePoint.AFTER_TOOL: expected(finish="pay look send", not_started="check", seconds=None),
    SafePoint.AFTER_TOOLS: expected(finish="pay look send check", seconds=None),
    SafePoint.AFTER_MODEL: expected(finish="pay look send check", seconds=None),
    SafePoint.BEFORE_EFFECT: expected(finish="pay look send check", seconds=None),
    SafePoint.ANY: expected(finish="pay look send", not_started="check", seconds=None),
}


@virtual
@pytest.mark.parametrize("at", PREVIEWS, ids=repr)
async def test_a_preview_says_what_would_be_cut_what_must_finish_and_what_would_be_in_doubt(at: SafePoint) -> None:
    async with shop(3).start("go") as run:
        await rounds(20)
        assert told(run.preview_cancel(at)) == PREVIEWS[at]
        assert run.node.request() is None, "looking asks for nothing"
        run.cancel(FORCE)


@virtual
async def test_queued_effects_are_what_before_effect_is_about() -> None:
    async with shop(1).start("go") as run:
        await rounds(20)
        seen = run.preview_cancel(SafePoint.BEFORE_EFFECT)
        assert told(seen) == expected(finish="pay look check", not_started="send", seconds=None)
        run.cancel(FORCE)


@virtual
@pytest.mark.parametrize(("at", "seconds"), [(NOW, 1.0), (FORCE, 0.0), (SafePoint.AFTER_TOOLS, None)], ids=repr)
async def test_where_no_tool_runs_the_model_call_alone_takes_time(at: SafePoint, seconds: float | None) -> None:
    run = Agent("a", model=ScriptedModel([say("hi"), stall()])).start("go")
    assert run.preview_cancel(at) == Preview()
    async with run:
        await rounds(10)
        assert run.preview_cancel(at) == Preview(seconds=seconds)
        run.cancel()
    assert run.preview_cancel(at) == Preview()


@virtual
async def test_now_looks_into_sub_agents_and_a_safe_point_only_with_recursion() -> None:
    outer = Agent("outer", model=ScriptedModel(call("a", input="go")), tools=[shop(3).as_tool()])
    async with outer.start("go") as run:
        await rounds(30)
        inner = set(NAMES.values()) - {NAMES["check"]}
        hard = run.preview_cancel(NOW)
        assert {*hard.cut, *hard.finish} >= inner
        assert not set(run.preview_cancel(SafePoint.ANY).finish) & inner
        assert set(run.preview_cancel(SafePoint.ANY, recursive=True).finish) >= inner
        run.cancel(FORCE)


# -- what holds a stopping run -----------------------------------------------------------------------------------------


def held(run: Run[None]) -> dict[str, tuple[str | None, float, float | None]]:
    return {
        each.name: (
            each.rung.value if each.rung is not None else None,
            round(each.seconds, 6),
            None if each.seconds_left is None else round(each.seconds_left, 6),
        )
        for each in run.why_not_stopped()
    }


@virtual
async def test_a_run_that_was_not_asked_or_has_ended_is_held_by_nothing() -> None:
    gate = Gate("gate")
    async with Agent("a", model=ScriptedModel(call("gate")), tools=[gate.tool]).start("go") as run:
        await gate.started.wait()
        assert run.why_not_stopped() == []
        run.cancel()
    assert run.why_not_stopped() == []


@virtual
async def test_a_request_that_waits_for_its_safe_point_names_the_call_it_waits_for() -> None:
    gate = Gate("gate")
    async with Agent("a", model=ScriptedModel(call("gate")), tools=[gate.tool]).start("go") as run:
        await gate.started.wait()
        await passes(3)
        run.cancel(SafePoint.AFTER_TOOLS)
        await passes(2)
        (waited_for,) = run.why_not_stopped()
        assert (waited_for.name, waited_for.rung, waited_for.kind) == ("gate", None, "task")
        assert (waited_for.effect, waited_for.pid) == ("effectful", None)
        assert (waited_for.seconds, waited_for.seconds_left) == (5.0, None)
        run.cancel(SafePoint.AFTER_TOOLS, within=4)
        await passes(1)
        assert held(run) == {"gate": (None, 6.0, 3.0)}, "until the deadline of the request"
        gate.gate.set()
    assert run.why_not_stopped() == []


@virtual
async def test_each_call_that_holds_a_run_is_named_with_rung_time_and_stack() -> None:
    async def slow() -> object:
        return await stubborn(60)()

    slowly = tool(name="slowly", grace=6)(slow)
    model = ScriptedModel([call("pay"), call("slowly")])
    async with Agent("a", model=model, tools=[pay, slowly]).start("go") as run:
        await passes(1)
        run.cancel()
        await passes(1.5)
        assert held(run) == {"pay": ("finish", 1.5, 2.5), "slowly": ("cancel", 1.5, 4.5)}
        by_name = {each.name: each for each in run.why_not_stopped()}
        assert by_name["slowly"].path == "a/slowly:call_1_2"
        assert "in slow" in by_name["slowly"].stack
        assert "in pay" in by_name["pay"].stack
    await passes(60)


@virtual
async def test_a_call_in_flight_after_a_safe_point_holds_its_run_without_a_rung() -> None:
    quick, slow = Gate("quick", open=True), Gate("slow")
    model = ScriptedModel([call("quick"), call("slow")])
    async with Agent("a", model=model, tools=[quick.tool, slow.tool]).start("go") as run:
        await slow.started.wait()
        run.cancel(SafePoint.AFTER_TOOL)
        await passes(2)
        assert held(run) == {"slow": (None, 2.0, None)}, "quick had ended before anybody asked"
        slow.gate.set()
    first, second = Gate("first"), Gate("second")
    model = ScriptedModel([call("first"), call("second")])
    async with Agent("a", model=model, tools=[first.tool, second.tool]).start("go") as run:
        await second.started.wait()
        run.cancel(SafePoint.AFTER_TOOL)
        first.gate.set()
        await passes(2)
        ((name, (rung, _, left)),) = held(run).items()
        assert (name, rung, left) == ("second", None, None)
        second.gate.set()


@virtual
async def test_a_model_call_or_a_hook_that_does_not_stop_is_named() -> None:
    class Stuck(Hooks):
        async def before_run(self, run: AnyRun) -> None:
            await stubborn(60)()

    async with Agent("a", model=ScriptedModel(say("never")), hooks=[Stuck()]).start("go") as run:
        await passes(1)
        run.cancel()
        await passes(0.5)
        assert held(run) == {"before_run": ("cancel", 0.5, 0.5)}
    await passes(60)


@virtual
async def test_what_holds_a_sub_agent_holds_its_parent() -> None:
    inner = Agent("inner", model=ScriptedModel(call("pay")), tools=[pay])
    async with Agent("outer", model=ScriptedModel(call("inner", input="go")), tools=[inner.as_tool()]).start(
        "go"
    ) as run:
        await passes(1)
        run.cancel()
        await passes(1)
        assert held(run) == {"inner": ("ask", 1.0, 9.0), "pay": ("finish", 1.0, 3.0)}


@virtual
async def test_a_thread_that_holds_a_run_is_shown_where_it_is() -> None:
    started, gate = threading.Event(), threading.Event()

    @tool(grace=5)
    def block(ctx: ToolContext) -> None:
        """Block its thread."""
        started.set()
        assert gate.wait(30)

    async with Agent("a", model=ScriptedModel(call("block")), tools=[block]).start("go") as run:
        await asyncio.to_thread(started.wait, 30)
        run.cancel()
        await rounds(3)
        (holding,) = run.why_not_stopped()
        assert (holding.name, holding.rung) == ("block", "flag")
        assert "gate.wait(30)" in holding.stack
        gate.set()


@virtual
async def test_it_may_be_asked_from_another_thread() -> None:
    async with Agent("a", model=ScriptedModel(call("pay")), tools=[pay]).start("go") as run:
        await passes(1)
        run.cancel()
        await passes(1)
        names = await asyncio.to_thread(lambda: [each.name for each in run.why_not_stopped()])
        assert names == ["pay"]


def test_a_blocked_loop_is_what_holds_its_runs() -> None:
    seen: list[str] = []

    @tool
    async def freeze(ctx: ToolContext) -> str:
        """Block the event loop until somebody has noticed."""
        asked.set()
        assert noticed.wait(30)
        return "thawed"

    asked, noticed = threading.Event(), threading.Event()

    def watch(run: Run[None]) -> None:
        asked.wait(30)
        run.cancel()
        while not seen:
            seen.extend(each.stack for each in run.why_not_stopped() if each.name == "event loop")
        noticed.set()

    async def main() -> None:
        async with Agent("a", model=ScriptedModel(call("freeze")), tools=[freeze]).start("go") as run:
            threading.Thread(target=watch, args=(run,)).start()

    asyncio.run(main())
    assert "in freeze" in seen[0]

"""A held run waits at a safe point without ending, and goes on as if nothing had been."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from safepoint import (
    Agent,
    Budget,
    HoldState,
    Hooks,
    Limit,
    Parallel,
    Reason,
    Run,
    SafePoint,
    Sequential,
    Source,
    ToolContext,
    tool,
)
from safepoint._core.tree import NodeState
from safepoint.errors import WaitInsideRun
from safepoint.events import Event, HoldEnded, HoldStarted, RunEnded
from safepoint.testing import ScriptedModel, call, say
from tests.agent.oracle import check_left_behind
from tests.agent.workshop import Gate, HeldModel
from tests.virtual import now, passes, rounds, virtual

HOUR = 3600.0
HARD = (SafePoint.NOW, SafePoint.FORCE)


def kinds(run: Run[None], *, nested: bool = False) -> list[tuple[str, str]]:
    """The holds of a run, as its events tell them."""
    told: list[tuple[str, str]] = []
    for event in run.kept_events(nested=nested):
        if isinstance(event, HoldStarted):
            told.append((event.path, f"at {event.place}"))
        elif isinstance(event, HoldEnded):
            told.append((event.path, "stopped" if event.stopped else "released"))
    return told


def two_gates(*, limit: int | None = None) -> tuple[Agent[None], Gate, Gate]:
    one, two = Gate("one"), Gate("two", "pure")
    model = ScriptedModel([call("one"), call("two")], say("done"))
    return Agent("a", model=model, tools=[one.tool, two.tool], max_parallel_tools=limit), one, two


@virtual
async def test_a_run_held_after_its_tools_waits_without_a_task_or_an_end_and_goes_on() -> None:
    agent, one, two = two_gates()
    async with agent.start("go") as run:
        await one.started.wait()
        receipt = run.hold(SafePoint.AFTER_TOOLS, reason="lunch")
        assert (receipt.accepted, receipt.state, run.held) == (True, HoldState.ASKED, ())
        one.gate.set()
        await passes(1)
        assert receipt.state == HoldState.ASKED
        two.gate.set()
        assert await receipt.wait() == HoldState.HELD
        (held,) = run.held
        assert (held.path, held.place, held.reason.text) == ("a", "after_tools", "lunch")
        assert run.node.state is NodeState.HELD
        await passes(HOUR)
        assert not run.ended
        assert not any(isinstance(event, RunEnded) for event in run.kept_events())
        assert run.resume()
        assert str(receipt.state) == "released"
    assert (run.result.stop_reason, run.result.text) == ("end_turn", "done")
    assert kinds(run) == [("a", "at after_tools"), ("a", "released")]
    check_left_behind(run)


PLACES: list[tuple[SafePoint, str, dict[str, str]]] = [
    (SafePoint.AFTER_MODEL, "after_model", {"one": "not_started", "two": "not_started"}),
    (SafePoint.BEFORE_EFFECT, "before_effect", {"one": "not_started", "two": "finished"}),
    (SafePoint.AFTER_TOOLS, "after_tools", {"one": "finished", "two": "finished"}),
    (SafePoint.ANY, "after_model", {"one": "not_started", "two": "not_started"}),
]


@virtual
@pytest.mark.parametrize(("at", "place", "then"), PLACES, ids=[repr(at) for at, _, _ in PLACES])
async def test_it_waits_where_a_cancel_would_stop_it(at: SafePoint, place: str, then: dict[str, str]) -> None:
    agent, one, two = two_gates()
    one.gate.set()
    two.gate.set()
    async with agent.start("go") as run:
        receipt = run.hold(at)
        assert await receipt.wait() == HoldState.HELD
        await passes(1)
        assert run.held[0].place == place
        assert {entry.name: entry.state for entry in run.ledger} == then
        run.resume()
    assert run.result.text == "done"
    assert [entry.state for entry in run.result.ledger] == ["finished", "finished"]
    check_left_behind(run)


@virtual
async def test_after_a_tool_queued_calls_wait_and_start_after_the_hold() -> None:
    agent, one, two = two_gates(limit=1)
    async with agent.start("go") as run:
        await one.started.wait()
        receipt = run.hold(SafePoint.AFTER_TOOL)
        one.gate.set()
        assert await receipt.wait() == HoldState.HELD
        await passes(1)
        assert (two.runs, run.held[0].place) == (0, "after_tool")
        run.resume()
        await two.started.wait()
        two.gate.set()
    assert [entry.state for entry in run.result.ledger] == ["finished", "finished"]
    assert run.result.stop_reason == "end_turn"


@virtual
async def test_calls_in_flight_go_on_while_queued_ones_wait_and_a_release_starts_them_at_once() -> None:
    one, two, three = Gate("one"), Gate("two"), Gate("three")
    model = ScriptedModel([call("one"), call("two"), call("three")], say("done"))
    tools = [one.tool, two.tool, three.tool]
    async with Agent("a", model=model, tools=tools, max_parallel_tools=2).start("go") as run:
        await two.started.wait()
        receipt = run.hold(SafePoint.AFTER_TOOL)
        one.gate.set()
        await passes(1)
        assert (receipt.state, three.runs) == (HoldState.ASKED, 0)  # `two` is under way: nothing waits yet
        receipt.release()
        await three.started.wait()
        two.gate.set()
        three.gate.set()
    assert kinds(run) == []
    assert [entry.state for entry in run.result.ledger] == ["finished"] * 3


@virtual
@pytest.mark.parametrize(
    "at", [SafePoint.AFTER_MODEL, SafePoint.named("never"), SafePoint.NOW, SafePoint.FORCE], ids=repr
)
async def test_any_cancel_ends_a_hold_and_nothing_is_lost(at: SafePoint) -> None:
    agent, one, two = two_gates()
    one.gate.set()
    two.gate.set()
    async with agent.start("go") as run:
        hold = run.hold(SafePoint.AFTER_TOOLS)
        assert await hold.wait() == HoldState.HELD
        receipt = run.cancel(at, reason="enough")
        assert await receipt.wait() == "stopped"
        assert receipt.contributed
        assert hold.state == HoldState.STOPPED
        assert not hold.release()
    assert run.result.stop_reason == "cancelled"
    assert run.result.checkpoint is not None
    assert [entry.state for entry in run.result.ledger] == ["finished", "finished"]
    assert kinds(run) == [("a", "at after_tools"), ("a", "stopped")]
    check_left_behind(run)
    resumed = await agent.resume(run.result.checkpoint)
    assert (resumed.text, one.runs) == ("done", 1)


@virtual
async def test_a_run_that_was_asked_to_stop_does_not_wait_for_a_hold() -> None:
    agent, one, two = two_gates()
    async with agent.start("go") as run:
        await one.started.wait()
        run.cancel(SafePoint.AFTER_TOOLS)
        hold = run.hold(SafePoint.ANY)
        one.gate.set()
        two.gate.set()
        assert await hold.wait() == HoldState.STOPPED
    assert run.result.stop_reason == "cancelled"
    assert kinds(run) == []


@virtual
async def test_a_withdrawn_cancel_leaves_the_hold_standing() -> None:
    agent, one, two = two_gates()
    async with agent.start("go") as run:
        await one.started.wait()
        hold = run.hold(SafePoint.AFTER_TOOLS)
        assert run.cancel(SafePoint.AFTER_TOOLS).withdraw()
        one.gate.set()
        two.gate.set()
        assert await hold.wait() == HoldState.HELD
        run.resume()
    assert run.result.stop_reason == "end_turn"


@virtual
async def test_when_its_time_is_up_the_run_stops_where_it_is_held_with_a_checkpoint() -> None:
    agent, one, two = two_gates()
    one.gate.set()
    two.gate.set()
    begun = now()
    async with agent.start("go") as run:
        hold = run.hold(SafePoint.AFTER_TOOLS, within=60, reason=Reason("a look", by="ada"))
        assert await hold.wait() == HoldState.HELD
        await passes(59)
        assert not run.ended
        await run.wait()
        assert now() - begun == pytest.approx(60)
    assert hold.state == HoldState.STOPPED
    told = run.result.cancellation
    assert told is not None
    assert (told.reason.source, told.reason.by, told.place) == (Source.DEADLINE, "ada", "after_tools")
    assert "a look" in told.reason.text
    assert run.result.checkpoint is not None
    assert (await agent.resume(run.result.checkpoint)).text == "done"


@virtual
async def test_a_hold_whose_time_is_up_before_the_run_gets_there_stops_it_there_and_cuts_nothing() -> None:
    agent, one, two = two_gates()
    async with agent.start("go") as run:
        await one.started.wait()
        hold = run.hold(SafePoint.AFTER_TOOLS, within=1)
        await passes(5)
        one.gate.set()
        two.gate.set()
        assert await hold.wait() == HoldState.STOPPED
    assert (one.cancels, two.cancels) == (0, 0)
    assert run.result.stop_reason == "cancelled"


@virtual
async def test_a_released_hold_has_no_deadline() -> None:
    agent, one, two = two_gates()
    async with agent.start("go") as run:
        await one.started.wait()
        assert run.hold(SafePoint.AFTER_TOOLS, within=1).release()
        await passes(5)
        one.gate.set()
        two.gate.set()
    assert run.result.stop_reason == "end_turn"


@virtual
async def test_two_holds_both_have_to_be_released() -> None:
    agent, one, two = two_gates()
    one.gate.set()
    two.gate.set()
    async with agent.start("go") as run:
        first, second = run.hold(SafePoint.AFTER_TOOLS), run.hold(SafePoint.ANY)
        assert await second.wait() == HoldState.HELD
        assert second.release()
        assert not second.release()
        assert await first.wait() == HoldState.HELD
        await passes(1)
        assert first.release()
    assert run.result.text == "done"
    assert kinds(run) == [
        ("a", "at after_model"),
        ("a", "released"),
        ("a", "at after_tools"),
        ("a", "released"),
    ]


@virtual
async def test_resume_leaves_the_hold_of_a_policy_to_whoever_has_its_receipt() -> None:
    agent, one, two = two_gates()
    one.gate.set()
    two.gate.set()
    async with agent.start("go") as run:
        frozen = run.hold(reason=Reason("frozen", Source.POLICY))
        mine = run.hold()
        await mine.wait()
        assert run.resume()
        assert not run.resume()
        await passes(1)
        assert [held.reason.text for held in run.held] == ["frozen"]
        assert (frozen.state, mine.state) == (HoldState.HELD, HoldState.RELEASED)
        frozen.release()
    assert run.result.text == "done"


@virtual
async def test_a_run_that_ends_first_was_never_held() -> None:
    model = HeldModel(say("done"))
    async with Agent("a", model=model).start("go") as run:
        await model.reached.wait()
        receipt = run.hold()
        model.gate.set()
        assert await receipt.wait() == HoldState.FINISHED_FIRST
    late = run.hold()
    assert (late.accepted, late.state, late.release()) == (False, HoldState.FINISHED_FIRST, False)
    assert await late.wait() == HoldState.FINISHED_FIRST
    assert not run.resume()


@virtual
async def test_a_hold_that_is_made_before_the_start_waits_for_its_point() -> None:
    agent, one, two = two_gates()
    one.gate.set()
    two.gate.set()
    run = agent.start("go")
    receipt = run.hold(SafePoint.AFTER_MODEL)
    async with run:
        assert await receipt.wait() == HoldState.HELD
        run.resume()
    assert run.result.text == "done"


class Pages:
    """A tool that keeps what it has read in local variables, with a point of its own after each page."""

    def __init__(self, timeout: float = 2 * HOUR) -> None:
        self.read: list[int] = []

        @tool(effect="idempotent", timeout=timeout)
        async def read(ctx: ToolContext) -> str:
            """Read pages."""
            local: list[int] = []
            for number in range(ctx.saved or 0, 3):
                await passes(1)
                local.append(number)
                self.read.append(number)
                await ctx.safe_point("page", save=number + 1)
            return f"read {local}"

        self.tool = read
        self.agent: Agent[None] = Agent("a", model=ScriptedModel(call("read"), say("done")), tools=[read])


@virtual
async def test_a_tool_held_at_its_own_point_keeps_its_local_state() -> None:
    pages = Pages()
    async with pages.agent.start("go") as run:
        receipt = run.hold(SafePoint.named("page"))
        assert await receipt.wait() == HoldState.HELD
        assert [held.path for held in receipt.held] == [f"a/read:{run.ledger[0].call_id}"]
        await passes(HOUR)
        assert (pages.read, [entry.state for entry in run.ledger]) == ([0], ["running"])
        run.resume()
    assert run.result.ledger[0].content == "read [0, 1, 2]"
    assert [what for _, what in kinds(run)] == ["at point:page", "released"]
    check_left_behind(run)


@virtual
@pytest.mark.parametrize(
    "at", [SafePoint.named("page"), SafePoint.AFTER_TOOLS, SafePoint.NOW, SafePoint.FORCE], ids=repr
)
async def test_a_cancel_stops_a_held_tool_where_it_stands(at: SafePoint) -> None:
    pages = Pages()
    async with pages.agent.start("go") as run:
        await run.hold(SafePoint.named("page")).wait()
        assert await run.cancel(at).wait() == "stopped"
    (entry,) = run.result.ledger
    assert (entry.state, entry.point) == ("stopped", "page")
    assert [what for _, what in kinds(run)] == ["at point:page", "stopped"]
    assert run.result.checkpoint is not None
    resumed = await pages.agent.resume(run.result.checkpoint)
    assert resumed.ledger[0].content == "read [1, 2]"
    assert pages.read == [0, 1, 2]


@virtual
async def test_the_time_that_a_tool_is_held_is_not_its_own() -> None:
    pages = Pages(timeout=4)
    async with pages.agent.start("go") as run:
        await run.hold(SafePoint.named("page")).wait()
        await passes(HOUR)
        run.resume()
    assert run.result.ledger[0].state == "finished"

    slow = Pages(timeout=2)
    async with slow.agent.start("go") as run:
        await run.hold(SafePoint.named("page")).wait()
        await passes(HOUR)
        run.resume()
    assert run.result.ledger[0].state == "cut"


@virtual
async def test_the_time_that_a_run_is_held_is_not_of_its_budget() -> None:
    gate = Gate("gate", open=True)
    model = ScriptedModel(call("gate"), say("done"))
    budget = Budget(seconds=Limit(hard=10))
    async with Agent("a", model=model, tools=[gate.tool]).start("go", budget=budget) as run:
        await run.hold().wait()
        await passes(HOUR)
        run.resume()
    assert run.result.stop_reason == "end_turn"


@virtual
async def test_the_budget_goes_on_after_the_hold() -> None:
    slow = Gate("slow")
    budget = Budget(seconds=Limit(hard=10))
    model = ScriptedModel(call("slow"), say("done"))
    begun = now()
    async with Agent("a", model=model, tools=[slow.tool]).start("go", budget=budget) as run:
        await run.hold(SafePoint.AFTER_MODEL).wait()
        await passes(HOUR)
        run.resume()
        await run.wait()
        assert now() - begun == pytest.approx(HOUR + 10)
    assert run.result.stop_reason == "budget"


def nested(recursive: bool) -> tuple[Agent[None], Gate]:
    gate = Gate("gate")
    inner = Agent("inner", model=ScriptedModel(call("gate"), say("found")), tools=[gate.tool])
    return Agent("outer", model=ScriptedModel(call("inner", input="x"), say("done")), tools=[inner.as_tool()]), gate


@virtual
async def test_a_hold_reaches_the_runs_inside_only_if_it_is_recursive() -> None:
    outer, gate = nested(recursive=True)
    async with outer.start("go") as run:
        await gate.started.wait()
        receipt = run.hold(SafePoint.AFTER_TOOLS, recursive=True)
        gate.gate.set()
        assert await receipt.wait() == HoldState.HELD
        assert [held.path.rsplit("/")[-1] for held in receipt.held] == ["inner"]
        receipt.release()
    assert run.result.text == "done"

    outer, gate = nested(recursive=False)
    async with outer.start("go") as run:
        await gate.started.wait()
        receipt = run.hold(SafePoint.AFTER_TOOLS)
        gate.gate.set()
        assert await receipt.wait() == HoldState.HELD
        assert [held.path for held in receipt.held] == ["outer"]
        receipt.release()
    assert run.result.text == "done"


@virtual
async def test_a_cancel_that_does_not_reach_a_held_run_inside_lets_it_go_on_and_stops_the_run_around_it() -> None:
    outer, gate = nested(recursive=True)
    async with outer.start("go") as run:
        await gate.started.wait()
        hold = run.hold(SafePoint.AFTER_TOOLS, recursive=True)
        gate.gate.set()
        await hold.wait()
        assert await run.cancel(SafePoint.AFTER_TOOLS).wait() == "stopped"
    assert run.result.ledger[0].content == "found"
    assert hold.state == HoldState.STOPPED


@virtual
async def test_one_node_can_be_held_by_itself() -> None:
    outer, gate = nested(recursive=True)
    async with outer.start("go") as run:
        await gate.started.wait()
        (inner,) = [node for node in run.tree.walk() if node.name == "inner" and node.kind == "run"]
        receipt = inner.hold(SafePoint.AFTER_TOOLS)
        gate.gate.set()
        assert await receipt.wait() == HoldState.HELD
        receipt.release()
    assert run.result.text == "done"


@virtual
async def test_a_composite_is_held_between_its_children() -> None:
    first = Agent("first", model=ScriptedModel(say("one")))
    second = Agent("second", model=ScriptedModel(say("two")))
    async with Sequential("both", first).then(second).start("go") as run:
        receipt = run.hold(SafePoint.AFTER_TOOLS)
        assert await receipt.wait() == HoldState.HELD
        assert run.held[0].place == "between_children"
        await passes(HOUR)
        run.resume()
    assert run.result.text == "two"


@virtual
async def test_queued_branches_wait_while_a_composite_is_held_and_a_cancel_keeps_what_is_done() -> None:
    branches = [Agent(name, model=ScriptedModel(say(name))) for name in ("x", "y", "z")]
    async with Parallel("all", branches, limit=1).start("go") as run:
        receipt = run.hold(SafePoint.ANY)
        assert await receipt.wait() == HoldState.HELD
        await passes(1)
        assert [entry.state for entry in run.ledger] == ["finished", "not_started", "not_started"]
        run.cancel()
    assert run.result.stop_reason == "cancelled"
    assert [entry.state for entry in run.result.ledger] == ["finished", "not_started", "not_started"]


def test_a_tool_in_a_thread_is_held_at_its_point_and_stops_there() -> None:
    read: list[int] = []

    @tool(effect="pure")
    def pages(ctx: ToolContext) -> str:
        """Read pages."""
        for number in range(ctx.saved or 0, 3):
            read.append(number)
            ctx.safe_point_sync("page", save=number + 1)
        return f"read {read}"

    async def main() -> None:
        agent = Agent("a", model=ScriptedModel(call("pages"), say("done")), tools=[pages])
        async with agent.start("go") as run:
            receipt = run.hold(SafePoint.named("page"))
            assert await receipt.wait(5) == HoldState.HELD
            assert read == [0]
            run.resume()
        assert run.result.ledger[0].content == "read [0, 1, 2]"
        read.clear()
        agent = Agent("a", model=ScriptedModel(call("pages"), say("done")), tools=[pages])
        async with agent.start("go") as run:
            assert await run.hold(SafePoint.named("page")).wait(5) == HoldState.HELD
            assert await run.cancel().wait(5) == "stopped"
        assert (run.result.ledger[0].state, read) == ("stopped", [0])

    asyncio.run(main())


@virtual
async def test_a_hook_is_held_at_a_point_of_its_own() -> None:
    class Checks(Hooks):
        async def before_model(self, run: Run[None], request: object) -> None:
            assert self.ctx is not None
            await self.ctx.safe_point("checked")

    async with Agent("a", model=ScriptedModel(say("done")), hooks=[Checks()]).start("go") as run:
        receipt = run.hold(SafePoint.named("checked"))
        assert await receipt.wait() == HoldState.HELD
        run.resume()
    assert run.result.text == "done"
    assert kinds(run) == [("a", "at point:checked"), ("a", "released")]


@virtual
async def test_a_message_to_a_held_run_joins_when_it_goes_on() -> None:
    agent, one, two = two_gates()
    one.gate.set()
    two.gate.set()
    async with agent.start("go") as run:
        await run.hold(SafePoint.AFTER_TOOLS).wait()
        steered = run.steer("and hurry")
        await passes(1)
        assert steered.outcome is None
        run.resume()
        assert await steered.wait() == "joined"


@virtual
async def test_a_run_cannot_wait_for_its_own_hold() -> None:
    @tool
    async def wait_for_myself(ctx: ToolContext) -> str:
        """Never returns."""
        try:
            await ctx.run.hold().wait()
        except WaitInsideRun:
            ctx.run.resume()
            return "refused"
        return "waited"

    agent = Agent("a", model=ScriptedModel(call("wait_for_myself"), say("done")), tools=[wait_for_myself])
    result = await agent.run("go")
    assert result.ledger[0].content == "refused"


WRONG: list[tuple[Callable[[Run[None]], object], str]] = [
    (lambda run: run.hold(SafePoint.NOW), "SafePoint.ANY"),
    (lambda run: run.hold(SafePoint.FORCE), "run.cancel"),
    (lambda run: run.hold("after_tools"), "SafePoint.AFTER_TOOLS"),  # type: ignore[arg-type]  # an untyped caller
    (lambda run: run.hold(within=0), "above 0"),
]


@virtual
async def test_a_hold_that_would_never_come_is_refused_with_what_to_write() -> None:
    run = Agent("a", model=ScriptedModel()).start("go")
    run.discard()
    for make, words in WRONG:
        with pytest.raises(ValueError, match=words):
            make(run)


@virtual
async def test_ten_thousand_holds_and_releases_leave_the_run_going() -> None:
    agent, one, two = two_gates()
    async with agent.start("go") as run:
        await one.started.wait()
        for _ in range(10_000):
            run.hold().release()
        one.gate.set()
        two.gate.set()
    assert run.result.text == "done"
    assert kinds(run) == []


@virtual
async def test_holds_of_other_readers_of_the_log_are_no_asks() -> None:
    """A hold announces no cancel."""
    agent, one, two = two_gates()
    seen: list[Event] = []
    async with agent.start("go") as run:
        await one.started.wait()
        run.hold(SafePoint.AFTER_TOOLS).release()
        one.gate.set()
        two.gate.set()
        await rounds(3)
        seen += run.kept_events()
    assert not any(type(event).__name__ == "CancelRequested" for event in seen)

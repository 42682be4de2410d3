"""A tool's own safe points, and tools that run in threads: how they hear of a stop and where they leave."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from safepoint import Agent, Run, SafePoint, ToolContext, tool
from safepoint.errors import StopTool
from safepoint.testing import ScriptedModel, call, say
from safepoint.tools.base import BaseTool
from tests.agent.oracle import check_left_behind, results, states
from tests.agent.workshop import Gate
from tests.virtual import passes, rounds, virtual

PAGE = SafePoint.named("page")


class Pages:
    """Reads pages, with a safe point named "page" after each; waits for its gate before every page."""

    def __init__(self, *, count: int = 3) -> None:
        self.read: list[int] = []
        self.gates = [asyncio.Event() for _ in range(count)]

        @tool(effect="idempotent")
        async def read(ctx: ToolContext) -> str:
            """Read pages."""
            for number, gate in enumerate(self.gates):
                await gate.wait()
                self.read.append(number)
                await ctx.safe_point("page", save={"next": number + 1})
            return "all read"

        self.tool: BaseTool = read


def reader(pages: Pages, *others: BaseTool) -> Agent[None]:
    calls = [call("read"), *(call(other.name) for other in others)]
    return Agent("reader", model=ScriptedModel(calls, say("done")), tools=[pages.tool, *others])


@virtual
@pytest.mark.parametrize("at", [PAGE, SafePoint.ANY, PAGE | SafePoint.AFTER_TOOLS], ids=repr)
async def test_a_standing_ask_stops_the_tool_at_its_own_point_and_then_the_run(at: SafePoint) -> None:
    pages = Pages()
    async with reader(pages).start("go") as run:
        await rounds(10)
        receipt = run.cancel(at, reason="lunch")
        pages.gates[0].set()
        assert await receipt.wait() == "stopped"
    assert pages.read == [0]
    (entry,) = run.result.ledger
    assert (entry.state, entry.point) == ("stopped", "page")
    assert results(run.result.messages)[0].content == (
        'This call stopped at its own safe point "page", before it was done. Reason: "lunch".'
    )
    check_left_behind(run)


@virtual
@pytest.mark.parametrize("at", [SafePoint.named("line"), SafePoint.AFTER_TOOLS, SafePoint.AFTER_TOOL], ids=repr)
async def test_another_ask_passes_the_point_by(at: SafePoint) -> None:
    pages = Pages()
    async with reader(pages).start("go") as run:
        await rounds(10)
        run.cancel(at)
        for gate in pages.gates:
            gate.set()
    assert pages.read == [0, 1, 2]
    assert states(run) == {"read": "finished"}
    check_left_behind(run)


@virtual
async def test_without_an_ask_a_safe_point_costs_nothing() -> None:
    pages = Pages()
    for gate in pages.gates:
        gate.set()
    async with reader(pages).start("go") as run:
        pass
    assert run.result.text == "done"


@virtual
async def test_calls_beside_the_one_that_stopped_complete() -> None:
    pages, gate = Pages(), Gate("gate", "pure")
    async with reader(pages, gate.tool).start("go") as run:
        await gate.started.wait()
        run.cancel(PAGE)
        pages.gates[0].set()
        await rounds(20)
        assert not run.ended, "calls in flight complete"
        gate.gate.set()
    assert states(run) == {"read": "stopped", "gate": "finished"}
    assert run.result.stop_reason == "cancelled"
    check_left_behind(run)


@virtual
async def test_one_call_may_be_stopped_at_its_point_alone() -> None:
    pages = Pages()
    async with reader(pages).start("go") as run:
        await rounds(10)
        node = next(each for each in run.tree.walk() if each.kind == "tool_call")
        receipt = node.cancel(PAGE)
        pages.gates[0].set()
        assert await receipt.wait() == "stopped"
    assert (run.result.stop_reason, run.result.text) == ("end_turn", "done")
    assert states(run) == {"read": "stopped"}
    check_left_behind(run)


@virtual
async def test_an_ask_is_not_for_a_sub_agents_tools_unless_it_is_recursive() -> None:
    for recursive in (False, True):
        pages = Pages()
        outer = Agent(
            "outer", model=ScriptedModel(call("reader", input="go"), say("done")), tools=[reader(pages).as_tool()]
        )
        async with outer.start("go") as run:
            await rounds(20)
            run.cancel(PAGE, recursive=recursive)
            for gate in pages.gates:
                gate.set()
        assert pages.read == ([0] if recursive else [0, 1, 2])
        check_left_behind(run)


@virtual
async def test_a_tool_that_catches_everything_still_leaves_at_its_point() -> None:
    @tool
    async def greedy(ctx: ToolContext) -> str:
        """Catch every exception."""
        try:
            await ctx.safe_point("page")
        except Exception:
            return "caught"
        return "passed"

    run = Agent("a", model=ScriptedModel(call("greedy"), say("done")), tools=[greedy]).start("go")
    run.cancel(PAGE)
    async with run:
        pass
    assert states(run) == {"greedy": "stopped"}


# -- threads -----------------------------------------------------------------------------------------------------------


class Threaded:
    """A plain function as a tool, held in its thread until it is let go."""

    def __init__(self) -> None:
        self.started = threading.Event()
        self.gate = threading.Event()
        self.seen: list[bool] = []
        self.ended = threading.Event()

    async def has_started(self) -> None:
        await asyncio.to_thread(self.started.wait, 30)

    def hold(self) -> None:
        self.started.set()
        assert self.gate.wait(30)

    def wait_until_asked(self, ctx: ToolContext) -> None:
        """Look at the flag until it is up, as a loop over chunks of work would."""
        self.started.set()
        end = time.monotonic() + 30
        while not ctx.cancel_requested and time.monotonic() < end:
            pass


def threaded(body: BaseTool) -> Agent[None]:
    return Agent("a", model=ScriptedModel(call(body.name), say("done")), tools=[body])


async def cancelled(run: Run[None], held: Threaded, at: SafePoint = SafePoint.NOW) -> None:
    async with run:
        await held.has_started()
        await run.cancel(at).wait()
    check_left_behind(run)


@virtual
async def test_a_plain_function_runs_in_a_thread_and_the_loop_goes_on() -> None:
    held = Threaded()

    @tool
    def work() -> str:
        """Work in a thread."""
        held.hold()
        return threading.current_thread().name

    async with threaded(work).start("go") as run:
        await held.has_started()
        await rounds(10)
        held.gate.set()
    assert results(run.result.messages)[0].content == "safepoint:a/work:call_1_1"
    check_left_behind(run)


@virtual
async def test_a_thread_tool_sees_that_it_is_to_stop_and_may_return() -> None:
    held = Threaded()

    @tool
    def work(ctx: ToolContext) -> str:
        """Stop when asked."""
        assert not ctx.cancel_requested
        held.wait_until_asked(ctx)
        return "as far as I got"

    run = threaded(work).start("go")
    await cancelled(run, held)
    assert states(run) == {"work": "finished"}
    assert run.result.stop_reason == "cancelled"
    assert run.result.orphans == ()


@virtual
async def test_check_leaves_the_tool_if_it_is_to_stop() -> None:
    held = Threaded()

    @tool
    def work(ctx: ToolContext) -> str:
        """Check when asked."""
        ctx.check()
        held.wait_until_asked(ctx)
        ctx.check()
        return "never"

    run = threaded(work).start("go")
    await cancelled(run, held)
    assert states(run) == {"work": "cut"}
    assert run.result.ledger[0].error is None


@virtual
async def test_a_safe_point_ask_does_not_set_the_flag() -> None:
    held = Threaded()

    @tool
    def work(ctx: ToolContext) -> str:
        """Look after a while."""
        held.hold()
        ctx.check()
        held.seen.append(ctx.cancel_requested)
        return "done"

    async with threaded(work).start("go") as run:
        await held.has_started()
        run.cancel(SafePoint.AFTER_TOOLS)
        await rounds(5)
        held.gate.set()
    assert held.seen == [False]
    assert states(run) == {"work": "finished"}


@virtual
async def test_a_thread_that_looks_at_nothing_is_abandoned_and_holds_nobody() -> None:
    held = Threaded()

    @tool
    def work() -> str:
        """Look at nothing."""
        held.hold()
        return "late"

    run = threaded(work).start("go")
    began = asyncio.get_running_loop().time()
    await cancelled(run, held)
    assert asyncio.get_running_loop().time() - began == pytest.approx(0.25)  # pyright: ignore[reportUnknownMemberType]  # its stub
    (orphan,) = run.result.orphans
    assert orphan.still_running
    assert "self.gate.wait(30)" in orphan.stack()
    assert (run.result.ledger[0].state, run.result.ledger[0].still_running) == ("cut", True)
    held.gate.set()
    assert orphan.thread is not None
    await asyncio.to_thread(orphan.thread.join)
    await rounds(5)
    assert orphan.result == "late"


@virtual
async def test_an_abandoned_thread_that_looks_at_last_is_told_to_leave() -> None:
    held = Threaded()

    @tool
    def work(ctx: ToolContext) -> str:
        """Look much later."""
        held.hold()
        held.seen.append(ctx.cancel_requested)
        try:
            ctx.safe_point_sync("page")
        except StopTool:
            held.seen.append(True)
            held.ended.set()
            raise
        return "never"

    run = threaded(work).start("go")
    await cancelled(run, held)
    held.gate.set()
    await asyncio.to_thread(held.ended.wait, 30)
    await rounds(5)
    assert held.seen == [True, True]
    assert isinstance(run.result.orphans[0].error, StopTool)


@virtual
@pytest.mark.parametrize("at", [PAGE, SafePoint.ANY, SafePoint.AFTER_TOOLS], ids=repr)
async def test_a_thread_tool_has_safe_points_too(at: SafePoint) -> None:
    held = Threaded()

    @tool
    def work(ctx: ToolContext) -> str:
        """Stop at a page."""
        held.hold()
        ctx.safe_point_sync("page", save=1)
        return "passed"

    async with threaded(work).start("go") as run:
        await held.has_started()
        run.cancel(at)
        held.gate.set()
    assert states(run) == {"work": "finished" if at == SafePoint.AFTER_TOOLS else "stopped"}
    assert run.result.stop_reason == "cancelled"
    check_left_behind(run)


@virtual
async def test_a_run_inside_a_thread_tool_joins_the_tree_and_now_reaches_it_there() -> None:
    gate, inside = threading.Event(), list[str]()

    @tool
    async def wait() -> None:
        """Wait for ever."""
        gate.set()
        await asyncio.get_running_loop().create_future()

    inner = Agent("inner", model=ScriptedModel(call("wait")), tools=[wait])

    @tool
    def delegate() -> str:
        """Run another agent on a loop of its own."""
        result = inner.run_sync("go")
        inside.append(result.stop_reason)
        return result.stop_reason

    async with threaded(delegate).start("go") as run:
        await asyncio.to_thread(gate.wait, 30)
        assert [node.name for node in run.tree.walk()] == ["a", "delegate", "inner", "wait"]
        await run.cancel().wait()
    assert inside == ["cancelled"]
    assert states(run) == {"delegate": "finished"}
    assert run.result.orphans == ()
    check_left_behind(run)


@virtual
async def test_a_thread_tool_may_cancel_its_run_and_not_wait_for_it() -> None:
    errors: list[str] = []

    @tool
    def stop(ctx: ToolContext) -> str:
        """Cancel the own run."""
        receipt = ctx.run.cancel(reason="enough")
        try:
            receipt.wait_sync(timeout=30)
        except RuntimeError as error:
            errors.append(str(error))
        return "asked"

    async with threaded(stop).start("go") as run:
        await passes(1)
    assert run.result.stop_reason == "cancelled"
    assert ["which it is part of: return, and wait from outside" in error for error in errors] == [True]
    check_left_behind(run)

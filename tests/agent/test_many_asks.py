"""Thousands of asks cost a thousand times what one costs, wherever they come from, and every receipt tells the truth.

What is counted is calls of functions, which the machine's load does not change: ten times as many asks may make at most
twelve times as many calls.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeAlias

import pytest

from safepoint import Agent, CancelToken, Run, SafePoint, tool
from safepoint._core.groups import GroupReceipt
from safepoint._core.receipts import Receipt
from safepoint.agent.events import CancelRequested, RungReached
from safepoint.agent.hooks import Hooks
from safepoint.agent.work_runner import ANNOUNCED_AT_ONCE
from safepoint.testing import ScriptedModel, call, say
from safepoint.testing.clock import run_virtual
from tests.agent.oracle import check_left_behind
from tests.agent.workshop import Gate

AnyRun: TypeAlias = Run[Any, Any]  # Any: a run of any agent
Ask: TypeAlias = Callable[[AnyRun], Receipt]
FEW, MANY = 100, 1000
WAYS = {
    "now": SafePoint.NOW,
    "after tools": SafePoint.AFTER_TOOLS,
    "any": SafePoint.ANY,
    "elsewhere": SafePoint.named("elsewhere"),
}


class Bench:
    """A run whose tool waits until it is let go; `deep`: the tool of a sub-agent."""

    def __init__(self, *, deep: bool = False, hooks: tuple[Hooks, ...] = ()) -> None:
        self.gate = Gate("slow")
        worker = Agent("worker", model=ScriptedModel(call("slow"), say("done")), tools=[self.gate.tool], hooks=hooks)
        model = ScriptedModel(call("worker", input="go"), say("fine"))
        self.agent = Agent("boss", model=model, tools=[worker.as_tool()]) if deep else worker


class Calls:
    """Counts the calls of functions in its block."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> Calls:
        sys.setprofile(self._seen)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _seen(self, _frame: object, event: str, _arg: object) -> None:
        self.count += event in ("call", "c_call")


def check_linear(scenario: Callable[[int], Coroutine[Any, Any, int]]) -> None:  # Any: what a coroutine yields
    """The scenario makes that many asks and returns the number of calls."""
    few, many = (run_virtual(partial(scenario, number)) for number in (FEW, MANY))
    assert many <= 12 * few, f"{FEW} asks: {few} calls; {MANY} asks: {many} calls"


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("turns", ["all at once", "a turn of the loop after each"])
def test_asks_of_a_run_with_a_tool_under_way_cost_linear_time(turns: str, way: str, deep: bool) -> None:
    async def scenario(number: int) -> int:
        bench = Bench(deep=deep)
        async with bench.agent.start("go") as run:
            await bench.gate.started.wait()
            with Calls() as calls:
                receipts = list[Receipt]()
                for _ in range(number):
                    receipts.append(run.cancel(WAYS[way], recursive=True))
                    if turns != "all at once":
                        await asyncio.sleep(0)
                bench.gate.gate.set()
                await run.wait()
                outcomes = {(receipt.accepted, receipt.outcome, receipt.contributed) for receipt in receipts}
        check_left_behind(run)
        if way == "elsewhere":
            assert outcomes == {(True, "finished_first", False)}
        elif way == "now" and turns != "all at once":
            # Those in time were no part of a stop that was decided before them; the others were too late.
            rest = {(True, "stopped", True), (True, "stopped", False), (False, "finished_first", False)}
            assert outcomes <= rest
        else:
            assert outcomes == {(True, "stopped", True)}
        return calls.count

    check_linear(scenario)


@pytest.mark.parametrize("turns", ["all at once", "a turn of the loop after each"])
@pytest.mark.parametrize("order", ["oldest first", "newest first", "each at once"])
def test_asks_that_are_taken_back_cost_linear_time(order: str, turns: str) -> None:
    async def scenario(number: int) -> int:
        bench = Bench(deep=True)
        async with bench.agent.start("go") as run:
            await bench.gate.started.wait()
            with Calls() as calls:
                kept = run.cancel(SafePoint.AFTER_TOOLS, reason="this one stands")
                receipts = list[Receipt]()
                for _ in range(number):
                    receipts.append(run.cancel(SafePoint.ANY, recursive=True, within=60))
                    if order == "each at once":
                        assert receipts[-1].withdraw()
                if order == "newest first":
                    receipts.reverse()
                for receipt in receipts if order != "each at once" else ():
                    assert receipt.withdraw()
                    if turns != "all at once":
                        await asyncio.sleep(0)
                assert run.node.request() == kept.effective
                bench.gate.gate.set()
                await run.wait()
                assert {receipt.outcome for receipt in receipts} == {"withdrawn"}
                assert not any(receipt.contributed for receipt in receipts)
        assert (kept.outcome, kept.contributed) == ("stopped", True)
        assert run.result.cancellation is not None
        assert [reason.text for reason in run.result.cancellation.reasons] == ["this one stands"]
        check_left_behind(run)
        return calls.count

    check_linear(scenario)


@pytest.mark.parametrize("who", ["token", "agent"])
def test_asks_of_many_runs_cost_linear_time(who: str) -> None:
    async def scenario(number: int) -> int:
        token, gates = CancelToken(), [Gate("slow") for _ in range(3)]
        models = ScriptedModel(*[call("slow")] * 3, say("done"), repeat=True)
        waiting = iter(gates)

        async def slow() -> str:
            gate = next(waiting)
            gate.started.set()
            await gate.gate.wait()
            return "x"

        agent = Agent("many", model=models, tools=[tool(slow)])
        async with (
            agent.start("go", token=token) as one,
            agent.start("go", token=token) as two,
            agent.start("go", token=token) as three,
        ):
            for gate in gates:
                await gate.started.wait()
            with Calls() as calls:
                ask = token.cancel if who == "token" else agent.cancel
                receipts: list[GroupReceipt] = [ask(SafePoint.AFTER_TOOLS) for _ in range(number)]
                for receipt in receipts[::2]:
                    assert receipt.withdraw()
                for gate in gates:
                    gate.gate.set()
                for run in (one, two, three):
                    await run.wait()
                assert {receipt.outcome for receipt in receipts[::2]} == {"withdrawn"}
                assert {(receipt.outcome, receipt.contributed) for receipt in receipts[1::2]} == {("stopped", True)}
        for run in (one, two, three):
            assert run.result.cancellation is not None
            assert len(run.result.cancellation.reasons) == number // 2
            check_left_behind(run)
        return calls.count

    check_linear(scenario)


def test_asks_of_threads_all_stand_and_cost_linear_time() -> None:
    async def scenario(number: int) -> int:
        bench = Bench(deep=True)
        async with bench.agent.start("go") as run:
            await bench.gate.started.wait()
            receipts: list[Receipt] = []
            counted: list[int] = []

            def ask() -> None:
                with Calls() as calls:
                    receipts.extend([run.cancel(SafePoint.AFTER_TOOLS, recursive=True) for _ in range(number // 4)])
                counted.append(calls.count)

            for _ in range(4):
                thread = threading.Thread(target=ask)
                thread.start()
                thread.join()
            with Calls() as calls:
                bench.gate.gate.set()
                await run.wait()
        assert len(receipts) == number
        assert {(receipt.outcome, receipt.contributed) for receipt in receipts} == {("stopped", True)}
        check_left_behind(run)
        return calls.count + sum(counted)

    check_linear(scenario)


def test_asks_that_come_before_the_loop_has_woken_share_one_wake_up() -> None:
    async def scenario() -> None:
        bench = Bench()
        async with bench.agent.start("go") as run:
            await bench.gate.started.wait()
            looks = list[int]()
            seen = run.node.on_change

            def look() -> None:
                looks.append(1)
                seen()

            run.node.on_change = look
            for _ in range(ANNOUNCED_AT_ONCE):
                run.cancel(SafePoint.AFTER_TOOLS)
            await asyncio.sleep(0)
            assert len(looks) == 1
            run.cancel()
            await asyncio.sleep(0)
            assert len(looks) == 2, "the next ask wakes it again"

    run_virtual(scenario)


class Hearing(Hooks):
    def __init__(self) -> None:
        self.heard: list[str] = []

    async def on_cancel_requested(self, run: AnyRun, ask: Any) -> None:  # Any: an Ask
        self.heard.append(ask.id)


def test_every_ask_is_announced_once_in_order_and_never_more_than_a_few_in_one_turn_of_the_loop() -> None:
    async def scenario() -> None:
        hearing = Hearing()
        bench, number = Bench(hooks=(hearing,)), 10 * ANNOUNCED_AT_ONCE
        async with bench.agent.start("go") as run:
            await bench.gate.started.wait()
            receipts = [run.cancel(SafePoint.AFTER_TOOLS) for _ in range(number)]
            told = [0]
            while told[-1] < number:
                await asyncio.sleep(0)
                told.append(len(announced(run)))
            assert max(after - before for before, after in itertools.pairwise(told)) <= ANNOUNCED_AT_ONCE
            bench.gate.gate.set()
        assert announced(run) == hearing.heard == [receipt.asked.id for receipt in receipts]
        check_left_behind(run)

    run_virtual(scenario)


def announced(run: AnyRun) -> list[str]:
    return [event.ask.id for event in run.kept_events() if isinstance(event, CancelRequested)]


@pytest.mark.parametrize("hard", [SafePoint.NOW, SafePoint.FORCE])
def test_the_ask_that_pushes_is_told_before_what_it_brings_about_also_behind_a_thousand_others(hard: SafePoint) -> None:
    async def scenario() -> None:
        bench = Bench()
        async with bench.agent.start("go") as run:
            await bench.gate.started.wait()
            mild = [run.cancel(SafePoint.named("elsewhere")) for _ in range(MANY)]
            pushing = run.cancel(hard)
        kinds = [
            event.ask.id if isinstance(event, CancelRequested) else "rung"
            for event in run.kept_events()
            if isinstance(event, CancelRequested | RungReached)
        ]
        assert kinds.index(pushing.asked.id) < kinds.index("rung") < len(kinds) - 1, "and it is not held up by them"
        assert sorted(set(kinds) - {"rung"}) == sorted([pushing.asked.id, *[each.asked.id for each in mild]])
        assert len(kinds) - kinds.count("rung") == MANY + 1, "each is told once"
        assert {each.outcome for each in mild} == {"stopped"}
        assert not any(each.contributed for each in mild)
        check_left_behind(run)

    run_virtual(scenario)


def test_named_points_of_thousands_of_asks_are_all_heard() -> None:
    async def scenario() -> None:
        bench = Bench()
        async with bench.agent.start("go") as run:
            await bench.gate.started.wait()
            receipts = [run.cancel(SafePoint.named(f"page {number}")) for number in range(MANY)]
            request = run.node.request()
            assert request is not None
            assert all(request.at.covers(f"point:page {number}") for number in range(MANY))
            for receipt in receipts[1:]:
                assert receipt.withdraw()
            request = run.node.request()
            assert request is not None
            assert request.at == SafePoint.named("page 0")
            bench.gate.gate.set()

    run_virtual(scenario)


@pytest.mark.parametrize("place", ["after_tools", "point:page 7", "after_model"])
def test_a_check_costs_the_same_however_many_asks_name_other_points(place: str) -> None:
    async def scenario(number: int) -> int:
        bench = Bench(deep=True)
        async with bench.agent.start("go") as run:
            await bench.gate.started.wait()
            for each in range(number):
                run.cancel(SafePoint.named(f"page {each}"), recursive=True)
            run.cancel(SafePoint.AFTER_TOOLS, recursive=True)
            deepest = list(run.tree.walk())[-2]
            with Calls() as calls:
                stop = deepest.check_safe_point(place)
            assert (stop is None) is (place == "after_model")
            bench.gate.gate.set()
        return calls.count

    # With the last ask, powers of two: the asks are then one tree, which costs one call to add up.
    few, many = (run_virtual(partial(scenario, number)) for number in (127, 1023))
    assert few == many

"""What a node decides it decides once, and nobody is woken, pushed or kept alive for nothing."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable

import pytest

from safepoint._core.clock import Clock
from safepoint._core.points import Level, SafePoint
from safepoint._core.tree import Node, Propagation
from tests.core.grove import BY_ITSELF, STOPPED, call, changes, end, new_run, pushes, run
from tests.core.piece import settled
from tests.virtual import now, passes, virtual

SAFE = SafePoint.AFTER_TOOLS


class Ticking(Clock):
    """A clock on which a second passes whenever somebody looks at it."""

    __slots__ = ("reads",)

    def __init__(self) -> None:
        super().__init__(asyncio.get_running_loop())
        self.reads = 0
        self.now = self._tick

    def _tick(self) -> float:
        self.reads += 1
        return float(self.reads)


def ticking(above: Node | None = None) -> Node:
    """A live node on such a clock; or a tool call below one that is."""
    node = (
        new_run() if above is None else Node("call", "call", "tool_call", parent=above, propagation=Propagation.NOTHING)
    )
    node.attach(asyncio.get_running_loop(), Ticking() if above is None else above.clock)
    return node


DECISIONS: dict[str, Callable[[Node], object]] = {
    "evaluate": Node.evaluate,
    "judge": lambda node: node.check_safe_point("after_model"),
    "check_stop": Node.check_stop,
    "may_start": Node.may_start,
    "answer": Node.answer,
    "pause": Node.pause,
    "request": Node.request,
}


@virtual
@pytest.mark.parametrize("name", DECISIONS)
@pytest.mark.parametrize("inside", [False, True])
async def test_a_decision_reads_the_clock_once(name: str, inside: bool) -> None:
    node = ticking()
    nodes = [ticking(node), node] if inside else [node]
    clock = node.clock
    assert isinstance(clock, Ticking)
    node.cancel(SAFE, within=3)
    before = clock.reads
    DECISIONS[name](nodes[0])
    assert clock.reads == before + 1
    end(*nodes)


@virtual
@pytest.mark.parametrize("seconds", range(1, 9))
async def test_a_node_that_may_start_nothing_is_stopping_and_says_that_the_deadline_did_it(seconds: int) -> None:
    node = ticking()
    node.cancel(SAFE, within=seconds)
    while node.may_start():
        assert node.stop is None
    assert node.stop is not None
    assert (node.stop.place, node.stop.timed_out) == ("now", True)
    end(node)


@virtual
async def test_a_node_that_stops_at_a_safe_point_starts_nothing_more() -> None:
    node = run()
    node.cancel(SAFE)
    assert node.check_safe_point("after_tools") is not None
    assert not node.may_start()
    end(node)


@virtual
async def test_now_is_no_place_also_for_a_node_that_stands_at_one() -> None:
    node = run()
    node.cancel()
    stop = node.check_safe_point("after_tools")
    assert stop is not None
    assert stop.place == "now"
    end(node)


@virtual
async def test_what_stopped_a_node_is_decided_once_and_only_gets_stronger() -> None:
    node = run()
    first = node.cancel()
    node.check_stop()
    node.cancel()
    await settled()
    assert node.stop is not None
    assert node.stop.request.asks == (first.asked,)
    end(node)


@virtual
async def test_one_more_now_for_a_node_that_is_pushed_changes_nothing_and_can_be_taken_back() -> None:
    node = run()
    pushed = pushes(node)
    node.cancel()
    await settled()
    again = node.cancel()
    await settled()
    assert pushed == [Level.NOW]
    assert again.withdraw()
    end(node)


@virtual
async def test_force_after_a_deadline_does_not_hide_that_the_deadline_had_come() -> None:
    node = run()
    node.cancel(SAFE, within=1)
    await passes(1)
    node.cancel(SafePoint.FORCE)
    await settled()
    assert node.stop is not None
    assert (node.stop.level, node.stop.timed_out) == (Level.FORCE, True)
    end(node)


@virtual
async def test_a_deadline_that_has_come_is_now_for_those_below() -> None:
    root = run("root")
    tools = [call(f"tool{number}", root) for number in range(2)]
    root.cancel(SAFE, within=1)
    one, other = (tool.request() for tool in tools)
    assert one is not None
    assert one is other, "it is folded once for all children"
    assert one.at == SAFE
    await passes(1)
    request = tools[0].request()
    assert request is not None
    assert request.at == SafePoint.NOW
    end(*tools, root)


@virtual
async def test_a_deadline_wakes_nobody_once_it_is_taken_back_or_now_stands_anyway() -> None:
    for hard in (False, True):
        node = run()
        receipt = node.cancel(SAFE, within=1)
        await settled()
        if hard:
            node.cancel()
        else:
            receipt.withdraw()
        looked = changes(node)
        await settled()
        assert looked == [hard], "that was looked at"
        await passes(5)
        assert looked == [hard]
        end(node)


@virtual
async def test_a_sealed_node_is_pushed_no_more_and_its_deadline_keeps_nothing_alive() -> None:
    root = run("root")
    tool = call("tool", root)
    tool.cancel(SAFE, within=3600)
    await settled()
    pushed = pushes(tool)
    tool.seal()
    root.cancel()
    await settled()
    assert pushed == []
    tool.finish(BY_ITSELF)
    end(root)
    gone = weakref.ref(tool)
    del tool, root
    gc.collect()
    assert gone() is None


@virtual
async def test_an_ended_node_lets_go_of_whoever_drove_it() -> None:
    class Driver:
        def push(self, level: Level) -> None: ...
        def changed(self) -> None: ...

    driver, node = Driver(), run()
    node.on_push, node.on_change = driver.push, driver.changed
    gone = weakref.ref(driver)
    del driver
    end(node)
    assert gone() is None


@virtual
async def test_a_stop_of_one_call_by_itself_wakes_nobody_above_it() -> None:
    root = run("root")
    tool = call("tool", root)
    looked = changes(root)
    tool.cancel()
    await settled()
    assert tool.stop is not None
    assert looked == []
    tool.seal()
    tool.finish(STOPPED)
    below = run("below", parent=root)
    below.answer()
    root.cancel()
    await settled()
    looked.clear()
    for _ in range(3):
        assert not below.may_start()
    await settled()
    assert looked == [], "the ask was marked before"
    end(below, root)


@virtual
async def test_a_node_that_waits_for_a_person_ends_by_itself_unless_any_ask_stands() -> None:
    alone, asked, stopped = run("alone"), run("asked"), run("stopped")
    assert alone.pause() is None
    assert alone.answered
    asked.cancel(SafePoint.BEFORE_EFFECT | SafePoint.AFTER_TOOLS)
    stop = asked.pause()
    assert stop is not None
    assert (stop.place, asked.answered) == ("after_tools", False)
    stopped.cancel(SAFE)
    before = stopped.check_safe_point("after_tools")
    mild = stopped.cancel(SafePoint.AFTER_MODEL)
    assert stopped.pause() is before
    assert mild.withdraw(), "nobody has acted on it"
    end(alone, asked, stopped)


@virtual
async def test_an_ask_after_the_answer_is_no_request_of_the_node() -> None:
    node = run()
    node.answer()
    receipt = node.cancel()
    assert node.request() is None
    assert receipt.effective is None
    end(node)


@virtual
async def test_a_child_that_has_had_its_time_goes_on_without_its_parent() -> None:
    root = run("root")
    tool, other = call("tool", root), call("other", root)
    tool.part_with(other)
    assert root.children == [tool, other], "it is no child of that one"
    root.part_with(tool)
    assert (root.children, tool.parent) == ([other], None)
    root.cancel()
    await settled()
    assert tool.request() is None
    end(tool, other, root)


@virtual
async def test_a_deadline_is_now_for_those_below_in_the_moment_it_comes_before_anybody_is_told() -> None:
    root = run("root")
    tool = call("tool", root)
    seen: list[SafePoint] = []

    def look() -> None:
        request = tool.request()
        assert request is not None
        assert root.pushed is Level.NONE
        seen.append(request.at)

    asyncio.get_running_loop().call_at(now() + 1, look)
    root.cancel(SAFE, within=1)
    assert tool.request() is not None
    await passes(1)
    assert seen == [SafePoint.NOW]
    end(tool, root)

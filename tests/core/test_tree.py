"""Every arrow of the drawing in `tree.py`, and how a request travels from a node to those below it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from safepoint._core.points import NAMED, Level, SafePoint
from safepoint._core.reasons import Reason, Source
from safepoint._core.tree import Node, NodeState, Propagation
from safepoint.errors import InternalError
from tests.core.grove import BY_ITSELF, STOPPED, call, changes, end, new_run, pushes, run
from tests.core.piece import settled
from tests.virtual import now, passes, virtual

SAFE = SafePoint.AFTER_TOOLS


# -- the drawing -------------------------------------------------------------------------------------------------------


@virtual
async def test_a_node_that_ends_by_itself_goes_from_new_over_live_and_sealed_to_ended() -> None:
    node = new_run()
    states = [node.state]
    loop = asyncio.get_running_loop()
    node.attach(loop, node.clock)
    states.append(node.state)
    node.seal()
    states.append(node.state)
    assert not node.ended.is_set
    node.finish(BY_ITSELF)
    states.append(node.state)
    assert states == [NodeState.NEW, NodeState.LIVE, NodeState.SEALED, NodeState.ENDED]
    assert node.ended.is_set
    assert node.ending is BY_ITSELF
    assert node.stop is None


@virtual
async def test_a_node_that_is_stopped_at_a_safe_point_is_stopping_before_it_is_sealed() -> None:
    node = run()
    node.cancel(SAFE)
    assert node.check_safe_point("after_model") is None
    assert node.state == "live"
    stop = node.check_safe_point("after_tools")
    assert stop is not None
    assert (stop.place, stop.level, stop.timed_out, stop.at) == ("after_tools", Level.SAFE, False, now())
    assert node.state == "stopping"
    assert node.check_safe_point("after_model") is stop, "it is decided once"
    end(node)
    assert node.state == "ended"


@virtual
@pytest.mark.parametrize(("at", "place"), [(SafePoint.NOW, "now"), (SafePoint.FORCE, "force")])
async def test_now_and_force_stop_a_node_where_it_stands(at: SafePoint, place: str) -> None:
    node = run()
    pushed = pushes(node)
    node.cancel(at)
    assert node.state == "live", "asking only writes and wakes"
    await settled()
    assert node.state == "stopping"
    assert pushed == [at.level]
    assert node.stop is not None
    assert (node.stop.place, node.stop.level) == (place, at.level)
    end(node)


def moves() -> dict[str, Callable[[Node], object]]:
    return {
        "attach": lambda node: node.attach(asyncio.get_running_loop(), node.clock),
        "seal": lambda node: node.seal(),
        "finish": lambda node: node.finish(BY_ITSELF),
    }


ILLEGAL = [
    ("new", "seal", "sealed"),
    ("new", "finish", "ended"),
    ("live", "attach", "live"),
    ("live", "finish", "ended"),
    ("stopping", "attach", "live"),
    ("stopping", "finish", "ended"),
    ("sealed", "attach", "live"),
    ("sealed", "seal", "sealed"),
    ("ended", "attach", "live"),
    ("ended", "seal", "sealed"),
    ("ended", "finish", "ended"),
]


@virtual
@pytest.mark.parametrize(("state", "move", "target"), ILLEGAL)
async def test_a_move_that_is_not_drawn_raises(state: str, move: str, target: str) -> None:
    node = new_run()
    if state != "new":
        node.attach(asyncio.get_running_loop(), node.clock)
    if state == "stopping":
        node.cancel()
        node.check_stop()
    if state in ("sealed", "ended"):
        node.seal()
    if state == "ended":
        node.finish(BY_ITSELF)
    assert node.state == state
    with pytest.raises(InternalError, match=f"^run: {state} → {target} is not a move$"):
        moves()[move](node)


# -- what a node looks like --------------------------------------------------------------------------------------------


@virtual
async def test_a_node_has_a_path_a_parent_and_live_children() -> None:
    root = run("root")
    tool = Node("call_1", "search", "tool_call", parent=root, propagation=Propagation.RECURSIVE)
    assert root.children == []
    tool.attach(asyncio.get_running_loop(), root.clock)
    sub = run("sub", parent=tool)
    assert (tool.id, tool.name, tool.kind, tool.parent) == ("call_1", "search", "tool_call", root)
    assert (root.path, tool.path, sub.path) == ("root", "root/search:call_1", "root/search:call_1/sub")
    assert list(root.walk()) == [root, tool, sub]
    assert root.holds(root)
    assert root.holds(sub)
    assert not sub.holds(root)
    elsewhere = run("elsewhere")
    assert not tool.holds(elsewhere)
    assert repr(tool) == "<tool_call root/search:call_1 live>"
    end(sub)
    assert list(root.walk()) == [root, tool]
    end(tool, root, elsewhere)


@virtual
async def test_a_node_knows_the_thread_its_loop_runs_in() -> None:
    node, elsewhere = run(), list[bool]()
    assert node.runs_in_this_thread()
    thread = threading.Thread(target=lambda: elsewhere.append(node.runs_in_this_thread()))
    thread.start()
    thread.join()
    assert elsewhere == [False]
    assert not new_run().runs_in_this_thread()
    end(node)


@virtual
async def test_after_the_end_nobody_is_told_of_anything() -> None:
    node = run()
    pushed, changed = pushes(node), changes(node)
    end(node)
    node.cancel()
    await settled()
    node.evaluate()
    assert (pushed, changed) == ([], [])


# -- asks --------------------------------------------------------------------------------------------------------------


@virtual
async def test_an_ask_before_the_start_is_found_at_the_start() -> None:
    node = new_run()
    pushed = pushes(node)
    receipt = node.cancel()
    assert receipt.accepted
    await settled()
    assert (pushed, node.state) == ([], NodeState.NEW)
    node.attach(asyncio.get_running_loop(), node.clock)
    assert (pushed, node.state) == ([Level.NOW], NodeState.STOPPING)
    end(node)


@virtual
async def test_an_ask_from_another_thread_wakes_the_loop() -> None:
    node = run()
    changed = changes(node)
    threading.Thread(target=node.cancel).start()
    async with asyncio.timeout(5):
        await asyncio.to_thread(wait_for_ask, node)
    await settled()
    assert changed == [True]
    assert node.state is NodeState.STOPPING
    end(node)


def wait_for_ask(node: Node) -> None:
    while not node.log.standing().asks:
        pass


@virtual
async def test_force_after_now_pushes_once_more_and_the_stop_gets_harder() -> None:
    node = run()
    pushed = pushes(node)
    node.cancel()
    node.cancel()
    await settled()
    first = node.stop
    node.cancel(SafePoint.FORCE, reason="hurry")
    await settled()
    assert pushed == [Level.NOW, Level.FORCE]
    assert node.stop is not None
    assert first is not None
    assert (node.stop.level, node.stop.place, node.stop.at) == (Level.FORCE, "now", first.at)
    assert len(node.stop.request.asks) == 3
    node.cancel(SafePoint.FORCE)
    await settled()
    assert pushed == [Level.NOW, Level.FORCE]
    end(node)


@virtual
async def test_now_while_stopping_at_a_safe_point_makes_that_stop_harder() -> None:
    node = run()
    pushed = pushes(node)
    node.cancel(SAFE)
    node.check_safe_point("after_tools")
    node.cancel()
    await settled()
    assert pushed == [Level.NOW]
    assert node.stop is not None
    assert (node.stop.level, node.stop.place, node.stop.timed_out) == (Level.NOW, "after_tools", False)
    assert node.stop.escalated
    end(node)


@virtual
async def test_a_milder_ask_while_stopping_changes_nothing() -> None:
    node = run()
    node.cancel()
    await settled()
    before = node.stop
    node.cancel(SafePoint.ANY)
    await settled()
    assert node.check_safe_point("after_tool") is before
    end(node)


@virtual
async def test_no_safe_point_here_means_only_now_and_force_count() -> None:
    node = run()
    node.cancel(SafePoint.ANY)
    assert node.check_stop() is None
    node.cancel()
    stop = node.check_stop()
    assert stop is not None, "recorded a moment ago and not yet told"
    assert stop.level is Level.NOW
    end(node)


# -- the answer --------------------------------------------------------------------------------------------------------


@virtual
@pytest.mark.parametrize("at", [SafePoint.ANY, SAFE, SafePoint.NOW, SafePoint.FORCE])
async def test_an_ask_after_the_answer_finds_the_node_finished(at: SafePoint) -> None:
    node = run()
    assert node.answer() is None
    pushed = pushes(node)
    node.cancel(at)
    await settled()
    assert node.answered
    assert node.check_safe_point("after_tools") is None
    assert node.stop is None
    assert pushed == ([at.level] if at.level >= Level.NOW else []), "NOW still cuts what follows the answer"
    end(node)


@virtual
async def test_now_before_the_answer_wins_and_a_safe_point_ask_does_not() -> None:
    asked, safe = run("asked"), run("safe")
    asked.cancel()
    assert asked.answer() is not None
    assert not asked.answered
    safe.cancel(SafePoint.ANY)
    assert safe.answer() is None
    assert safe.answered
    end(asked, safe)


@virtual
async def test_force_after_an_answer_that_came_too_late_presses_and_is_no_part_of_the_stop() -> None:
    node = run()
    node.cancel()
    assert node.answer() is not None
    await settled()
    pushed, late = pushes(node), node.cancel(SafePoint.FORCE)
    await settled()
    assert pushed == [Level.FORCE]
    assert node.stop is not None
    assert (node.stop.level, late.asked.id in node.stop.request.ids) == (Level.NOW, False)
    end(node)


@virtual
async def test_now_from_above_makes_a_stop_harder_also_beside_an_ask_that_is_late() -> None:
    above = run()
    node = call("call", above)
    node.cancel(SAFE)
    assert node.check_safe_point("after_tools") is not None
    assert node.answer() is not None
    node.cancel(SAFE)
    above.cancel()
    await settled()
    assert node.stop is not None
    assert (node.stop.place, node.stop.level) == ("after_tools", Level.NOW)
    end(node, above)


@virtual
async def test_now_from_above_does_not_stop_a_node_that_has_answered() -> None:
    above = run()
    node = call("call", above)
    assert node.answer() is None
    pushed = pushes(node)
    above.cancel()
    await settled()
    assert pushed == [Level.NOW], "it still cuts what follows the answer"
    assert node.stop is None
    assert node.state is NodeState.LIVE
    end(node, above)


# -- deadlines ---------------------------------------------------------------------------------------------------------


@virtual
async def test_a_deadline_turns_a_safe_point_request_into_now() -> None:
    node = run()
    pushed = pushes(node)
    node.cancel(SAFE, within=3)
    await passes(2.9)
    assert pushed == []
    await passes(0.1)
    await settled()
    assert pushed == [Level.NOW]
    assert node.stop is not None
    assert (node.stop.timed_out, node.stop.escalated, node.stop.place) == (True, True, "now")
    end(node)


@virtual
async def test_the_earliest_deadline_counts_and_never_moves_back() -> None:
    node, began = run(), now()
    told: list[float] = []
    node.on_push = lambda _level: told.append(now() - began)
    node.cancel(SAFE, within=9)
    node.cancel(SafePoint.AFTER_MODEL, within=2)
    node.cancel(SafePoint.AFTER_TOOL, within=5)
    await passes(10)
    assert told == [2.0]
    end(node)


@virtual
async def test_a_deadline_that_passes_while_stopping_at_a_safe_point_timed_it_out() -> None:
    node = run()
    pushed = pushes(node)
    receipt = node.cancel(SAFE, within=3)
    stop = node.check_safe_point("after_tools")
    assert stop is not None
    assert not stop.timed_out
    await passes(3)
    await settled()
    assert pushed == [Level.NOW]
    assert node.stop is not None
    assert (node.stop.level, node.stop.place) == (Level.NOW, "after_tools")
    assert (node.stop.timed_out, node.stop.escalated) == (True, True)
    end(node)
    assert receipt.outcome == "escalated"
    assert receipt.contributed


@virtual
async def test_an_ask_taken_back_takes_its_deadline_along() -> None:
    node = run()
    pushed = pushes(node)
    receipt = node.cancel(SAFE, within=3)
    await passes(1)
    assert receipt.withdraw()
    await passes(5)
    assert pushed == []
    end(node)


@virtual
async def test_a_deadline_that_has_passed_before_the_start_counts_at_the_start() -> None:
    node = new_run()
    node.cancel(SafePoint.ANY, within=1)
    await passes(2)
    pushed = pushes(node)
    node.attach(asyncio.get_running_loop(), node.clock)
    assert pushed == [Level.NOW]
    assert node.stop is not None
    assert node.stop.timed_out
    end(node)


@virtual
async def test_one_deadline_covers_all_that_is_below() -> None:
    root = run("root")
    tool = call("tool", root, Propagation.RECURSIVE)
    sub = run("sub", parent=tool)
    inner = call("inner", sub)
    told = [pushes(node) for node in (root, tool, sub, inner)]
    root.cancel(SAFE, within=3, recursive=True)
    await passes(3)
    await settled()
    assert told == [[Level.NOW]] * 4
    end(inner, sub, tool, root)


@virtual
async def test_a_sealed_node_has_no_timer_left() -> None:
    node = run()
    pushed = pushes(node)
    node.cancel(SAFE, within=3)
    await settled()
    node.seal()
    await passes(5)
    assert pushed == []
    node.finish(STOPPED)


# -- down the tree -----------------------------------------------------------------------------------------------------

ASKS = {
    "safe": (SafePoint.named("page"), False),
    "recursive": (SafePoint.named("page"), True),
    "now": (SafePoint.NOW, False),
    "force": (SafePoint.FORCE, False),
}
# Who hears of what was asked of `root`, with: root → a tool call → a run inside it → that run's own tool call.
REACHES = {
    # passing of the tool call        asked        tool   inside inner
    (Propagation.RECURSIVE, "safe"): (True, False, False),
    (Propagation.RECURSIVE, "recursive"): (True, True, True),
    (Propagation.RECURSIVE, "now"): (True, True, True),
    (Propagation.RECURSIVE, "force"): (True, True, True),
    (Propagation.NOTHING, "safe"): (True, False, False),
    (Propagation.NOTHING, "recursive"): (True, False, False),
    (Propagation.NOTHING, "now"): (True, True, True),
    (Propagation.NOTHING, "force"): (True, True, True),
}


@virtual
@pytest.mark.parametrize(("propagation", "asked"), list(REACHES))
async def test_who_below_a_run_hears_of_what_was_asked_of_it(propagation: Propagation, asked: str) -> None:
    at, recursive = ASKS[asked]
    root = run("root")
    tool = call("tool", root, propagation)
    inside = run("inside", parent=tool)
    inner = call("inner", inside)
    root.cancel(at, recursive=recursive, reason=Reason("lunch", Source.USER, by="kim"))
    requests = [node.request() for node in (tool, inside, inner)]
    assert tuple(request is not None for request in requests) == REACHES[propagation, asked]
    for request in requests:
        if request is not None:
            assert request.at == at
            assert request.reason == Reason("lunch", Source.PARENT, by="kim")
    await settled()
    if at.level >= Level.NOW:
        assert [node.pushed for node in root.walk()] == [at.level] * 4
    end(inner, inside, tool, root)


@virtual
@pytest.mark.parametrize("recursive", [False, True])
async def test_a_run_below_a_run_hears_of_no_safe_point_ask(recursive: bool) -> None:
    root = run("root")
    below = run("below", parent=root)
    root.cancel(SafePoint.ANY, recursive=recursive)
    assert below.request() is None
    root.cancel()
    assert below.request() is not None
    end(below, root)


@virtual
async def test_what_is_asked_of_a_sub_agents_call_is_asked_of_the_run_inside_alone() -> None:
    root = run("root")
    tool, sibling = call("tool", root, Propagation.RECURSIVE), call("sibling", root, Propagation.RECURSIVE)
    inside, other = run("inside", parent=tool), run("other", parent=sibling)
    tool.cancel(SAFE)
    assert inside.request() is not None
    assert [node.request() for node in (root, sibling, other)] == [None] * 3
    end(inside, other, tool, sibling, root)


@virtual
async def test_what_is_asked_of_a_run_goes_on_only_with_recursion_also_beside_the_calls_own() -> None:
    root = run("root")
    tool = call("tool", root, Propagation.RECURSIVE)
    inside = run("inside", parent=tool)
    root.cancel(SafePoint.AFTER_MODEL)
    tool.cancel(SafePoint.AFTER_TOOL)
    request = inside.request()
    assert request is not None
    assert request.at == SafePoint.AFTER_TOOL
    end(inside, tool, root)


@virtual
async def test_recursion_that_is_turned_on_late_reaches_the_children_that_run_now() -> None:
    root = run("root")
    tool = call("tool", root, Propagation.RECURSIVE)
    inside = run("inside", parent=tool)
    changed = changes(inside)
    root.cancel(SAFE)
    await settled()
    assert inside.request() is None
    root.cancel(SafePoint.AFTER_TOOL, recursive=True)
    await settled()
    assert changed == [False, True], "and they are woken"
    request = inside.request()
    assert request is not None
    assert request.at == SAFE | SafePoint.AFTER_TOOL, "the whole request is recursive from now on"
    end(inside, tool, root)


@virtual
async def test_once_one_stops_every_boundary_is_a_safe_point_for_the_others() -> None:
    root = run("root")
    tools = [call(f"tool{number}", root, Propagation.RECURSIVE) for number in range(2)]
    one, other = (run(f"run{number}", parent=tool) for number, tool in enumerate(tools))
    woken = changes(other)
    receipt = root.cancel(SAFE, recursive=True)
    await settled()
    assert other.check_safe_point("after_model") is None
    assert one.check_safe_point("after_tools") is not None
    woken.clear()
    await settled()
    assert woken == [True]
    assert not receipt.withdraw(), "somebody has acted on it"
    assert other.check_safe_point("after_model") is not None
    assert root.check_safe_point("before_effect") is not None
    end(one, other, *tools, root)


@virtual
async def test_a_tool_that_stops_at_its_named_point_stops_its_run_at_the_next_boundary() -> None:
    root = run("root")
    tool = call("tool", root)
    root.cancel(SafePoint.named("page"))
    assert root.check_safe_point("after_tool") is None
    assert tool.check_safe_point(f"{NAMED}line") is None
    assert tool.check_safe_point(f"{NAMED}page") is not None
    stop = root.check_safe_point("after_tool")
    assert stop is not None
    assert stop.place == "after_tool"
    end(tool, root)


@virtual
async def test_what_stops_one_call_by_itself_leaves_its_run_alone() -> None:
    root = run("root")
    tool, sibling = call("tool", root), call("sibling", root)
    tool.cancel(SafePoint.named("page"))
    assert tool.check_safe_point(f"{NAMED}page") is not None
    assert sibling.check_safe_point(f"{NAMED}page") is None
    assert root.check_safe_point("after_tool") is None
    sibling.cancel()
    await settled()
    assert (sibling.pushed, root.pushed) == (Level.NOW, Level.NONE)
    end(tool, sibling, root)


@virtual
async def test_now_for_one_sub_agent_does_not_act_on_a_mild_ask_of_the_run_above_it() -> None:
    root = run("root")
    tool, sibling = call("tool", root, Propagation.RECURSIVE), call("sibling", root)
    inside = run("inside", parent=tool)
    mild = root.cancel(SAFE)
    tool.cancel()
    await settled()
    assert inside.stop is not None
    assert inside.stop.level is Level.NOW
    assert [ask.id for ask in inside.stop.request.asks] != [mild.asked.id]
    assert sibling.check_safe_point(f"{NAMED}page") is None, "siblings and parent go on"
    assert root.check_safe_point("after_tool") is None
    assert mild.withdraw(), "nobody has acted on it"
    end(inside, tool, sibling, root)


@virtual
async def test_nothing_starts_once_now_is_recorded_also_after_the_answer_and_before_it_is_told() -> None:
    for at in (SafePoint.NOW, SafePoint.FORCE):
        for answered in (False, True):
            root = run("root")
            if answered:
                root.answer()
            root.cancel(SafePoint.ANY)
            assert root.may_start(), "no safe point here"
            receipt = root.cancel(at)
            assert not root.may_start()
            assert root.request() is not None or answered
            assert not receipt.withdraw(), "it was acted on"
            end(root)


@virtual
async def test_a_late_now_still_reaches_what_a_finished_run_has_below_it() -> None:
    root = run("root")
    root.answer()
    below = run("below", parent=root)
    pushed = pushes(below)
    root.cancel()
    await settled()
    assert pushed == [Level.NOW]
    assert (root.stop, below.stop is None) == (None, False)
    end(below, root)


@virtual
async def test_a_child_that_joins_a_stopping_node_is_stopped_at_its_start() -> None:
    root = run("root")
    tool = call("tool", root)
    root.cancel()
    await settled()
    late = run("late", parent=tool)
    assert late.state is NodeState.STOPPING
    end(late, tool, root)


def test_a_child_on_another_loop_is_woken_there() -> None:
    ready, seen = threading.Event(), list[Level]()

    async def main() -> None:
        root = run("root")
        tool = call("tool", root)

        async def inside() -> None:
            child = run("child", parent=tool)
            told = asyncio.Event()

            def push(level: Level) -> None:
                assert child.runs_in_this_thread()
                seen.append(level)
                told.set()

            child.on_push = push
            ready.set()
            await told.wait()
            end(child)

        thread = threading.Thread(target=lambda: asyncio.run(inside()))
        thread.start()
        await asyncio.to_thread(ready.wait)
        root.cancel()
        await asyncio.to_thread(thread.join)
        assert tool.children == []
        end(tool, root)

    asyncio.run(main())
    assert seen == [Level.NOW]

"""Taking an ask back: the order of log entries decides, also when two threads cross in the worst place."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from safepoint._core.asklog import AskLog, Entry, Standing, Withdrawn
from safepoint._core.asks import Ask
from safepoint._core.points import Level, SafePoint
from safepoint._core.tree import Node, Propagation
from tests.core.grove import call, changes, end, pushes, run
from tests.core.piece import settled
from tests.virtual import passes, virtual

SAFE = SafePoint.AFTER_TOOLS


class CrossedLog(AskLog):
    """A log into which another thread writes right after its nth reading."""

    def __init__(self, *, after: int, write: Entry) -> None:
        super().__init__()
        self._readings = after
        self._write = write

    def standing(self) -> Standing:
        standing = super().standing()
        self._readings -= 1
        if self._readings == 0:
            self.append(self._write)
        return standing


def crossed(ask: Ask, *, after: int, write: Entry) -> Node:
    """A live node whose log has this ask, and is written to by somebody else after so many readings."""
    node = run()
    node.log = CrossedLog(after=after, write=write)
    node.log.append(ask)
    return node


@virtual
async def test_an_ask_is_taken_back_before_anybody_acted_on_it() -> None:
    node = run()
    pushed, changed = pushes(node), changes(node)
    receipt = node.cancel()
    assert receipt.withdraw()
    await settled()
    assert pushed == []
    assert not any(changed), "those who look find nothing asked"
    assert node.request() is None
    assert await receipt.wait() == "withdrawn"
    end(node)
    assert not receipt.contributed


@virtual
async def test_once_a_node_has_acted_on_it_an_ask_stands() -> None:
    node = run()
    receipt = node.cancel(SAFE)
    node.check_safe_point("after_tools")
    assert not receipt.withdraw()
    assert node.request() is not None
    end(node)
    assert receipt.outcome == "stopped"


@virtual
async def test_now_is_acted_on_as_soon_as_the_loop_has_seen_it() -> None:
    node = run()
    receipt = node.cancel()
    await settled()
    assert not receipt.withdraw()
    end(node)


@virtual
async def test_a_late_now_that_has_cut_something_cannot_be_taken_back() -> None:
    node = run()
    node.answer()
    pushed = pushes(node)
    receipt = node.cancel()
    await settled()
    assert pushed == [Level.NOW]
    assert not receipt.withdraw()
    end(node)
    assert receipt.outcome == "finished_first"


@virtual
async def test_an_ask_that_a_child_has_acted_on_cannot_be_taken_back() -> None:
    root = run("root")
    tool = call("tool", root)
    receipt, other = root.cancel(SafePoint.named("page")), tool.cancel(SafePoint.named("line"))
    assert tool.check_safe_point("point:page") is not None
    assert not receipt.withdraw()
    assert other.withdraw(), "nobody has stopped for this one"
    end(tool, root)


@virtual
async def test_a_child_that_begins_under_an_ask_its_parent_has_not_heard_of_acts_on_it() -> None:
    root = run("root")
    receipt = root.cancel()
    tool = call("tool", root)
    assert (root.stop, tool.pushed) == (None, Level.NOW)
    assert not receipt.withdraw()
    end(tool, root)


@virtual
async def test_an_ask_of_the_child_itself_is_acted_on_together_with_what_is_handed_down() -> None:
    root = run("root")
    tool = call("tool", root)
    own, above = tool.cancel(), root.cancel()
    root.evaluate()
    assert tool.stop is not None
    assert {ask.id for ask in tool.stop.request.asks} == {own.asked.id, above.asked.id}
    assert not own.withdraw()
    end(tool, root)


@virtual
async def test_of_two_asks_the_one_that_was_not_taken_back_stands() -> None:
    node = run()
    one, other = node.cancel(SafePoint.AFTER_MODEL, recursive=True), node.cancel(SAFE)
    assert one.withdraw()
    request = node.request()
    assert request is not None
    assert (request.at, request.recursive, request.asks) == (SAFE, False, (other.asked,))
    assert node.check_safe_point("after_model") is None
    assert node.check_safe_point("after_tools") is not None
    end(node)
    assert (one.outcome, other.outcome) == ("withdrawn", "stopped")
    assert (one.contributed, other.contributed) == (False, True)


@virtual
async def test_what_was_taken_back_from_a_parent_is_gone_for_its_children() -> None:
    root = run("root")
    tool = call("tool", root, Propagation.RECURSIVE)
    inside = run("inside", parent=tool)
    receipt = root.cancel(SAFE, recursive=True)
    assert inside.request() is not None
    changed = changes(inside)
    assert receipt.withdraw()
    await settled()
    assert inside.request() is None
    assert changed, "and they are woken to look again"
    end(inside, tool, root)


@virtual
async def test_taking_back_twice_is_harmless_and_after_the_end_it_is_too_late() -> None:
    node = run()
    receipt, late = node.cancel(SAFE), node.cancel(SAFE)
    assert receipt.withdraw()
    assert receipt.withdraw()
    end(node)
    assert not late.withdraw()
    assert (receipt.outcome, late.outcome) == ("withdrawn", "finished_first")


# -- crossing in another thread ----------------------------------------------------------------------------------------

READINGS = range(1, 9)


def consistent(node: Node, ask: Ask) -> None:
    """Either it was taken back and nothing came of it, or it stands and the node stops for it."""
    standing = node.log.standing()
    if ask.id in standing.withdrawn:
        assert (node.stop, node.pushed, node.state) == (None, Level.NONE, "live")
    else:
        assert node.stop is not None
        assert [kept.id for kept in node.stop.request.asks] == [ask.id]
        assert ask.id in standing.acted


DECISIONS: dict[str, tuple[Ask, Callable[[Node], object]]] = {
    "a safe point": (Ask(SAFE), lambda node: node.check_safe_point("after_tools")),
    "a check for NOW": (Ask(SafePoint.NOW), lambda node: node.check_stop()),
    "a look at the log": (Ask(SafePoint.NOW), lambda node: node.evaluate()),
    "the answer": (Ask(SafePoint.NOW), lambda node: node.answer()),
}


@virtual
@pytest.mark.parametrize("after", READINGS)
@pytest.mark.parametrize("decision", DECISIONS)
async def test_a_withdrawal_that_crosses_a_decision_is_either_refused_or_nothing_came_of_the_ask(
    decision: str, after: int
) -> None:
    ask, decide = DECISIONS[decision]
    node = crossed(ask, after=after, write=Withdrawn(ask.id))
    pushed = pushes(node)
    decide(node)
    consistent(node, ask)
    assert (pushed == [Level.NOW]) is (decision == "a look at the log" and node.stop is not None)
    if not node.answered:
        node.evaluate()
        consistent(node, ask)
    end(node)


@virtual
@pytest.mark.parametrize("after", READINGS)
async def test_a_withdrawal_that_crosses_a_look_is_the_same_for_what_is_below(after: int) -> None:
    ask, root = Ask(SafePoint.NOW), run("root")
    tool = call("tool", root)
    root.log = CrossedLog(after=after, write=Withdrawn(ask.id))
    root.log.append(ask)
    root.evaluate()
    consistent(root, ask)
    assert (tool.stop is None) is (root.stop is None)
    assert tool.pushed is root.pushed
    end(tool, root)


@virtual
@pytest.mark.parametrize("after", READINGS)
@pytest.mark.parametrize("decision", ["a safe point", "a check for NOW", "a look at the log"])
async def test_another_ask_that_crosses_a_decision_is_either_part_of_it_or_makes_it_harder(
    decision: str, after: int
) -> None:
    ask, decide = DECISIONS[decision]
    force = Ask(SafePoint.FORCE)
    node = crossed(ask, after=after, write=force)
    decide(node)
    assert node.stop is not None
    if force in node.log.standing().asks:
        node.evaluate()
        assert node.stop.level is Level.FORCE
        assert node.pushed is Level.FORCE
        assert {kept.id for kept in node.stop.request.asks} == {ask.id, force.id}
    end(node)


@virtual
@pytest.mark.parametrize("after", READINGS)
async def test_an_ask_that_nobody_stopped_for_is_not_marked_by_a_crossing(after: int) -> None:
    mild, hard = Ask(SAFE), Ask(SafePoint.NOW)
    node = crossed(mild, after=after, write=Withdrawn(hard.id))
    node.log.append(hard)
    node.evaluate()
    assert mild.id not in node.log.standing().acted
    if node.stop is None:
        assert node.check_safe_point("after_model") is None, "it waits for its own safe point"
        assert node.check_safe_point("after_tools") is not None
    end(node)


@virtual
@pytest.mark.parametrize("first", ["withdrawal", "deadline"])
async def test_of_a_deadline_and_a_withdrawal_at_the_same_moment_the_first_one_counts(first: str) -> None:
    node = run()
    receipt = node.cancel(SAFE, within=1)
    pushed, taken_back = pushes(node), list[bool]()
    if first == "deadline":
        await settled()  # so that its timer is set before ours
    node.clock.call_at(node.clock.now() + 1, lambda: taken_back.append(receipt.withdraw()))
    await passes(2)
    assert (pushed, taken_back) == (([], [True]) if first == "withdrawal" else ([Level.NOW], [False]))
    end(node)
    assert receipt.outcome == ("withdrawn" if first == "withdrawal" else "escalated")

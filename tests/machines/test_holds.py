"""A hold changes when a run goes on and nothing else, whatever else is done to it in the meantime.

The machine of stops plays asks against a reference. Here the reference is the run itself, never held: with the same
script it must come to the same end. Random holds, releases, cancels and withdrawals are played between random ticks of
the loop, and after each tick every node that waits must have a reason to wait.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from safepoint import Agent, HoldReceipt, HoldState, Receipt, Run, SafePoint, ToolContext, check_history, tool
from safepoint._core.points import HELD
from safepoint._core.tree import Node, NodeState
from safepoint.events import HoldEnded, HoldStarted
from safepoint.testing import ScriptedModel, call, say
from safepoint.testing.clock import run_virtual
from safepoint.tools.base import BaseTool
from tests.machines.arrows import BY_HOLDS, DRAWN, Arrow
from tests.virtual import passes, rounds

HOLD_ARROWS = frozenset(
    ("hold", one, other)
    for one, other in [
        (HoldState.ASKED, HoldState.HELD),
        (HoldState.ASKED, HoldState.RELEASED),
        (HoldState.ASKED, HoldState.STOPPED),
        (HoldState.ASKED, HoldState.FINISHED_FIRST),
        (HoldState.HELD, HoldState.RELEASED),
        (HoldState.HELD, HoldState.STOPPED),
    ]
)
TAKEN: Counter[Arrow] = Counter()

points = st.sampled_from(
    [
        SafePoint.ANY,
        SafePoint.AFTER_MODEL,
        SafePoint.AFTER_TOOL,
        SafePoint.AFTER_TOOLS,
        SafePoint.BEFORE_EFFECT,
        SafePoint.named("page"),
        SafePoint.AFTER_TOOL | SafePoint.named("page"),
    ]
)


@dataclass
class Step:
    """One thing that is done, and how long the loop runs afterwards."""

    what: str
    at: SafePoint
    within: float | None
    recursive: bool
    which: int
    seconds: float


steps = st.builds(
    Step,
    what=st.sampled_from(["hold", "hold", "hold", "release", "release", "resume", "cancel", "withdraw", "wait", "now"]),
    at=points,
    within=st.sampled_from([None, None, None, 0.3, 5.0]),
    recursive=st.booleans(),
    which=st.integers(0, 9),
    seconds=st.sampled_from([0.0, 0.05, 0.1, 0.3, 1.0]),
)


@tool(effect="pure")
async def look() -> str:
    """Look for a moment."""
    await passes(0.1)
    return "seen"


@tool
async def pay() -> str:
    """Pay, which takes longer."""
    await passes(0.2)
    return "paid"


@tool(effect="idempotent")
async def read(ctx: ToolContext) -> str:
    """Read two pages, with a point after each."""
    for number in range(ctx.saved or 0, 2):
        await passes(0.1)
        await ctx.safe_point("page", save=number + 1)
    return "read"


def made() -> Agent[None]:
    inner = Agent("inner", model=ScriptedModel([call("look"), call("read")], say("found")), tools=[look, read])
    first, second = [call("look"), call("pay"), call("read")], [call("inner", input="x"), call("pay")]
    tools: list[BaseTool] = [look, pay, read, inner.as_tool()]
    return Agent("outer", model=ScriptedModel(first, second, say("done")), tools=tools, max_parallel_tools=2)


@dataclass
class Play:
    """One run with all that was asked of it."""

    run: Run[None]
    holds: list[HoldReceipt] = field(default_factory=list[HoldReceipt])
    asks: list[Receipt] = field(default_factory=list[Receipt])
    seen: dict[object, str] = field(default_factory=dict[object, str])

    def do(self, step: Step) -> None:
        nodes = list(self.run.tree.walk()) or [self.run.node]
        node = nodes[step.which % len(nodes)]
        if step.what == "hold":
            self.holds.append(node.hold(step.at, within=step.within, recursive=step.recursive))
        elif step.what == "release" and self.holds:
            self.holds[step.which % len(self.holds)].release()
        elif step.what == "resume":
            self.run.resume()
        elif step.what == "cancel":
            self.asks.append(node.cancel(step.at, recursive=step.recursive))
        elif step.what == "now":
            self.asks.append(node.cancel())
        elif step.what == "withdraw" and self.asks:
            self.asks[step.which % len(self.asks)].withdraw()

    def look(self) -> None:
        """Every node that waits has a reason, every state was reached along a drawn arrow."""
        for node in self.run.node.walk():
            if node.stay is not None:
                assert node.state is NodeState.HELD
                assert node.request() is None, "a request ends every hold"
                assert any(hold.at.covers(node.stay.held.place) for hold in reaching(node)), f"{node} waits for nothing"
            else:
                assert node.state is not NodeState.HELD
        for receipt in self.holds:
            self._saw("hold", receipt.asked.id, receipt.state, str(HoldState.ASKED))

    def _saw(self, machine: str, thing: object, state: str, first: str) -> None:
        before = self.seen.get(thing, first)
        if before != state:
            arrow = (machine, before, str(state))
            # A node that waits may be let go and stand at the next hold, or come back, between two looks.
            assert arrow in HOLD_ARROWS or arrow == ("hold", HoldState.HELD, HoldState.ASKED), arrow
            TAKEN[arrow] += 1
            self.seen[thing] = str(state)


def reaching(node: Node) -> Iterator[Any]:  # Any: holds
    """Every hold that stands above the node or at it."""
    above: Node | None = node
    while above is not None:
        yield from above.log.standing().holds
        above = above.parent


def watched(counts: Counter[Arrow]) -> Callable[[], None]:
    """Count the moves of all nodes; the returned function takes the watch away."""
    move = Node._move  # pyright: ignore[reportPrivateUsage]  # the arrows are drawn for what is inside

    def counting(node: Node, state: NodeState) -> None:
        before = node.state
        move(node, state)
        counts["node", str(before), str(state)] += 1
        assert str(state) in [str(each) for each in DRAWN["node"][before]]

    Node._move = counting  # type: ignore[method-assign, assignment]  # pyright: ignore[reportPrivateUsage]  # as above

    def stop() -> None:
        Node._move = move  # type: ignore[method-assign]  # pyright: ignore[reportPrivateUsage]  # as above

    return stop


async def play(plan: list[Step]) -> Play:
    async with made().start("go") as run:
        game = Play(run)
        for step in plan:
            game.do(step)
            await rounds(1)
            await passes(step.seconds)
            game.look()
        for receipt in game.holds:
            receipt.release()
    return game


def told(game: Play) -> list[tuple[str, str]]:
    events = game.run.kept_events(nested=True)
    return [(event.path, type(event).__name__) for event in events if isinstance(event, HoldStarted | HoldEnded)]


ORDINARY = settings(
    max_examples=150,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
UNHELD = run_virtual(lambda: made().run("go"))


@ORDINARY
@given(st.lists(steps, max_size=14))
def test_a_hold_changes_when_a_run_goes_on_and_nothing_else(plan: list[Step]) -> None:
    stop = watched(TAKEN)
    try:
        game = run_virtual(lambda: play(plan))
    finally:
        stop()
    result = game.run.result
    check_history(result.messages)
    for path in {path for path, _ in told(game)}:
        mine = [name for each, name in told(game) if each == path]
        assert mine == ["HoldStarted", "HoldEnded"] * (len(mine) // 2), mine
    lapsed = any(receipt.asked.deadline is not None for receipt in game.holds)
    if not game.asks and not lapsed:
        assert (result.stop_reason, [each.parts for each in result.messages]) == (
            "end_turn",
            [each.parts for each in UNHELD.messages],
        )
    elif result.cancellation is not None:
        assert result.checkpoint is not None
        assert result.cancellation.place != HELD or told(game)


def test_every_drawn_arrow_of_a_hold_is_taken() -> None:
    test_a_hold_changes_when_a_run_goes_on_and_nothing_else()
    assert {arrow for arrow in (*HOLD_ARROWS, *BY_HOLDS) if not TAKEN[arrow]} == set()

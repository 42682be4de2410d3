"""The drawn state machines, and who takes which of their arrows.

The arrows are copied from the docstrings of `_core/tree.py`, `_core/work.py`, `agent/ledger.py` and
`agent/tool_execution.py`. The watch looks at every state after each event and each round of the loop; where it has
missed a state in between, the drawing says which way was taken. A move that no way of the drawing explains is a fault.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import Any, Final, TypeAlias

from safepoint._core.tree import Node, NodeState
from safepoint._core.work import NeverRan, Work, WorkState
from safepoint.agent.driver import Driver
from safepoint.agent.run import Run
from safepoint.agent.tool_call import BatchedCall
from safepoint.agent.tool_execution import Phase, ToolExecution
from safepoint.history.states import LedgerState

Arrow: TypeAlias = tuple[str, str, str]

DRAWN: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "node": {
        NodeState.NEW: (NodeState.LIVE,),
        NodeState.LIVE: (NodeState.HELD, NodeState.STOPPING, NodeState.SEALED),
        NodeState.HELD: (NodeState.LIVE, NodeState.STOPPING),
        NodeState.STOPPING: (NodeState.SEALED,),
        NodeState.SEALED: (NodeState.ENDED,),
    },
    "work": {
        WorkState.WAITING: (WorkState.RUNNING, WorkState.STOPPING, WorkState.ENDED),
        WorkState.RUNNING: (WorkState.ENDED, WorkState.STOPPING),
        WorkState.STOPPING: (WorkState.ENDED, WorkState.ABANDONED),
    },
    "ledger": {
        LedgerState.NOT_STARTED: (LedgerState.RUNNING, LedgerState.FAILED, LedgerState.WAITING),
        LedgerState.RUNNING: (
            LedgerState.FINISHED,
            LedgerState.FAILED,
            LedgerState.STOPPED,
            LedgerState.WAITING,
            LedgerState.CUT,
        ),
        LedgerState.CUT: (LedgerState.COMPENSATED,),
    },
    "call": {
        Phase.WORKING: (Phase.LEAVING, Phase.UNDOING),
        Phase.UNDOING: (Phase.LEAVING,),
        Phase.LEAVING: (Phase.OVER,),
    },
}
# Work waits only inside the step that begins it, and no machine asks in the middle of a step: `test_found.py` and
# `tests/core/test_work.py` do.
INSIDE_A_STEP: Final[frozenset[Arrow]] = frozenset(
    {("work", str(WorkState.WAITING), str(WorkState.STOPPING)), ("work", str(WorkState.WAITING), str(WorkState.ENDED))}
)
# The machines of stops hold nothing: `test_holds.py` does.
BY_HOLDS: Final[frozenset[Arrow]] = frozenset(
    {
        ("node", str(NodeState.LIVE), str(NodeState.HELD)),
        ("node", str(NodeState.HELD), str(NodeState.LIVE)),
        ("node", str(NodeState.HELD), str(NodeState.STOPPING)),
    }
)
FIRST: Final = {
    "node": str(NodeState.NEW),
    "work": str(WorkState.WAITING),
    "ledger": str(LedgerState.NOT_STARTED),
    "call": str(Phase.WORKING),
}


def drawn_arrows() -> list[Arrow]:
    return [
        (machine, str(state), str(after))
        for machine, arrows in DRAWN.items()
        for state, followers in arrows.items()
        for after in followers
    ]


def way(machine: str, state: str, after: str) -> list[Arrow] | None:
    """The shortest way from one state to another along drawn arrows; None if there is none."""
    ways: deque[list[str]] = deque([[state]])
    while ways:
        states = ways.popleft()
        if states[-1] == after:
            return [(machine, one, next_one) for one, next_one in pairwise(states)]
        followers = DRAWN[machine].get(states[-1], ())
        ways.extend([*states, str(follower)] for follower in followers if follower not in states)
    return None


def table(counts: Counter[Arrow]) -> str:
    """All drawn arrows with how often each was taken."""
    rows = [
        (f"{machine}: {state} → {after}", counts[machine, state, after]) for machine, state, after in drawn_arrows()
    ]
    width = max(len(label) for label, _ in rows)
    return "\n".join(f"{label:<{width}}  {count:>9,}" for label, count in rows)


def never_taken(counts: Counter[Arrow]) -> list[Arrow]:
    return [arrow for arrow in drawn_arrows() if not counts[arrow]]


class Watch:
    """The states of everything in one example, and the arrows between what was seen and what is seen now."""

    def __init__(self, counts: Counter[Arrow], complain: Callable[[str], None]) -> None:
        self._counts = counts
        self._complain = complain
        self._states: dict[tuple[str, object], str] = {}
        self._nodes: dict[Node, None] = {}
        self._works: dict[Work[Any], None] = {}  # Any: its value does not matter
        self._calls: dict[BatchedCall, None] = {}

    def look(self, runs: Iterable[Run[Any, Any]]) -> None:  # Any: runs of every agent
        for run in runs:
            self._add_run(run)
        for node in tuple(self._nodes):
            self._see_node(node)
        for work in tuple(self._works):
            self._see_work(work)
        for call in tuple(self._calls):
            self._see_call(call)

    def _add_run(self, run: Run[Any, Any]) -> None:  # Any: as above
        if not run.ended:
            self._nodes[run.node] = None
        driver = run._driver  # pyright: ignore[reportPrivateUsage]  # the arrows are drawn for what is inside
        if driver is None:
            return
        if driver.runner.work is not None:
            self._works[driver.runner.work] = None
        batch = driver.batch if isinstance(driver, Driver) and not run.ended else None
        for call in batch.calls if batch is not None else ():
            self._calls[call] = None

    def _see_node(self, node: Node) -> None:
        if node.stop is not None and self._states.get(("node", node)) == NodeState.LIVE:
            self._see("node", node, NodeState.STOPPING)
        self._see("node", node, node.state)
        if node.state is NodeState.ENDED:
            del self._nodes[node]

    def _see_work(self, work: Work[Any]) -> None:  # Any: as above
        ran = work.ended and not isinstance(work.outcome, NeverRan)
        if ran and self._states.get(("work", work), WorkState.WAITING) == WorkState.WAITING:
            self._see("work", work, WorkState.RUNNING)
        self._see("work", work, work.state)
        if work.ended:
            del self._works[work]

    def _see_call(self, call: BatchedCall) -> None:
        if call.execution is not None:
            self._see_execution(call.execution)
        self._see("ledger", call, call.entry.state)
        if call.over:
            del self._calls[call]

    def _see_execution(self, execution: ToolExecution) -> None:
        if self._states.get(("node", execution.node)) != NodeState.ENDED:
            self._nodes[execution.node] = None
        undo = execution._undo  # pyright: ignore[reportPrivateUsage]  # as above
        for work in (execution.work, undo):
            if work is not None and self._states.get(("work", work)) not in (WorkState.ENDED, WorkState.ABANDONED):
                self._works[work] = None
        self._see("call", execution, execution.phase)

    def _see(self, machine: str, thing: object, state: str) -> None:
        before = self._states.get((machine, thing), FIRST[machine])
        if before == state:
            return
        arrows = way(machine, before, str(state))
        if arrows is None:
            self._complain(f"{thing}: {before} → {state} is not drawn")
        self._counts.update(arrows or ())
        self._states[machine, thing] = str(state)

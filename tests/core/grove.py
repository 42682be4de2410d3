"""Trees of nodes without anything that runs in them."""

from __future__ import annotations

from safepoint._core.endings import Ending
from safepoint._core.points import Level
from safepoint._core.supervisor import Supervisor
from safepoint._core.tree import Node, NodeState, Propagation

BY_ITSELF = Ending(cancelled=False, stopped_at=0.0)
STOPPED = Ending(cancelled=True, stopped_at=0.0)


def new_run(name: str = "run", parent: Node | None = None) -> Node:
    return Node(name, name, "run", parent=parent, propagation=Propagation.TO_CALLS)


def run(name: str = "run", parent: Node | None = None) -> Node:
    """A live run; below a tool call it is a sub-agent's."""
    return live(new_run(name, parent))


def call(name: str, parent: Node, propagation: Propagation = Propagation.NOTHING) -> Node:
    """A live tool call: hand-written, or (RECURSIVE) a sub-agent's."""
    return live(Node(name, name, "tool_call", parent=parent, propagation=propagation))


def live(node: Node) -> Node:
    Supervisor.current().enrol(node)
    return node


def end(*nodes: Node, ending: Ending | None = None) -> None:
    """Seal and finish, children first."""
    for node in nodes:
        if node.state is not NodeState.SEALED:
            node.seal()
        node.finish(ending or (STOPPED if node.stop is not None else BY_ITSELF))


def pushes(node: Node) -> list[Level]:
    """A list that grows with every push of this node."""
    seen: list[Level] = []
    node.on_push = seen.append
    return seen


def changes(node: Node) -> list[bool]:
    """A list that grows whenever the node has looked at its log; each entry says whether a request stood then."""
    seen: list[bool] = []
    node.on_change = lambda: seen.append(node.request() is not None)
    return seen

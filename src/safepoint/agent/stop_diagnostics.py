"""What holds a run that is stopping: the question an operator asks first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from safepoint._core.ladder import Rung
from safepoint._core.points import Level
from safepoint._core.stacks import task_stack, thread_stack
from safepoint._core.tree import Node
from safepoint._core.work import Work

if TYPE_CHECKING:
    from safepoint.agent.base_driver import BaseDriver


@dataclass(frozen=True, slots=True)
class Holding:
    """One piece of work that has not stopped: on which rung, for how long, when it climbs on, and where it is."""

    name: str
    path: str
    rung: Rung | None
    seconds: float
    seconds_left: float | None
    stack: str


def holding(node: Node, drivers: Iterable[BaseDriver[Any]]) -> list[Holding]:  # Any: steps of every kind
    """Empty if the run was not asked to stop, or has ended."""
    now = node.clock.now()
    if node.ended.is_set or not _is_to_stop(node, now):
        return []
    found = [_describe(work, now) for driver in drivers for work in driver.works()]
    blocked = node.blocked()
    if blocked is not None:
        found.append(Holding("event loop", node.path, None, blocked.seconds, None, blocked.stack))
    return found or [_itself(node, now)]


def _itself(node: Node, now: float) -> Holding:
    """Nothing of its work runs: then the run itself has not come to its end."""
    seconds = now - node.stop.at if node.stop is not None else 0.0
    stack = task_stack(node.task) if node.task is not None else ""
    return Holding(node.name, node.path, None, seconds, None, stack)


def _is_to_stop(node: Node, now: float) -> bool:
    """A loop that is blocked has not even looked at the ask yet, and then it is the ask that counts."""
    if node.stop is not None:
        return True
    request = node.request_at(now)
    return request is not None and request.level(now) >= Level.NOW


def _describe(work: Work[object], now: float) -> Holding:
    if work.thread is not None:
        stack = thread_stack(work.thread.ident or 0)
    else:
        stack = task_stack(work.task) if work.task is not None else ""
    left = max(0.0, work.until - now) if work.until is not None else None
    seconds = now - work.rung_since if work.rung is not None else 0.0
    return Holding(work.name, work.path, work.rung, seconds, left, stack)

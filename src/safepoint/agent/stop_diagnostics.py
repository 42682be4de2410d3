"""What holds up a run that was asked to stop: the first question of an operator.

A stopping run waits for work that has not ended: each piece is listed with its rung and the time left on it. A run that
waits for a safe point waits for the work in flight: each piece is listed with its time so far, and with the time until
the deadline of the request, if it has one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from safepoint._core.ladder import Rung, WorkKind
from safepoint._core.stacks import task_stack, thread_stack
from safepoint._core.tree import Node
from safepoint._core.work import Work
from safepoint._values import Value
from safepoint.tools.options import Effect

if TYPE_CHECKING:
    from safepoint.agent.base_driver import BaseDriver


class Holding(Value, frozen=True):
    """One piece of work that a stop waits for, and where it is.

    `rung`: None while the work may end by itself. `seconds`: since it reached this rung, or began. `seconds_left`:
    until it climbs to the next, or until the deadline of the request. `effect`: the effect of a tool call. `pid`: the
    process that a tool has started.
    """

    name: str
    path: str
    rung: Rung | None
    seconds: float
    seconds_left: float | None
    stack: str
    kind: WorkKind = WorkKind.TASK
    effect: Effect | None = None
    pid: int | None = None


def holding(node: Node, drivers: Iterable[BaseDriver[Any]]) -> list[Holding]:  # Any: steps of every kind
    """Empty if the run was not asked to stop, or has ended."""
    now = node.clock.now()
    request = node.request_at(now)
    if node.ended.is_set or (node.stop is None and request is None):
        return []
    deadline = request.deadline if node.stop is None and request is not None else None
    found = [
        _describe(work, driver.effect_of(work), deadline, now)
        for driver in drivers
        for work in driver.works()
        if not work.ended
    ]
    blocked = node.blocked()
    if blocked is not None:
        found.append(Holding("event loop", node.path, None, blocked.seconds, None, blocked.stack))
    return found or [_itself(node, now)]


def _itself(node: Node, now: float) -> Holding:
    """The entry of a run without running work: the run itself has not reached its end or its safe point."""
    seconds = now - node.stop.at if node.stop is not None else 0.0
    stack = task_stack(node.task) if node.task is not None else ""
    return Holding(node.name, node.path, None, seconds, None, stack)


def _describe(work: Work[object], effect: Effect | None, deadline: float | None, now: float) -> Holding:
    if work.thread is not None:
        stack = thread_stack(work.thread.ident or 0)
    else:
        stack = task_stack(work.task) if work.task is not None else ""
    until = deadline if work.until is None else work.until
    left = max(0.0, until - now) if until is not None else None
    pid = work.killable.pid if work.killable is not None else None
    return Holding(
        work.name, work.path, work.rung, now - work.rung_since, left, stack, work.stop_policy.kind, effect, pid
    )

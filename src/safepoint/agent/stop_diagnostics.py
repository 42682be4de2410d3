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
from safepoint.agent.ledger import LedgerEntry
from safepoint.tools.options import Effect

if TYPE_CHECKING:
    from safepoint.agent.base_driver import BaseDriver


class Holding(Value, frozen=True):
    """One piece of work that a stop waits for, and where it is.

    `rung`: None while the work may end by itself. `seconds`: since it reached this rung, or began. `seconds_left`:
    until it climbs to the next, or until the deadline of the request. `effect`: the effect of a tool call. `pid`: the
    process that a tool has started. `call_id`: the tool call. `waits_for`: the safe points that the run is to reach, if
    this work keeps it from them; empty once the work is being stopped.
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
    call_id: str | None = None
    waits_for: tuple[str, ...] = ()


def holding(node: Node, drivers: Iterable[BaseDriver[Any]]) -> list[Holding]:  # Any: steps of every kind
    """Empty if the run was asked neither to stop nor to wait, or has ended, or waits already."""
    now = node.clock.now()
    request = node.request_at(now)
    holds = node.log.standing().holds if request is None and node.stay is None else ()
    if node.ended.is_set or (node.stop is None and request is None and not holds):
        return []
    deadline, places = None, tuple[str, ...]()
    if node.stop is None:
        points = [request.at] if request is not None else [hold.at for hold in holds]
        places = tuple(sorted({str(place) for point in points for place in point.places}))
        deadline = request.deadline if request is not None else None
    found = [
        _describe(work, driver.entry_of(work), deadline, places, now)
        for driver in drivers
        for work in driver.works()
        if not work.ended
    ]
    blocked = node.blocked()
    if blocked is not None:
        found.append(Holding("event loop", node.path, None, blocked.seconds, None, blocked.stack))
    return found or [_itself(node, places, now)]


def _itself(node: Node, places: tuple[str, ...], now: float) -> Holding:
    """The entry of a run without running work: the run itself has not reached its end or its safe point."""
    seconds = now - node.stop.at if node.stop is not None else 0.0
    stack = task_stack(node.task) if node.task is not None else ""
    return Holding(node.name, node.path, None, seconds, None, stack, waits_for=places)


def _describe(
    work: Work[object], entry: LedgerEntry | None, deadline: float | None, places: tuple[str, ...], now: float
) -> Holding:
    if work.thread is not None:
        stack = thread_stack(work.thread.ident or 0)
    else:
        stack = task_stack(work.task) if work.task is not None else ""
    until = deadline if work.until is None else work.until
    left = max(0.0, until - now) if until is not None else None
    pid = work.killable.pid if work.killable is not None else None
    effect, call_id = (entry.effect, entry.call_id) if entry is not None else (None, None)
    waits_for = places if work.rung is None else ()
    place = (work.name, work.path, work.rung, now - work.rung_since, left, stack)
    return Holding(*place, work.stop_policy.kind, effect, pid, call_id, waits_for)

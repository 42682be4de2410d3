"""The tree of everything in a live run that can be stopped by itself, and how a request travels in it.

    NEW ──attach──▶ LIVE ──judge / NOW──▶ STOPPING ──seal──▶ SEALED ──finish──▶ ENDED
                      └─────────seal (ended by itself)─────────▲

A node never stores a request: it reads its own log, takes what its parent hands down, and folds. So a late ask, a
withdrawal or a deadline needs no bookkeeping, only a wake-up, and the log's order is the only truth. Asks that come
before the loop has woken share one wake-up.

One decision has one time: the methods that others call read the clock once, and those that decide are given `now`. A
deadline that strikes in the middle of a decision is found by the next one, whole.

What a parent hands down: NOW and FORCE always (children are their parent's work). A safe-point request goes from a run
to its own tool calls, where named points are judged; from there to a sub-agent's run only if it is recursive, as from a
composite to its children. A hand-written tool passes no safe-point request to runs that it started itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from enum import StrEnum
from functools import partial
from typing import Literal, TypeAlias

from safepoint._core.asklog import ActedOn, AskLog, Mark
from safepoint._core.asks import Ask, Request, hand_down, join, make_ask
from safepoint._core.clock import Clock, current_clock
from safepoint._core.endings import Ending, Stop
from safepoint._core.latch import Latch
from safepoint._core.points import Level, SafePoint
from safepoint._core.reasons import Reason
from safepoint._core.receipts import Receipt
from safepoint._core.wake import call_soon
from safepoint._core.watchdog import Blocked, blocked
from safepoint.errors import InternalError

NodeKind: TypeAlias = Literal["run", "tool_call", "branch"]


class NodeState(StrEnum):
    NEW = "new"
    LIVE = "live"
    STOPPING = "stopping"
    SEALED = "sealed"
    ENDED = "ended"


class Propagation(StrEnum):
    """Which safe-point requests a node lets through to its children."""

    TO_CALLS = "to_calls"
    RECURSIVE = "recursive"
    NOTHING = "nothing"


_MOVES: dict[NodeState, frozenset[NodeState]] = {
    NodeState.NEW: frozenset({NodeState.LIVE}),
    NodeState.LIVE: frozenset({NodeState.STOPPING, NodeState.SEALED}),
    NodeState.STOPPING: frozenset({NodeState.SEALED}),
    NodeState.SEALED: frozenset({NodeState.ENDED}),
    NodeState.ENDED: frozenset(),
}


_NOT_LIVE = frozenset({NodeState.NEW, NodeState.SEALED, NodeState.ENDED})
# Where a node stops that stops for no safe point.
_HARD = {Level.NOW: "now", Level.FORCE: "force"}


class _WakeUp:
    """The loop was asked to look at the log; `over` once it looks, so that the next ask wakes it again."""

    __slots__ = ("over",)

    def __init__(self) -> None:
        self.over = False


class Node:
    """One stoppable thing. Everything but `cancel` and what a receipt reads happens in the loop's own thread."""

    def __init__(
        self, id: str, name: str, kind: NodeKind, *, parent: Node | None = None, propagation: Propagation
    ) -> None:
        self.id = id
        self.name = name
        self.kind: NodeKind = kind
        self.parent = parent
        self.children: list[Node] = []
        self.state = NodeState.NEW
        label = f"{name}:{id}" if kind == "tool_call" else name
        self.path: str = f"{parent.path}/{label}" if parent else label
        self.log: AskLog = AskLog()
        self.ended = Latch()
        # Set once, by `judge` or by NOW, and only ever made stronger; None in a node that ended by itself.
        self.stop: Stop | None = None
        self.ending: Ending | None = None
        self.answered = False
        self.pushed = Level.NONE
        self.on_push: Callable[[Level], object] = _ignore
        self.on_change: Callable[[], object] = _nothing
        self.clock: Clock = parent.clock if parent else current_clock()
        self._propagation = propagation
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        # One tuple, replaced whole, because other threads read it too.
        self._last_handed: tuple[Request | None, Level, Request | None] = (None, Level.NONE, None)
        self._wake_up: _WakeUp | None = None
        # Asks that came while it ended, and that mean what its end has begun: there is a receipt for each.
        self.handed_on: dict[str, Receipt] = {}
        # Whoever drives this node; the core never looks inside.
        self.owner: object = None
        # The task that drives it, if it has one of its own: a sub-agent's run lives in the task of its call.
        self.task: asyncio.Task[None] | None = None

    # -- asking: any thread, any time, no lock ------------------------------------------------------------------------

    def cancel(
        self,
        at: SafePoint = SafePoint.NOW,
        *,
        within: float | None = None,
        recursive: bool = False,
        reason: str | Reason | None = None,
    ) -> Receipt:
        """Ask this node to stop. Never blocks, never raises for a reason of timing; the receipt tells the outcome."""
        now, wall = self.clock.now(), self.clock.wall()
        return self.take(make_ask(at, within=within, recursive=recursive, reason=reason, now=now, wall=wall))

    def take(self, ask: Ask) -> Receipt:
        """Append a ready-made ask and wake the loop."""
        self.log.append(ask)
        return Receipt(self, ask, reachable=self.wake())

    def wake(self) -> bool:
        """Have the loop look at the log. False if that loop is closed and will never look again."""
        if self._loop is None:
            return True  # the log is read at the start
        pending = self._wake_up
        if pending is not None and not pending.over:  # it will find this ask too, unless it never comes
            return not self._loop.is_closed()
        pending = _WakeUp()
        woken = self.call_soon(partial(self._woken, pending))
        # Kept only now: if an exception of a signal handler comes in between, the next ask wakes the loop once more.
        self._wake_up = pending
        return woken

    def _woken(self, wake_up: _WakeUp) -> None:
        wake_up.over = True  # before the log is read: an ask that comes from now on wakes the loop again
        self.evaluate()

    def call_soon(self, call: Callable[[], object]) -> bool:
        """Call it in the loop's thread. False if that loop is gone."""
        assert self._loop is not None, "the node has not started"
        return call_soon(self._loop, call)

    # -- reading: what stands now --------------------------------------------------------------------------------------

    def request(self) -> Request | None:
        """The fold of all asks that stand for this node, its own and those handed down."""
        return self.request_at(self.clock.now())

    def request_at(self, now: float) -> Request | None:
        """As `request`, for a decision that has read the clock."""
        return join(self.log.standing().request, self._inherited(now))

    def _pressing(self, now: float) -> Request | None:
        """As `request`, with the asks that came after the answer: they no longer change it, but cut what follows it."""
        return join(self.log.standing().pressing, self._inherited(now))

    def _inherited(self, now: float) -> Request | None:
        parent = self.parent
        return parent._handed_to(self, parent._pressing(now), now) if parent is not None else None

    def _handed_to(self, child: Node, request: Request | None, now: float) -> Request | None:
        """What stands for this node, as that child is to take it."""
        if request is None:
            return None
        level = request.level(now)
        passed = request if level >= Level.NOW else self._let_through(request, child)
        if passed is None:
            return None
        # Made once for all children: as long as this very request stands at this level, it is the same.
        last_passed, last_level, handed = self._last_handed
        if passed is not last_passed or level is not last_level or handed is None:
            handed = hand_down(passed, level, now)
            self._last_handed = (passed, level, handed)
        return handed

    def _let_through(self, request: Request, child: Node) -> Request | None:
        """What of a safe-point request goes on to that child."""
        if self._propagation is Propagation.NOTHING or (
            self._propagation is Propagation.TO_CALLS and child.kind != "tool_call"
        ):
            return None
        if self._propagation is Propagation.TO_CALLS or request.recursive:
            return request
        # A sub-agent's tool call is the sub-agent: what was asked of the call itself goes on to the run inside.
        return self.log.standing().request if self.kind == "tool_call" else None

    # -- deciding: plain functions in the loop's thread ----------------------------------------------------------------

    def attach(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        """The node starts to live on this loop. A parent that has ended meanwhile takes no children."""
        self._move(NodeState.LIVE)
        if self.parent is not None and self.parent.state in (NodeState.SEALED, NodeState.ENDED):
            self.parent = None
        if self.parent is not None:
            self.parent.children.append(self)
        self._loop, self.clock = loop, clock
        self.evaluate()

    def evaluate(self) -> None:
        """Look at the log: push work that NOW or FORCE concerns, arm the deadline, tell the children."""
        now = self.clock.now()
        self._evaluate(self._inherited(now), now, acted_on=False)

    def _evaluate(self, inherited: Request | None, now: float, *, acted_on: bool) -> None:
        """`acted_on`: the parent has acted on what it hands down, so nobody can take that back any more."""
        if self.state in _NOT_LIVE:
            return
        own = self.log.standing().pressing
        pressing, hard = join(own, inherited), None
        if _level(pressing, now) > self.pushed:
            hard = pressing if acted_on and own is None else self._settled(pressing, self._pressing, None, now)
        self._arm(own, now)
        self.on_change()  # the ask is told before anything that it brings about
        level = _level(hard, now)
        if hard is not None and level > self.pushed:
            self.pushed = level
            if self.log.standing().has_late:  # they press, but they are no part of the stop
                self._commit(None, now)
            else:
                self._stop_for(hard, None, now)
            self.on_push(level)
        for child in tuple(self.children):
            if child._loop is self._loop:
                handed = self._handed_to(child, hard or self._pressing(now), now)
                child._evaluate(handed, now, acted_on=hard is not None)
            else:
                child.wake()  # a run that a thread tool started, on a loop of its own

    def check_safe_point(self, place: str) -> Stop | None:
        """The node stands at this place: does it stop here? If so it is stopping from now on."""
        if self.stop is None:
            self._commit(place, self.clock.now())
        return self.stop

    def check_stop(self) -> Stop | None:
        """No safe point here: only NOW and FORCE, perhaps recorded a moment ago and not yet told, stop the node."""
        if self.stop is None:
            self._commit(None, self.clock.now())
        return self.stop

    def may_start(self) -> bool:
        """May a piece of its work start? Not once NOW or FORCE is recorded, also if that was after the answer."""
        now = self.clock.now()
        if self.stop is None:
            self._commit(None, now)
        return self.stop is None and self._settled(self._pressing(now), self._pressing, None, now) is None

    def pause(self) -> Stop | None:
        """The node waits for a person: it ends by itself here, unless any ask at all stands. Then the ask wins."""
        now = self.clock.now()
        request = self.request_at(now)
        if request is not None and self.stop is None:
            self._commit(min(request.at.places), now)  # whichever it is, but the same one every time
        return self._answer(now)

    def answer(self) -> Stop | None:
        """The node's own result is complete. It counts unless NOW was recorded before it."""
        return self._answer(self.clock.now())

    def _answer(self, now: float) -> Stop | None:
        self.log.append(Mark.ANSWERED)
        if self.stop is None:
            self._commit(None, now)
        self.answered = self.stop is None
        return self.stop

    def seal(self) -> None:
        """Nothing more can be asked of this node, nor written by it."""
        self.log.append(Mark.SEALED)
        self._move(NodeState.SEALED)
        if self._timer is not None:
            self._timer.cancel()

    def finish(self, ending: Ending) -> None:
        """All of it is recorded: let everybody who waits know."""
        self._move(NodeState.ENDED)
        self.ending = ending
        self.on_push, self.on_change = _ignore, _nothing
        if self.parent is not None and self in self.parent.children:
            self.parent.children.remove(self)
        self.ended.set()

    def part_with(self, child: Node) -> None:
        """The child has had its time and goes on without this node: nothing of it is handed down or waited for."""
        if child.parent is self:
            self.children.remove(child)
            child.parent = None

    def _commit(self, place: str | None, now: float) -> None:
        request = self.request_at(now) if not self.answered else None
        if (hit := self._settled(request, self.request_at, place, now)) is not None:
            self._stop_for(hit, place, now)

    def _stop_for(self, request: Request, place: str | None, now: float) -> None:
        if self.answered:
            return
        level = request.level(now)
        if self.stop is None:
            where = place if place is not None and level is Level.SAFE else _HARD[level]
            self.stop = Stop(request, where, level, timed_out=request.expired(now), at=now)
            self._move(NodeState.STOPPING)
        elif level > self.stop.level:
            timed_out = self.stop.timed_out or request.expired(now)
            self.stop = self.stop._replace(request=request, level=level, timed_out=timed_out)

    def _settled(
        self, request: Request | None, read: Callable[[float], Request | None], place: str | None, now: float
    ) -> Request | None:
        """The request, as read, if it hits this place, marked as acted on; None if it does not, or was taken back."""
        # A withdrawal may slip in from another thread between reading and marking: mark, then read again.
        while request is not None and (ids := request.hitting(place, now)):
            if self._mark_acted(ids):
                return request
            again = read(now)
            if again is request or (again is not None and again.ids == request.ids):
                return request
            request = again
        return None

    def _mark_acted(self, ids: frozenset[str]) -> bool:
        """Mark each ask in the log it lives in: it can't be taken back, and nothing new starts for it anywhere.

        True if all of them were marked already, so that none can have been taken back since it was read.
        """
        left = ids
        node: Node | None = self
        while node is not None:
            standing = node.log.standing()
            left = standing.not_acted_on(left)
            fresh = standing.open_among(ids)
            if fresh:
                node.log.append(ActedOn(fresh))
                if node is not self:
                    node.wake()
            node = node.parent
        return not left

    def _arm(self, request: Request | None, now: float) -> None:
        """One timer, for the earliest deadline of this node's own asks; children hear of it from here."""
        if self._timer is not None:
            self._timer.cancel()
        if request is None or request.deadline is None or request.at.level is not Level.SAFE:
            return
        if not request.expired(now):
            self._timer = self.clock.call_at(request.deadline, self.evaluate)

    def _move(self, state: NodeState) -> None:
        if state not in _MOVES[self.state]:
            raise InternalError(f"{self.path}: {self.state} → {state} is not a move")
        self.state = state

    # -- looking -------------------------------------------------------------------------------------------------------

    def walk(self) -> Iterator[Node]:
        """This node and all live ones below it, parents first."""
        yield self
        for child in tuple(self.children):
            yield from child.walk()

    @property
    def started(self) -> bool:
        return self.state is not NodeState.NEW

    @property
    def open(self) -> bool:
        """Does it take asks? Also before it starts; not once it is sealed, or lost."""
        return self.state not in (NodeState.SEALED, NodeState.ENDED) and not self.lost

    @property
    def lost(self) -> bool:
        """Was its loop closed before it ended? Then nobody is left who could end it."""
        return self._loop is not None and self._loop.is_closed() and not self.ended.is_set

    def blocked(self) -> Blocked | None:
        """What blocks this node's event loop right now, if anything does."""
        return blocked(self._loop) if self._loop is not None else None

    def runs_in_this_thread(self) -> bool:
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    def holds(self, other: Node) -> bool:
        """Is `other` this node, or below it?"""
        node: Node | None = other
        while node is not None and node is not self:
            node = node.parent
        return node is self

    def __repr__(self) -> str:
        return f"<{self.kind} {self.path} {self.state}>"


def _level(request: Request | None, now: float) -> Level:
    return request.level(now) if request is not None else Level.NONE


def _ignore(_level: Level) -> None:
    pass


def _nothing() -> None:
    pass

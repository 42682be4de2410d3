"""The tree of everything in a live run that can be stopped by itself, and how a request travels in it.

    NEW ──attach──▶ LIVE ──check / NOW──▶ STOPPING ──seal──▶ SEALED ──finish──▶ ENDED
                     ││ ▲                   ▲                  ▲
                     ││ └───go on───┐       │                  │
                     │└───stay───▶ HELD ─check / NOW           │
                     └─────────seal (ended by itself)──────────┘

A node never stores a request: it reads its own log, takes what its parent hands down, and folds. So a late ask, a
withdrawal or a deadline needs no bookkeeping, only a wake-up, and the log's order is the only truth. Asks that arrive
before the loop has woken share one wake-up.

One decision has one time: the methods that other modules call read the clock once and pass `now` to the methods that
decide. The next decision sees, as a whole, a deadline that passes in the middle of this one.

A parent always hands down NOW and FORCE (children are their parent's work). A safe-point request goes from a run to its
own tool calls, where named points are checked; from there to a sub-agent's run only if it is recursive, as from a
composite to its children. A hand-written tool passes no safe-point request to runs that it started itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from functools import partial
from types import MappingProxyType
from typing import Literal, TypeAlias

from safepoint._core.asklog import ActedOn, AskLog, Mark
from safepoint._core.asks import Ask, Request, hand_down, join, make_ask, make_press
from safepoint._core.clock import Clock, current_clock
from safepoint._core.endings import Ending, Stop
from safepoint._core.hold_receipts import HoldReceipt
from safepoint._core.holds import Held, Hold, Released, Stay, make_hold
from safepoint._core.latch import Latch
from safepoint._core.points import HELD, UNWRITTEN, Condition, Level, SafePoint
from safepoint._core.reasons import Reason
from safepoint._core.receipts import Receipt
from safepoint._core.wake import call_soon
from safepoint._core.watchdog import Blocked, blocked
from safepoint.errors import InternalError

NodeKind: TypeAlias = Literal["run", "tool_call", "branch"]


class NodeState(StrEnum):
    NEW = "new"
    LIVE = "live"
    HELD = "held"
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
    NodeState.LIVE: frozenset({NodeState.HELD, NodeState.STOPPING, NodeState.SEALED}),
    NodeState.HELD: frozenset({NodeState.LIVE, NodeState.STOPPING}),
    NodeState.STOPPING: frozenset({NodeState.SEALED}),
    NodeState.SEALED: frozenset({NodeState.ENDED}),
    NodeState.ENDED: frozenset(),
}


_NOT_LIVE = frozenset({NodeState.NEW, NodeState.SEALED, NodeState.ENDED})
# The place of a stop that did not wait for a safe point.
_HARD = {Level.NOW: "now", Level.FORCE: "force"}


class _WakeUp:
    """One request to the loop to read the log. `over` once the loop reads it, so that the next ask wakes it again."""

    __slots__ = ("over",)

    def __init__(self) -> None:
        self.over = False


class Node:
    """One stoppable thing. Everything except `cancel` and the reads of receipts happens in the loop's own thread."""

    # Initial values are defaults of the class because there is a node for every run and every tool call.
    state = NodeState.NEW
    # Set once, at a safe point or by NOW, and only ever made stronger; None if the node ended by itself.
    stop: Stop | None = None
    ending: Ending | None = None
    answered = False
    pushed = Level.NONE
    # Asks that arrived while the node ended and that concern the run its end started, each with its receipt there.
    handed_on: Mapping[str, Receipt] = MappingProxyType({})
    # The run or turn loop that drives this node; the core never looks inside.
    owner: object = None
    # The task that drives it, if it has its own: a sub-agent's run lives in the task of its tool call.
    task: asyncio.Task[None] | None = None
    _loop: asyncio.AbstractEventLoop | None = None
    _timer: asyncio.TimerHandle | None = None
    # The wait for a hold, while there is one; and the timer for the end of a hold's time.
    stay: Stay | None = None
    _hold_timer: asyncio.TimerHandle | None = None
    # One tuple, replaced whole, because other threads read it too.
    _last_handed: tuple[Request | None, Level, Request | None] = (None, Level.NONE, None)
    _wake_up: _WakeUp | None = None

    def __init__(
        self, id: str, name: str, kind: NodeKind, *, parent: Node | None = None, propagation: Propagation
    ) -> None:
        self.id = id
        self.name = name
        self.kind: NodeKind = kind
        self.parent = parent
        self.children: list[Node] = []
        label = f"{name}:{id}" if kind == "tool_call" else name
        self.path: str = f"{parent.path}/{label}" if parent else label
        self.log: AskLog = AskLog()
        self.ended = Latch()
        self.clock: Clock = parent.clock if parent else current_clock()
        self._propagation = propagation
        self.on_push: Callable[[Level], object] = _ignore
        self.on_change: Callable[[], object] = _nothing

    # -- asking: any thread, any time, no lock ------------------------------------------------------------------------

    def cancel(
        self,
        at: SafePoint = SafePoint.NOW,
        *,
        within: float | None = None,
        recursive: bool = False,
        reason: str | Reason | None = None,
    ) -> Receipt:
        """Ask this node to stop. Never blocks and never raises because of timing; the receipt reports the outcome."""
        now, wall = self.clock.now(), self.clock.wall()
        return self.take(make_ask(at, within=within, recursive=recursive, reason=reason, now=now, wall=wall))

    def press(
        self,
        at: SafePoint = UNWRITTEN,
        *,
        within: float | None = None,
        recursive: bool = False,
        reason: str | Reason | None = None,
    ) -> Receipt:
        """Ask this node to stop, one level harder than what stands. Presses within 300 ms count once."""
        now, wall = self.clock.now(), self.clock.wall()
        return self.take(
            make_press(self.request_at(now), at, within=within, recursive=recursive, reason=reason, now=now, wall=wall)
        )

    def take(self, ask: Ask) -> Receipt:
        """Append a ready-made ask and wake the loop."""
        self.log.append(ask)
        return Receipt(self, ask, reachable=self.wake())

    def hold(
        self,
        at: SafePoint = SafePoint.ANY,
        *,
        within: float | None = None,
        recursive: bool = False,
        reason: str | Reason | None = None,
    ) -> HoldReceipt:
        """Ask this node to wait at a safe point. After `within` seconds the hold becomes a request to stop there."""
        now, wall = self.clock.now(), self.clock.wall()
        hold = make_hold(at, within=within, recursive=recursive, reason=reason, now=now, wall=wall)
        self.log.append(hold)
        return HoldReceipt(self, hold, reachable=self.wake())

    def release(self, hold: Hold) -> bool:
        """Release one hold of this node. False if it does not stand."""
        if all(each.id != hold.id for each in self.log.standing().holds):
            return False
        self.log.append(Released(hold.id))
        released = self.log.standing().was_withdrawn(hold.id)
        self.wake()
        hold.settled.set()
        return released

    def wake(self) -> bool:
        """Have the loop read the log. False if the loop is closed and will never read it."""
        if self._loop is None:
            return True  # a node that starts reads its log
        pending = self._wake_up
        if pending is not None and not pending.over:  # it finds this ask too, unless its loop was closed
            return not self._loop.is_closed()
        pending = _WakeUp()
        woken = self.call_soon(partial(self._woken, pending))
        # Stored last: if a signal handler raises in between, the next ask wakes the loop again.
        self._wake_up = pending
        return woken

    def _woken(self, wake_up: _WakeUp) -> None:
        wake_up.over = True  # before the log is read: a later ask wakes the loop again
        self.evaluate()

    def call_soon(self, call: Callable[[], object]) -> bool:
        """Call it in the loop's thread. False if the loop is closed."""
        assert self._loop is not None, "the node has not started"
        return call_soon(self._loop, call)

    # -- reading: what stands now --------------------------------------------------------------------------------------

    def request(self) -> Request | None:
        """The fold of all asks that stand for this node, its own and those handed down."""
        return self.request_at(self.clock.now())

    @property
    def is_quiet(self) -> bool:
        """Whether this node and its ancestors were never asked anything. Then there is nothing to fold or decide."""
        node: Node | None = self
        while node is not None:
            if not node.log.is_quiet:
                return False
            node = node.parent
        return True

    def request_at(self, now: float) -> Request | None:
        """`request`, for a decision that has read the clock."""
        if self.is_quiet:
            return None
        return join(self.log.standing().request, self._inherited(now))

    def _pressing(self, now: float) -> Request | None:
        """`request`, plus the asks that came after the answer: they cut the work that follows it."""
        return join(self.log.standing().pressing, self._inherited(now))

    def _inherited(self, now: float) -> Request | None:
        parent = self.parent
        return parent._handed_to(self, parent._pressing(now), now) if parent is not None else None

    def _handed_to(self, child: Node, request: Request | None, now: float) -> Request | None:
        """The request that stands for this node, in the form in which that child receives it."""
        if request is None:
            return None
        level = request.level(now)
        passed = request if level >= Level.NOW else self._let_through(request, child)
        if passed is None:
            return None
        if level >= Level.NOW and passed.deadline is not None:
            # A deadline that passes later adds its ask to those that push, and leaves request and level as they are.
            return hand_down(passed, level, now)
        # Made once for all children: it stays the same while this very request stands at this level.
        last_passed, last_level, handed = self._last_handed
        if passed is not last_passed or level is not last_level or handed is None:
            handed = hand_down(passed, level, now)
            self._last_handed = (passed, level, handed)
        return handed

    def _let_through(self, request: Request, child: Node) -> Request | None:
        """The part of a safe-point request that goes on to that child."""
        if self._propagation is Propagation.NOTHING or (
            self._propagation is Propagation.TO_CALLS and child.kind != "tool_call"
        ):
            return None
        if self._propagation is Propagation.TO_CALLS or request.recursive:
            return request
        # A sub-agent's tool call stands for the sub-agent: asks to the call itself go on to the run inside.
        return self.log.standing().request if self.kind == "tool_call" else None

    def holds_at(self, *places: str) -> tuple[Hold, ...]:
        """The holds for which the node has to wait here; empty while any request to stop stands."""
        return self._holds_at(places, self.clock.now()) if not self.is_quiet else ()

    def _holds_at(self, places: tuple[str, ...], now: float) -> tuple[Hold, ...]:
        if self.stop is not None or self.state in _NOT_LIVE:
            return ()
        holds = self._standing_holds(now)
        return tuple([hold for hold in holds if any(hold.at.covers(place) for place in places if place != HELD)])

    @property
    def has_holds(self) -> bool:
        """Whether a hold stands for it, wherever it is to wait."""
        return not self.is_quiet and bool(self._standing_holds(self.clock.now()))

    def conditions(self) -> tuple[Condition, ...]:
        """The tests that requests and holds for this node name."""
        if self.is_quiet:
            return ()
        now = self.clock.now()
        request = self.request_at(now)
        points = [request.at] if request is not None else [hold.at for hold in self._standing_holds(now)]
        return tuple(dict.fromkeys([each for point in points for each in point.conditions]))

    def _standing_holds(self, now: float) -> tuple[Hold, ...]:
        """The holds for this node: its own, and those of its parent that reach it."""
        if self.request_at(now) is not None:
            return ()
        own_holds, parent = self.log.standing().holds, self.parent
        if parent is None:
            return own_holds
        return (*own_holds, *(hold for hold in parent._standing_holds(now) if parent._lets_hold_through(hold, self)))

    def _lets_hold_through(self, hold: Hold, child: Node) -> bool:
        """As `_let_through`, for a hold."""
        if self._propagation is Propagation.NOTHING:
            return False
        if self._propagation is Propagation.TO_CALLS:
            return child.kind == "tool_call"
        return hold.recursive or (self.kind == "tool_call" and hold in self.log.standing().holds)

    # -- deciding: plain functions in the loop's thread ----------------------------------------------------------------

    def attach(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        """Start the node on this loop. A parent that has ended in the meantime takes no children."""
        self._move(NodeState.LIVE)
        if self.parent is not None and self.parent.state in (NodeState.SEALED, NodeState.ENDED):
            self.parent = None
        if self.parent is not None:
            self.parent.children.append(self)
        self._loop, self.clock = loop, clock
        if not self.is_quiet:
            self.evaluate()

    def evaluate(self) -> None:
        """Read the log: push work that NOW or FORCE concerns, arm the deadline, notify the children."""
        now = self.clock.now()
        self._evaluate(self._inherited(now), now, acted_on=False)

    def _evaluate(self, inherited: Request | None, now: float, *, acted_on: bool) -> None:
        """`acted_on`: the parent has acted on the request it hands down, so its asks can no longer be withdrawn."""
        if self.state in _NOT_LIVE:
            return
        own_request = self.log.standing().pressing
        pressing, hard = join(own_request, inherited), None
        if _level(pressing, now) > self.pushed:
            hard = pressing if acted_on and own_request is None else self._settled(pressing, self._pressing, None, now)
        self._arm(own_request, now)
        if self.log.standing().holds:
            self._arm_holds(now)
        self.on_change()  # the ask is published before anything it causes
        level = _level(hard, now)
        if hard is not None and level > self.pushed:
            self.pushed = level
            if self.log.standing().has_late:  # late asks push the work, but are no part of the stop
                self._commit(None, now)
            else:
                self._stop_for(hard, None, now)
            self.on_push(level)
        if self.stay is not None:
            self._go_on(self.stay, now)
        for child in tuple(self.children):
            if child._loop is self._loop:
                handed = self._handed_to(child, hard or self._pressing(now), now)
                child._evaluate(handed, now, acted_on=hard is not None)
            else:
                child.wake()  # a thread tool started this run on a loop of its own

    def stand(self, *places: str) -> Stay | None:
        """The node stands at these places. The wait that begins here, or that has begun; None if nothing holds it."""
        holds = self.holds_at(*places)
        if holds and self.stay is None:
            place = next(place for place in places if holds[0].at.covers(place))
            self.stay = Stay(places, Held(self.path, place, self.clock.wall(), holds[0].reason))
            self._move(NodeState.HELD)
            _settle(holds)
        return self.stay if holds else None

    def _go_on(self, stay: Stay, now: float) -> None:
        """End the wait, unless a hold still keeps the node there."""
        holds = self._holds_at(stay.places, now)
        _settle(holds)
        if not holds:
            self._leave(stay)

    def _leave(self, stay: Stay) -> None:
        self.stay = None
        if self.state is NodeState.HELD:
            self._move(NodeState.LIVE)
        stay.over.set()

    def _arm_holds(self, now: float) -> None:
        """Arm one timer for the next hold whose time will be up."""
        if self._hold_timer is not None:
            self._hold_timer.cancel()
        left = [hold.deadline for hold in self.log.standing().holds if hold.deadline is not None]
        if coming := [deadline for deadline in left if deadline > now]:
            self._hold_timer = self.clock.call_at(min(coming), self._time_is_up)
        if len(coming) < len(left) and self.log.standing().request is None:
            self._lapse(now)

    def _time_is_up(self) -> None:
        self._lapse(self.clock.now())

    def _lapse(self, now: float) -> None:
        """Holds whose time is up become requests to stop."""
        for hold in self.log.standing().holds:
            if hold.deadline is not None and hold.deadline <= now:
                self.take(hold.lapsed())

    def check_safe_point(self, place: str) -> Stop | None:
        """The node stands at this place. If a request hits it, the node is stopping from now on."""
        if self.stop is None and not self.is_quiet:
            self._commit(place, self.clock.now())
        return self.stop

    def check_stop(self) -> Stop | None:
        """Stop the node for NOW and FORCE only, including an ask that was recorded but not yet handed down."""
        if self.stop is None and not self.is_quiet:
            self._commit(None, self.clock.now())
        return self.stop

    def may_start(self) -> bool:
        """Whether a piece of work may start: not once NOW or FORCE is recorded, even if that was after the answer."""
        if self.stop is None and self.is_quiet:
            return True
        now = self.clock.now()
        if self.stop is None:
            self._commit(None, now)
        return self.stop is None and self._settled(self._pressing(now), self._pressing, None, now) is None

    def pause(self) -> Stop | None:
        """The node waits for a person. It ends by itself here, unless any ask stands: then it stops for the ask."""
        now = self.clock.now()
        request = self.request_at(now)
        if request is not None and self.stop is None:
            self._commit(min(request.at.places), now)  # any place would do; `min` makes it the same one every time
        return self._answer(now)

    def answer(self) -> Stop | None:
        """The node's own result is complete. It counts unless NOW was recorded first."""
        return self._answer(self.clock.now())

    def _answer(self, now: float) -> Stop | None:
        self.log.append(Mark.ANSWERED)
        if self.stop is None and not self.is_quiet:
            self._commit(None, now)
        self.answered = self.stop is None
        return self.stop

    def seal(self) -> None:
        """From now on the node takes no asks and writes nothing."""
        self.log.append(Mark.SEALED)
        if self.stay is not None:  # a task that a tool left behind waits there
            self._leave(self.stay)
        self._move(NodeState.SEALED)
        for timer in (self._timer, self._hold_timer):
            if timer is not None:
                timer.cancel()

    def finish(self, ending: Ending) -> None:
        """Everything is recorded: wake the waiters."""
        self._move(NodeState.ENDED)
        self.ending = ending
        self.on_push, self.on_change = _ignore, _nothing
        if self.parent is not None and self in self.parent.children:
            self.parent.children.remove(self)
        self.ended.set()

    def hand_on(self, ask_id: str, receipt: Receipt) -> None:
        """The ask concerns the run that this node's end started: it has the outcome of this receipt."""
        self.handed_on = {**self.handed_on, ask_id: receipt}

    def part_with(self, child: Node) -> None:
        """Detach a child whose time is up: this node no longer hands anything down to it or waits for it."""
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
            where = str(place) if place is not None and level is Level.SAFE else _HARD[level]
            self.stop = Stop(request, where, level, timed_out=request.expired(now), at=now)
            self._move(NodeState.STOPPING)
        elif level > self.stop.level:
            timed_out = self.stop.timed_out or request.expired(now)
            self.stop = self.stop._replace(request=request, level=level, timed_out=timed_out)

    def _settled(
        self, request: Request | None, read: Callable[[float], Request | None], place: str | None, now: float
    ) -> Request | None:
        """Mark the asks that hit this place as acted on and return the request; None if it misses or was withdrawn."""
        # Another thread may withdraw an ask between the read and the mark: mark, then read again.
        while request is not None and (ids := request.hitting(place, now)):
            if self._mark_acted(ids):
                return request
            again = read(now)
            if again is request or (again is not None and again.has_same_asks(request)):
                return request
            request = again
        return None

    def _mark_acted(self, ids: frozenset[str]) -> bool:
        """Mark each ask in the log that holds it: it cannot be withdrawn, and no new work starts for it anywhere.

        True if all of them were marked already, so that none can have been withdrawn since it was read.
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
        """Arm one timer for the earliest deadline of this node's own asks; it notifies the children."""
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
        """This node and all live nodes below it, parents first."""
        yield self
        for child in tuple(self.children):
            yield from child.walk()

    @property
    def started(self) -> bool:
        return self.state is not NodeState.NEW

    @property
    def open(self) -> bool:
        """Whether the node takes asks: also before it starts, but not once it is sealed or its loop is closed."""
        return self.state not in (NodeState.SEALED, NodeState.ENDED) and not self.lost

    @property
    def lost(self) -> bool:
        """Whether its loop was closed before it ended. Then it can never end."""
        return self._loop is not None and self._loop.is_closed() and not self.ended.is_set

    def blocked(self) -> Blocked | None:
        """What blocks this node's event loop now, if anything does."""
        return blocked(self._loop) if self._loop is not None else None

    def runs_in_this_thread(self) -> bool:
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    def lives_elsewhere(self) -> bool:
        """Whether it has started, and not on the loop of this thread."""
        if self._loop is None:
            return False
        try:
            return asyncio.get_running_loop() is not self._loop
        except RuntimeError:
            return True

    def holds(self, other: Node) -> bool:
        """Whether `other` is this node or below it."""
        node: Node | None = other
        while node is not None and node is not self:
            node = node.parent
        return node is self

    def __repr__(self) -> str:
        return f"<{self.kind} {self.path} {self.state}>"


def _level(request: Request | None, now: float) -> Level:
    return request.level(now) if request is not None else Level.NONE


def _settle(holds: tuple[Hold, ...]) -> None:
    """A node waits for them: tell those who wait for that."""
    for hold in holds:
        hold.settled.set()


def _ignore(_level: Level) -> None:
    pass


def _nothing() -> None:
    pass

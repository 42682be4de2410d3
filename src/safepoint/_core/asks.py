"""What an ask is, and how several asks become one request. Pure: the module reads no clock and wakes no task.

The effective request is a fold over the asks that stand: the strongest level wins, safe points are joined, the
earliest deadline counts, recursion sticks, and the headline reason is the one with the strongest source. The fold is
commutative and asks can only make it stronger, so the order in which threads happen to ask never matters.

A request knows at once how hard it pushes and where it takes effect. It builds the list of its asks on first read,
which happens when a node stops, so ten thousand asks that wait for one tool do not cost ten thousand lists.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Protocol

from msgspec import field
from msgspec.structs import replace

from safepoint._core.points import UNWRITTEN, Level, SafePoint, check_point
from safepoint._core.reasons import Reason, Source, as_reason, from_parent, headline
from safepoint._values import Value

_numbers = itertools.count(1)


def _new_id() -> str:
    return f"ask-{next(_numbers)}"


class Ask(Value, frozen=True):
    """One request to stop, as the asker made it. The receipt says what came of it.

    `pressed_at`: for an ask that escalates, the time of the press by the loop's clock.
    """

    at: SafePoint
    reason: Reason = field(default_factory=Reason)
    deadline: float | None = None
    recursive: bool = False
    asked_at: float = 0.0
    id: str = field(default_factory=_new_id)
    pressed_at: float | None = None

    def hits(self, place: str | None, now: float) -> bool:
        """Whether a node that stands at this place would stop for this ask alone."""
        at = self.at
        if at.level >= Level.NOW or (place is not None and at.covers(place)):
            return True
        return self.deadline is not None and now >= self.deadline

    def handed_down(self, level: Level) -> Ask:
        """The same ask as a child sees it: the parent is its source, and NOW stays NOW for everything below."""
        at = self.at if level <= Level.SAFE else (SafePoint.FORCE if level is Level.FORCE else SafePoint.NOW)
        if at is self.at and self.reason.source is Source.PARENT:
            return self  # already in the form that a child sees
        (why,) = from_parent([self.reason])
        return Ask(at, why, self.deadline, self.recursive, self.asked_at, self.id)


def make_ask(
    at: SafePoint, *, within: float | None, recursive: bool, reason: str | Reason | None, now: float, wall: float
) -> Ask:
    """Check the arguments of a `cancel(…)` call. A contradiction is refused here and never becomes an ask."""
    check_point(at)
    if not at.places:
        raise ValueError("at has no place in it, so it would never come: write SafePoint.ANY for the first that comes")
    if within is None:
        deadline = None
    elif at.level is not Level.SAFE:
        raise ValueError(
            f"within={within!r} with {at!r}: it is immediate already; leave within out, or write SafePoint.ANY"
        )
    elif not is_seconds(within):
        raise ValueError(f"within={within!r}: write a number of seconds above 0, or at=SafePoint.NOW to stop at once")
    else:
        deadline = now + within
    return Ask(at, as_reason(reason), deadline, bool(recursive), wall)


# The first press of a Stop button stops at the next of these points; each later press pushes one level harder.
FIRST_PRESS = SafePoint.AFTER_TOOL | SafePoint.AFTER_MODEL
# Presses that follow each other faster than this count as one press.
ONE_PRESS = 0.3


def make_press(
    standing: Request | None,
    at: SafePoint,
    *,
    within: float | None,
    recursive: bool,
    reason: str | Reason | None,
    now: float,
    wall: float,
) -> Ask:
    """The ask that `cancel(escalate=True)` makes: one level harder than the request that stands."""
    if at is not UNWRITTEN or within is not None:
        raise ValueError(
            "escalate=True chooses the level itself, one harder than what was asked before: leave at and within out"
        )
    ask = make_ask(_pressed(standing, now), within=None, recursive=recursive, reason=reason, now=now, wall=wall)
    return replace(ask, pressed_at=now)


def _pressed(standing: Request | None, now: float) -> SafePoint:
    if standing is None:
        return FIRST_PRESS
    for ask in reversed(standing.asks):
        if ask.pressed_at is not None and now - ask.pressed_at < ONE_PRESS:
            return ask.at
    return SafePoint.FORCE if standing.level(now) >= Level.NOW else SafePoint.NOW


def is_seconds(value: object) -> bool:
    """A positive, finite number of seconds."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


class Request(ABC):
    """The fold of the asks that stand. Immutable, and safe to read in any thread."""

    __slots__ = ("_asks", "_by_id", "_reason", "_reasons", "at")

    def __init__(self, at: SafePoint) -> None:
        self.at = at
        # Computed on first read. Two threads may both compute them; they get the same values.
        self._asks: tuple[Ask, ...] | None = None
        self._by_id: Mapping[str, Ask] | None = None
        self._reason: Reason | None = None
        self._reasons: tuple[Reason, ...] | None = None

    @abstractmethod
    def _make_asks(self) -> tuple[Ask, ...]:
        """List the asks in the order in which they were made."""

    def _make_reasons(self) -> tuple[Reason, ...]:
        return tuple([ask.reason for ask in self.asks])

    @property
    def asks(self) -> tuple[Ask, ...]:
        asks = self._asks
        if asks is None:
            asks = self._asks = self._make_asks()
        return asks

    @property
    @abstractmethod
    def deadline(self) -> float | None:
        """The earliest deadline of all asks."""

    @property
    @abstractmethod
    def recursive(self) -> bool:
        """Whether any ask is recursive."""

    @property
    @abstractmethod
    def ids(self) -> frozenset[str]:
        """The ids of all asks."""

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """The reasons of all asks, in the order of the asks."""
        reasons = self._reasons
        if reasons is None:
            reasons = self._reasons = self._make_reasons()
        return reasons

    @property
    def reason(self) -> Reason:
        """The headline: the first of the reasons with the strongest source."""
        reason = self._reason
        if reason is None:
            reason = self._reason = headline(self.reasons)
        return reason

    @property
    def asked_at(self) -> float:
        """The wall-clock time of the earliest ask."""
        return min([ask.asked_at for ask in self.asks])

    def find(self, ask_id: str) -> Ask | None:
        """The ask with that id, in the form it has in this request."""
        by_id = self._by_id
        if by_id is None:
            by_id = self._by_id = {ask.id: ask for ask in self.asks}
        return by_id.get(ask_id)

    def expired(self, now: float) -> bool:
        """Whether the deadline alone has turned this safe-point request into NOW."""
        return self.at.level is Level.SAFE and self.deadline is not None and now >= self.deadline

    def level(self, now: float) -> Level:
        return Level.NOW if self.expired(now) else self.at.level

    def mildest(self) -> Level:
        return min([ask.at.level for ask in self.asks])

    def hits(self, place: str | None, now: float) -> bool:
        """Whether a node that stands at this place would stop. None is no safe point: only NOW and FORCE hit it."""
        return self.at.level >= Level.NOW or (place is not None and self.at.covers(place)) or self.expired(now)

    @abstractmethod
    def hitting(self, place: str | None, now: float) -> frozenset[str]:
        """The ids of the asks that hit the place, each by itself; empty if even all of them together do not."""

    def has_same_asks(self, other: Request) -> bool:
        """Whether both are folds of the same asks. A mark in the log makes a new request of them."""
        return self.ids == other.ids

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Request) and self._gist() == other._gist()

    def __hash__(self) -> int:
        return hash(self._gist())

    def _gist(self) -> tuple[object, ...]:
        return self.at, self.deadline, self.recursive, self.asks

    def __repr__(self) -> str:
        return f"Request({self.at!r}, deadline={self.deadline}, recursive={self.recursive}, asks={self.asks!r})"


class Listed(Protocol):
    """Asks that are listed on first read. Whether one of them hits a place is known without the list."""

    def asks(self) -> tuple[Ask, ...]: ...

    def ids(self) -> frozenset[str]: ...

    def covers(self, place: str) -> bool:
        """Whether one of them names this place."""
        ...

    def hitting(self, place: str | None, now: float) -> frozenset[str]:
        """The ids of those that hit the place, each by itself."""
        ...


class _List:
    """Asks that already are a list."""

    __slots__ = ("_asks",)

    def __init__(self, asks: tuple[Ask, ...]) -> None:
        self._asks = asks

    def asks(self) -> tuple[Ask, ...]:
        return self._asks

    def ids(self) -> frozenset[str]:
        return frozenset([ask.id for ask in self._asks])

    def covers(self, place: str) -> bool:
        return any(ask.at.covers(place) for ask in self._asks)

    def hitting(self, place: str | None, now: float) -> frozenset[str]:
        return frozenset([ask.id for ask in self._asks if ask.hits(place, now)])


class Folded(Request):
    """A request whose fold is known before its asks are listed.

    `engaged`: the ids of safe-point asks for which some node has stopped. No new work starts for these anywhere: every
    boundary is a safe point for them.
    """

    __slots__ = ("_deadline", "_engaged", "_last_hitting", "_listed", "_recursive")

    def __init__(
        self,
        at: SafePoint,
        deadline: float | None,
        listed: Listed,
        *,
        recursive: bool,
        engaged: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(at)
        self._deadline = deadline
        self._listed = listed
        self._recursive = recursive
        self._engaged = engaged
        # Read many times while a tree of nodes stops. Without a deadline the answer does not depend on the time.
        self._last_hitting: tuple[str | None, frozenset[str]] | None = None

    def _make_asks(self) -> tuple[Ask, ...]:
        engaged = self._engaged
        if not engaged:
            return self._listed.asks()
        return tuple([replace(ask, at=SafePoint.ANY) if ask.id in engaged else ask for ask in self._listed.asks()])

    @property
    def deadline(self) -> float | None:
        return self._deadline

    @property
    def recursive(self) -> bool:
        return self._recursive

    @property
    def ids(self) -> frozenset[str]:
        return self._listed.ids()

    def _make_reasons(self) -> tuple[Reason, ...]:
        return tuple([ask.reason for ask in self._listed.asks()])

    @property
    def asked_at(self) -> float:
        return min([ask.asked_at for ask in self._listed.asks()])

    def mildest(self) -> Level:
        return min([ask.at.level for ask in self._listed.asks()])

    def hits(self, place: str | None, now: float) -> bool:
        # Thousands of asks may name a point each: their places are not merged only to find out about this one.
        if place is None or self.at.is_merged or self.at.level is not Level.SAFE:
            return super().hits(place, now)
        return self._listed.covers(place) or self.expired(now)

    def hitting(self, place: str | None, now: float) -> frozenset[str]:
        if not self.hits(place, now):
            return frozenset()
        last = self._last_hitting
        if last is not None and last[0] == place and self._deadline is None:
            return last[1]
        hitting = self._listed.hitting(place, now)
        if self._engaged and place is not None and SafePoint.ANY.covers(place):
            hitting |= self._engaged
        self._last_hitting = (place, hitting)
        return hitting

    def has_same_asks(self, other: Request) -> bool:
        if isinstance(other, Folded) and other._listed is self._listed:
            return True
        return super().has_same_asks(other)


class _HandedMild(Request):
    """A safe-point request as a child receives it: unchanged, except that the parent is its source."""

    __slots__ = ("of",)

    def __init__(self, of: Request) -> None:
        super().__init__(of.at)
        self.of = of

    def _make_asks(self) -> tuple[Ask, ...]:
        return tuple([ask.handed_down(Level.SAFE) for ask in self.of.asks])

    @property
    def deadline(self) -> float | None:
        return self.of.deadline

    @property
    def recursive(self) -> bool:
        return self.of.recursive

    @property
    def ids(self) -> frozenset[str]:
        return self.of.ids

    def _make_reasons(self) -> tuple[Reason, ...]:
        return from_parent(self.of.reasons)

    @property
    def asked_at(self) -> float:
        return self.of.asked_at

    def mildest(self) -> Level:
        return self.of.mildest()

    def hits(self, place: str | None, now: float) -> bool:
        return self.of.hits(place, now)

    def hitting(self, place: str | None, now: float) -> frozenset[str]:
        return self.of.hitting(place, now)

    def has_same_asks(self, other: Request) -> bool:
        return self.of.has_same_asks(other.of if isinstance(other, _HandedMild) else other)


class _HandedHard(Request):
    """NOW or FORCE as a child receives it.

    A safe-point ask that stands beside NOW does not stop the child: the child does not act on it, and it stays mild.
    """

    __slots__ = ("_hard", "_level", "_now", "of")

    def __init__(self, of: Request, level: Level, now: float) -> None:
        super().__init__(SafePoint.FORCE if level is Level.FORCE else SafePoint.NOW)
        self.of = of
        self._level = level
        self._now = now
        self._hard: tuple[Ask, ...] | None = None

    def _pushing(self) -> tuple[Ask, ...]:
        """The parent's asks that are NOW or FORCE."""
        hard = self._hard
        if hard is None:
            hard = self._hard = tuple([ask for ask in self.of.asks if ask.hits(None, self._now)])
        return hard

    def _make_asks(self) -> tuple[Ask, ...]:
        return tuple([ask.handed_down(self._level) for ask in self._pushing()])

    @property
    def deadline(self) -> float | None:
        return reduce(earlier, [ask.deadline for ask in self._pushing()])

    @property
    def recursive(self) -> bool:
        return any(ask.recursive for ask in self._pushing())

    @property
    def ids(self) -> frozenset[str]:
        return self.of.hitting(None, self._now)

    def _make_reasons(self) -> tuple[Reason, ...]:
        return from_parent([ask.reason for ask in self._pushing()])

    @property
    def asked_at(self) -> float:
        return min([ask.asked_at for ask in self._pushing()])

    def mildest(self) -> Level:
        return self._level

    def hitting(self, place: str | None, now: float) -> frozenset[str]:
        return self.ids


class _Joined(Request):
    """A node's own request joined with the one its parent hands down."""

    __slots__ = ("_one", "_other")

    def __init__(self, one: Request, other: Request) -> None:
        super().__init__(stronger_at(one.at, other.at))
        self._one = one
        self._other = other

    def _make_asks(self) -> tuple[Ask, ...]:
        return _distinct((*self._one.asks, *self._other.asks))

    @property
    def deadline(self) -> float | None:
        return earlier(self._one.deadline, self._other.deadline)

    @property
    def recursive(self) -> bool:
        return self._one.recursive or self._other.recursive

    @property
    def ids(self) -> frozenset[str]:
        return self._one.ids | self._other.ids

    def hits(self, place: str | None, now: float) -> bool:
        return self._one.hits(place, now) or self._other.hits(place, now)

    def hitting(self, place: str | None, now: float) -> frozenset[str]:
        return self._one.hitting(place, now) | self._other.hitting(place, now)


def hand_down(request: Request, level: Level, now: float) -> Request:
    """The request as a child receives it from a parent that takes it at this level."""
    if isinstance(request, _HandedHard):
        return request  # already in the form that a child sees
    of = request.of if isinstance(request, _HandedMild) else request
    return _HandedMild(of) if level <= Level.SAFE else _HandedHard(of, level, now)


def join(one: Request | None, other: Request | None) -> Request | None:
    """Fold the asks of both requests."""
    if one is None or other is None:
        return one or other
    return _Joined(one, other)


def fold(asks: Iterable[Ask]) -> Request | None:
    """Fold asks into one request; None if there are none. An ask that occurs twice counts once."""
    distinct = _distinct(asks)
    if not distinct:
        return None
    deadline = reduce(earlier, [ask.deadline for ask in distinct])
    at, recursive = reduce(stronger_at, [ask.at for ask in distinct]), any(ask.recursive for ask in distinct)
    return Folded(at, deadline, _List(distinct), recursive=recursive)


def _distinct(asks: Iterable[Ask]) -> tuple[Ask, ...]:
    by_id: dict[str, Ask] = {}
    for ask in asks:
        by_id[ask.id] = _stronger(by_id[ask.id], ask) if ask.id in by_id else ask
    return tuple(by_id.values())


def stronger_at(one: SafePoint, other: SafePoint) -> SafePoint:
    """The point at which asks for either point take effect together."""
    if one.level is Level.SAFE and other.level is Level.SAFE:
        return one if one.includes(other) else one | other
    return one if one.level >= other.level else other


def earlier(one: float | None, other: float | None) -> float | None:
    """The earlier of two deadlines; None is no deadline."""
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


def _stronger(one: Ask, other: Ask) -> Ask:
    """Choose between two copies of one ask: the node's own, and the one handed down to it."""
    reason = max((one.reason, other.reason), key=lambda reason: reason.strength)
    return replace(one, at=stronger_at(one.at, other.at), reason=reason)

"""What an ask is, and how several become one request. Pure: no clock is read, nothing is woken.

The effective request is a fold over the asks that stand: the strongest level wins, safe points are joined, the
earliest deadline counts, recursion sticks, and the headline reason is the one with the strongest source. The fold is
commutative and asks can only make it stronger, so the order in which threads happen to ask never matters.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import reduce

from safepoint._core.points import Level, SafePoint, check_point
from safepoint._core.reasons import Reason, Source, as_reason

_numbers = itertools.count(1)


def _new_id() -> str:
    return f"ask-{next(_numbers)}"


@dataclass(frozen=True, slots=True)
class Ask:
    """Somebody asked. A fact about the asker; what came of it is on the receipt."""

    at: SafePoint
    reason: Reason = field(default_factory=Reason)
    deadline: float | None = None
    recursive: bool = False
    asked_at: float = 0.0
    id: str = field(default_factory=_new_id)

    def handed_down(self, level: Level) -> Ask:
        """The same ask as a child sees it: the parent is its source, and NOW stays NOW for all that is below."""
        at = self.at if level <= Level.SAFE else (SafePoint.FORCE if level is Level.FORCE else SafePoint.NOW)
        if at is self.at and self.reason.source is Source.PARENT:
            return self  # two levels down it looks as it does one level down
        why = Reason(self.reason.text, Source.PARENT, self.reason.by)
        return Ask(at, why, self.deadline, self.recursive, self.asked_at, self.id)


def make_ask(
    at: SafePoint, *, within: float | None, recursive: bool, reason: str | Reason | None, now: float, wall: float
) -> Ask:
    """Check the words of a `cancel(…)` call; a contradiction is refused here and never becomes an ask."""
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


def is_seconds(value: object) -> bool:
    """A positive, finite number of seconds."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


@dataclass(frozen=True, slots=True)
class Request:
    """The fold: what the asks that stand amount to together."""

    at: SafePoint
    deadline: float | None
    recursive: bool
    asks: tuple[Ask, ...]

    @property
    def ids(self) -> frozenset[str]:
        return frozenset(ask.id for ask in self.asks)

    @property
    def reason(self) -> Reason:
        if len(self.asks) == 1:
            return self.asks[0].reason
        return max((ask.reason for ask in self.asks), key=lambda reason: reason.strength)

    def expired(self, now: float) -> bool:
        """The deadline, and nothing else, turns this safe-point request into NOW."""
        return self.at.level is Level.SAFE and self.deadline is not None and now >= self.deadline

    def level(self, now: float) -> Level:
        return Level.NOW if self.expired(now) else self.at.level

    def mildest(self) -> Level:
        return self.at.level if len(self.asks) == 1 else min([ask.at.level for ask in self.asks])

    def hits(self, place: str | None, now: float) -> bool:
        """Would a node that stands at this place stop here? None is no safe point: only NOW and FORCE count there."""
        return self.at.level >= Level.NOW or (place is not None and self.at.covers(place)) or self.expired(now)

    def hitting(self, place: str | None, now: float) -> tuple[Ask, ...]:
        """The asks that would stop it there, each by itself; none if they do not even together."""
        if len(self.asks) == 1:
            return self.asks if self.hits(place, now) else ()
        return tuple(ask for ask in self.asks if alone(ask).hits(place, now))


def join(one: Request | None, other: Request | None) -> Request | None:
    """The fold of all asks of both."""
    if one is None or other is None:
        return one or other
    if not one.ids.isdisjoint(other.ids):
        return fold((*one.asks, *other.asks))
    # Nothing in common: what each amounts to is known, and a thousand asks need not be looked at again.
    deadlines = [each.deadline for each in (one, other) if each.deadline is not None]
    at = _stronger_at(one.at, other.at)
    return Request(at, min(deadlines, default=None), one.recursive or other.recursive, (*one.asks, *other.asks))


def fold(asks: Iterable[Ask]) -> Request | None:
    """The one request that several asks amount to; None if none stands. An ask seen twice counts once."""
    by_id: dict[str, Ask] = {}
    for ask in asks:
        by_id[ask.id] = _stronger(by_id[ask.id], ask) if ask.id in by_id else ask
    distinct = tuple(by_id.values())
    if not distinct:
        return None
    if len(distinct) == 1:
        return alone(distinct[0])
    at = reduce(_stronger_at, (ask.at for ask in distinct))
    deadlines = [ask.deadline for ask in distinct if ask.deadline is not None]
    return Request(at, min(deadlines, default=None), any(ask.recursive for ask in distinct), distinct)


def alone(ask: Ask) -> Request:
    """What one ask amounts to by itself."""
    return Request(ask.at, ask.deadline, ask.recursive, (ask,))


def _stronger_at(one: SafePoint, other: SafePoint) -> SafePoint:
    if one.level is Level.SAFE and other.level is Level.SAFE:
        return one if one == other else one | other
    return one if one.level >= other.level else other


def _stronger(one: Ask, other: Ask) -> Ask:
    """The same ask on two ways: made of this node itself, and handed down to it."""
    request = fold([one, replace(other, id=f"{one.id} handed down")])
    assert request is not None
    return replace(one, at=request.at, reason=request.reason)

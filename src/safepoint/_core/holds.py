"""Asks to wait at a safe point without ending, and the wait itself.

A hold is recorded in the log of its node, among the asks to stop, so that the order of one list answers every question
of timing. It travels in the tree as a safe-point request does. While a request to stop stands for a node, its holds are
void: a cancel ends a hold, and a run that was asked to stop does not wait.
"""

from __future__ import annotations

import itertools

from msgspec import field

from safepoint._core.asks import Ask, is_seconds
from safepoint._core.latch import Latch
from safepoint._core.points import Level, SafePoint, check_point
from safepoint._core.reasons import Reason, Source, as_reason
from safepoint._values import Value

_numbers = itertools.count(1)


def _new_id() -> str:
    return f"hold-{next(_numbers)}"


class Hold(Value, frozen=True):
    """One request to wait, as it was made. `deadline`: when it becomes a request to stop, by the loop's clock."""

    at: SafePoint
    reason: Reason = field(default_factory=Reason)
    deadline: float | None = None
    recursive: bool = False
    asked_at: float = 0.0
    id: str = field(default_factory=_new_id)
    # Set as soon as a node waits for it, or it is clear that none will.
    settled: Latch = field(default_factory=Latch)

    def lapsed(self) -> Ask:
        """The ask that follows once the time is up. One hold makes one ask, however often this is called."""
        text = f"held for as long as it may be{f': {self.reason.text}' if self.reason.text else ''}"
        why = Reason(text, Source.DEADLINE, self.reason.by)
        return Ask(self.at, why, None, self.recursive, self.asked_at, f"{self.id}-lapsed")


def make_hold(
    at: SafePoint, *, within: float | None, recursive: bool, reason: str | Reason | None, now: float, wall: float
) -> Hold:
    """Check the arguments of a `hold(…)` call."""
    if check_point(at).level is not Level.SAFE:
        raise ValueError(
            f"a hold waits at a safe point, and {at!r} is none: write SafePoint.ANY, or run.cancel() to stop"
        )
    if not at.places:
        raise ValueError("at has no place in it, so it would never come: write SafePoint.ANY for the first that comes")
    if within is not None and not is_seconds(within):
        raise ValueError(f"within={within!r}: write a number of seconds above 0, or leave it out to wait without limit")
    return Hold(at, as_reason(reason), now + within if within is not None else None, bool(recursive), wall)


class Released(Value, frozen=True):
    """An entry of the log: that hold stands no longer."""

    hold_id: str


class Held(Value, frozen=True):
    """A node that waits: its path, the place where it stands, since when, and why."""

    path: str
    place: str
    since: float
    reason: Reason


class Stay:
    """The wait of one node at the places where it stands. `over` is set when no hold keeps it there."""

    __slots__ = ("held", "over", "places")

    def __init__(self, places: tuple[str, ...], held: Held) -> None:
        self.places = places
        self.held = held
        self.over = Latch()

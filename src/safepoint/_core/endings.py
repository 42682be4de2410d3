"""The facts of a node's stop, known when it is decided, and of its end, known when everything is recorded.

`Stop` and `Ending` are plain tuples because a caller waits for the stop while they are made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from safepoint._core.asks import Ask, Request
from safepoint._core.orphans import Orphan
from safepoint._core.points import Level
from safepoint._core.reasons import Reason
from safepoint._values import Value


class Stop(NamedTuple):
    """Why, where and how hard a node stops. `at` is the clock's time of the decision."""

    request: Request
    place: str
    level: Level
    timed_out: bool
    at: float

    @property
    def reason(self) -> Reason:
        return self.request.reason

    @property
    def escalated(self) -> bool:
        """Whether a safe-point request became NOW, by its deadline or by a stronger ask."""
        return self.level >= Level.NOW and self.request.mildest() is Level.SAFE

    def recorded(self, stopped_at: float) -> Cancellation:
        """The record of this stop, which took effect at that wall-clock time."""
        return Cancellation(
            self.reason,
            self.request.reasons,
            self.place,
            self.level,
            self.escalated,
            self.timed_out,
            self.request.asked_at,
            stopped_at,
        )

    def took_part(self, ask: Ask) -> bool:
        """Whether this ask helped to bring the stop about."""
        standing = self.request.find(ask.id)
        if standing is None:
            return False
        if standing.at.level >= Level.NOW:
            return standing.at.level is self.level or (self.place == "now" and not self.timed_out)
        return standing.at.covers(self.place) or (self.timed_out and standing.deadline == self.request.deadline)


class Cancellation(Value, frozen=True):
    """The record of a stop, on the result and the end event of what was stopped. Times are seconds since the epoch."""

    reason: Reason
    reasons: tuple[Reason, ...]
    place: str
    level: Level
    escalated: bool
    timed_out: bool
    asked_at: float
    stopped_at: float


class Touched(Value, frozen=True):
    """A node that the stop reached, and its state in the ledger."""

    path: str
    name: str
    state: str


class Ending(NamedTuple):
    """How a node ended, as its receipts report it. `cancelled` is false for a node that ended by itself."""

    cancelled: bool
    stopped_at: float
    touched: tuple[Touched, ...] = ()
    queued: tuple[str, ...] = ()
    orphans: tuple[Orphan, ...] = ()
    usage: object = None
    save_error: BaseException | None = None
    # The messages that no model call has seen; what the model call that was cut has used; and an estimate, made when
    # it is read, of what the next model call of a resumed run would use.
    unheard: tuple[str, ...] = ()
    cut_usage: object = None
    next_usage: Callable[[], object] | None = None

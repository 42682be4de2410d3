"""One turn: the items it was made of, its run, and the requests that took part in its end.

        ┌──────────it continues a run that asks a person──────────────────────────┐
        │                                                                          ▼
    PLANNING ──its run starts──▶ ACTIVE ──asks a person, and the loop waits──▶ PAUSED
        │                         │  ▲─────────────────answered─────────────────┘  │
        │ planning failed         │ its run and its callback have ended            │ preempted, stopped, cancelled
        └───────────▶ OVER ◀──────┴────────────────────────────────────────────────┘

A turn stores no request. It passes each ask to its run, and reads the outcome from the run's receipts. So `preempted`
and `stopped` are true if and only if such a request took part in the end of the run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from safepoint._core.asks import Ask
from safepoint._core.receipts import Receipt
from safepoint.agent.result import RunResult
from safepoint.agent.resume import Cleared
from safepoint.agent.run import Run
from safepoint.errors import InternalError, NotEnded
from safepoint.turns.items import Item, values

if TYPE_CHECKING:
    from safepoint.turns.continuing import Unfinished
    from safepoint.turns.loop import TurnLoop

T = TypeVar("T")
AnyRun: TypeAlias = Run[Any, Any]  # Any: a run of any agent


class TurnPhase(StrEnum):
    PLANNING = "planning"
    ACTIVE = "active"
    PAUSED = "paused"
    OVER = "over"


class TurnOutcome(StrEnum):
    """The outcome of a turn, and with it of its items."""

    ENDED = "ended"
    """Its run ended by itself, or was cancelled alone, also while it waited for a person."""
    FAILED = "failed"
    """Its run ended with an error. Its items are retried, or are in `exit.failed`."""
    PREEMPTED = "preempted"
    """A push preempted it. Its items are dropped or put back, as `carry` says."""
    INTERRUPTED = "interrupted"
    """A stop cut it, or its task was cancelled, or it waits for a person while the loop ends. It can continue."""
    PUT_BACK = "put_back"
    """A callback failed, and its items wait again."""


_MOVES = {
    TurnPhase.PLANNING: frozenset({TurnPhase.ACTIVE, TurnPhase.PAUSED, TurnPhase.OVER}),
    TurnPhase.ACTIVE: frozenset({TurnPhase.PAUSED, TurnPhase.OVER}),
    TurnPhase.PAUSED: frozenset({TurnPhase.ACTIVE, TurnPhase.OVER}),
    TurnPhase.OVER: frozenset[TurnPhase](),
}


class Turn(Generic[T]):
    """A turn as `on_events` and push strategies see it."""

    def __init__(self, loop: TurnLoop[T], number: int, why: Callable[[], str | None], since: float) -> None:
        self.loop = loop
        self._why = why
        self.number = number
        # When it began, in seconds since 1970.
        self.since = since
        self.metadata: Mapping[str, Any] = {}  # Any: the plan's own
        self.phase = TurnPhase.PLANNING
        # The items that the plan consumed, and the ones that joined since. Empty while the turn is planned.
        self.items: list[Item[T]] = []
        # The data needed if the turn does not reach its end; None while it is planned.
        self.left: Unfinished[T] | None = None
        self._run: AnyRun | None = None
        self._preempts: list[Receipt] = []
        self._stops: list[Receipt] = []
        # Whether a request found no run to ask, because the turn was waiting for a person.
        self._left_while_paused = False
        # What a cancel of the waiting run has made of its pause; None if it stands, or was answered.
        self.cleared: Cleared | None = None

    # -- looking -------------------------------------------------------------------------------------------------------

    @property
    def consumed(self) -> list[T]:
        """The items of this turn."""
        return values(self.items)

    @property
    def run(self) -> AnyRun:
        """The run of this turn; the latest one, if it asked a person in between."""
        if self._run is None:
            raise NotEnded("the turn is being planned, it has no run yet")
        return self._run

    @property
    def attempt(self) -> int:
        """The number of this try, from 1: a failed turn may be retried."""
        return self.left.attempt if self.left is not None else 1

    @property
    def has_run(self) -> bool:
        return self._run is not None

    @property
    def result(self) -> RunResult[Any]:  # Any: of any output type
        """The result of the run. Raises `NotEnded` before its end."""
        return self.run.result

    @property
    def preempted(self) -> bool:
        """Whether a push's preempt took part in the end of this turn."""
        return self._left_while_paused or self._took_part(self._preempts)

    @property
    def stopped(self) -> bool:
        """Whether a stop of the loop took part in the end of this turn."""
        return self._took_part(self._stops)

    @property
    def timed_out(self) -> bool:
        """Whether the deadline of a request brought the end about."""
        stop = self.run.node.stop
        return stop is not None and stop.timed_out

    @property
    def cause(self) -> str | None:
        """Why the loop stops, once the stop took part in the end of this turn."""
        return self._why() if self.stopped else None

    def _took_part(self, receipts: list[Receipt]) -> bool:
        return self._run is not None and self._run.ended and any(receipt.contributed for receipt in receipts)

    # -- asking, in the loop's thread ----------------------------------------------------------------------------------

    def preempt(self, ask: Ask) -> None:
        if self.phase is TurnPhase.PAUSED:
            self._left_while_paused = True
        else:
            self._preempts.append(self.run.node.take(ask))

    def stop(self, ask: Ask) -> None:
        if self.phase is TurnPhase.ACTIVE:
            self._stops.append(self.run.node.take(ask))

    # -- living --------------------------------------------------------------------------------------------------------

    def begin(self, run: AnyRun) -> None:
        """Its run has started. A run that continues after a pause has no asks yet."""
        self._move(TurnPhase.ACTIVE)
        self._run, self._preempts, self._stops = run, [], []

    def pause(self) -> None:
        """Its run waits for a person. A preempt that the run finished before takes effect now."""
        self._move(TurnPhase.PAUSED)
        self._left_while_paused = bool(self._preempts)

    @property
    def given_up(self) -> bool:
        """Whether the turn waits for a person and a push has preempted it."""
        return self._left_while_paused

    def end(self) -> None:
        self._move(TurnPhase.OVER)

    def _move(self, phase: TurnPhase) -> None:
        if phase not in _MOVES[self.phase]:
            raise InternalError(f"turn {self.number}: {self.phase} → {phase} is not a move")
        self.phase = phase

    def __repr__(self) -> str:
        return f"<Turn {self.number}, {self.phase}, {len(self.items)} items>"


MoveCounts: TypeAlias = Counter[tuple[str, str]]
"""Which arrows of a drawn machine were taken, and how often."""

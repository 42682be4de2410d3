"""A loop at one moment, for any thread: the live turn, the waiting items, the failed turns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from safepoint.turns.exit import FailedTurn
from safepoint.turns.turn import AnyRun, TurnPhase

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TurnView(Generic[T]):
    """The turn under way. `run` is None while it is planned. `since`: when it began, in seconds since 1970."""

    number: int
    phase: TurnPhase
    items: tuple[T, ...]
    run: AnyRun | None
    since: float


@dataclass(frozen=True, slots=True)
class LoopView(Generic[T]):
    """`queue`: accepted items that no turn has consumed, in order."""

    turn: TurnView[T] | None
    queue: tuple[T, ...]
    failed: tuple[FailedTurn[T], ...] = ()

"""How a loop ended, and the place of every accepted item that no turn has handled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, TypeVar

from safepoint.agent.checkpoint import Checkpoint

T = TypeVar("T")


class ExitReason(StrEnum):
    CLEAN = "clean"
    """At a turn boundary; no turn was cut."""
    CANCELLED = "cancelled"
    """A stop cut the last turn, or the task of the loop was cancelled."""
    INTERRUPTED = "interrupted"
    """The last turn waits for a person."""
    ERROR = "error"
    """A callback, a turn or the store failed."""


class SavedState(StrEnum):
    SAVED = "saved"
    SKIPPED = "skipped"
    NONE = "none"
    FAILED = "failed"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Saved:
    """The state of the loop's record, or of an item. It equals its state: `exit.checkpoint == "saved"`."""

    state: SavedState
    error: BaseException | None = None

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Saved):
            return (self.state, self.error) == (other.state, other.error)
        return self.state == other

    def __hash__(self) -> int:
        return hash(self.state)


@dataclass(frozen=True, slots=True, eq=False)
class FailedTurn(Generic[T]):
    """A turn that failed: `items, error, checkpoint = failed`. `attempt` counts its tries, from 1.

    After a restart `error` has only the text of the original error, and `attempt` is 1.
    """

    items: tuple[T, ...]
    error: BaseException
    checkpoint: Checkpoint | None = None
    attempt: int = 1

    def __iter__(self) -> Iterator[tuple[T, ...] | BaseException | Checkpoint | None]:
        return iter((self.items, self.error, self.checkpoint))


@dataclass(frozen=True, slots=True)
class ExitState(Generic[T]):
    """How a loop ended; every caller that waits gets the same value.

    `unhandled`: accepted items that no turn has consumed. `interrupted`: the items of the turn that was cut, or that
    waits for a person. `failed`: the failed turns whose items wait for a decision. No item is in two of these.
    """

    reason: ExitReason
    error: BaseException | None = None
    unhandled: list[T] = field(default_factory=list[T])
    interrupted: list[T] = field(default_factory=list[T])
    cause: str | None = None
    checkpoint: Saved = field(default_factory=lambda: Saved(SavedState.NONE))
    failed: list[FailedTurn[T]] = field(default_factory=list[FailedTurn[T]])

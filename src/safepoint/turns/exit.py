"""How a loop ended, and where every accepted item that no turn has dealt with is now."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, TypeVar

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


@dataclass(frozen=True, slots=True)
class Saved:
    """What became of the loop's record. It equals its state: `exit.checkpoint == "saved"`."""

    state: SavedState
    error: BaseException | None = None

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Saved):
            return (self.state, self.error) == (other.state, other.error)
        return self.state == other

    def __hash__(self) -> int:
        return hash(self.state)


@dataclass(frozen=True, slots=True)
class ExitState(Generic[T]):
    """The same for everybody who waits.

    `unhandled`: accepted, and no turn has consumed them. `interrupted`: of the turn that was cut by a stop, or that
    waits for a person. Neither has an item that any other list has.
    """

    reason: ExitReason
    error: BaseException | None = None
    unhandled: list[T] = field(default_factory=list[T])
    interrupted: list[T] = field(default_factory=list[T])
    cause: str | None = None
    checkpoint: Saved = field(default_factory=lambda: Saved(SavedState.NONE))

"""How a failed turn is handled."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from safepoint._core.asks import is_seconds
from safepoint.turns.exit import FailedTurn


@dataclass(frozen=True, slots=True)
class Retry:
    """Try the turn again, up to `times` times, from its checkpoint; then the loop stops.

    The first wait takes `delay` seconds, each later one twice as long, and none longer than `longest`.
    """

    times: int = 3
    delay: float = 1.0
    longest: float = 30.0

    def __post_init__(self) -> None:
        if not isinstance(self.times, int) or self.times < 1:  # pyright: ignore[reportUnnecessaryIsInstance]  # untyped callers
            raise ValueError(f"Retry(times={self.times!r}): write a whole number above 0")
        for name, value in (("delay", self.delay), ("longest", self.longest)):
            if not is_seconds(value):
                raise ValueError(f"Retry({name}={value!r}): write a number of seconds above 0")

    def wait(self, attempt: int) -> float | None:
        """How long to wait after that attempt, from 1; None if it was the last one."""
        return min(self.delay * 2 ** (attempt - 1), self.longest) if attempt <= self.times else None


TurnErrorPolicy: TypeAlias = Literal["stop", "retry", "skip", "continue"] | Retry
# Any: a failed turn of items of any type
OnTurnError: TypeAlias = TurnErrorPolicy | Callable[[FailedTurn[Any]], TurnErrorPolicy | Awaitable[TurnErrorPolicy]]


def policy(choice: object, of: str = "on_turn_error") -> Literal["stop", "skip"] | Retry:
    """The choice in its one form. Raises ValueError for any other value."""
    match choice:
        case Retry():
            return choice
        case "retry":
            return Retry()
        case "skip" | "continue":
            return "skip"
        case "stop":
            return "stop"
        case _:
            raise ValueError(f"{of}={choice!r}: write 'stop', 'retry', 'skip', Retry(times=…) or a function")

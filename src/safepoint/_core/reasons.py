"""Why a run was asked to stop, and who asked."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from msgspec.structs import force_setattr

from safepoint._values import Value


class Source(StrEnum):
    """Who asked, strongest first. The headline of several reasons is the one with the strongest source."""

    USER = "user"
    CALLER = "caller"
    POLICY = "policy"
    BUDGET = "budget"
    DEADLINE = "deadline"
    PARENT = "parent"
    PREEMPT = "preempt"
    DISCONNECT = "disconnect"
    FREEZE = "freeze"
    SHUTDOWN = "shutdown"


_STRENGTH = {source: rank for rank, source in enumerate(reversed(Source))}


class Reason(Value, frozen=True):
    """A text for people, the source, and optionally the name of the asker. The model sees it only as quoted data."""

    text: str = ""
    source: Source = Source.USER
    by: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # untyped callers
            raise ValueError(f"a reason's text is a str, not {self.text!r}")
        if not isinstance(self.by, str | None):  # pyright: ignore[reportUnnecessaryIsInstance]  # untyped callers
            raise ValueError(f"by={self.by!r}: who asked is a str, write by='{self.by}'")
        if isinstance(self.source, Source):  # pyright: ignore[reportUnnecessaryIsInstance]  # untyped callers
            return
        if self.source not in tuple(Source):
            raise ValueError(f"source={self.source!r} is not a source: write one of {', '.join(Source)}")
        force_setattr(self, "source", Source(self.source))

    @property
    def strength(self) -> int:
        return _STRENGTH[self.source]


def headline(reasons: Sequence[Reason]) -> Reason:
    """The first of the reasons with the strongest source."""
    if len(reasons) == 1:
        return reasons[0]
    return max(_different(reasons).values(), key=lambda reason: reason.strength)


def from_parent(reasons: Sequence[Reason]) -> tuple[Reason, ...]:
    """The same reasons as a child sees them: the parent is their source."""
    made = {key: _handed_down(reason) for key, reason in _different(reasons).items()}
    if len(made) == 1:
        return tuple(made.values()) * len(reasons)
    return tuple([made[id(reason)] for reason in reasons])


def _different(reasons: Sequence[Reason]) -> dict[int, Reason]:
    """Each reason object once, in order: thousands of asks usually share a few reasons."""
    return dict(zip(map(id, reasons), reasons, strict=True))


def _handed_down(reason: Reason) -> Reason:
    return reason if reason.source is Source.PARENT else Reason(reason.text, Source.PARENT, reason.by)


_NO_REASON = Reason()


def as_reason(reason: str | Reason | None) -> Reason:
    if reason is None:
        return _NO_REASON
    if isinstance(reason, str):
        return Reason(reason)
    if isinstance(reason, Reason):  # pyright: ignore[reportUnnecessaryIsInstance]  # untyped callers
        return reason
    raise ValueError(f"reason={reason!r} is not a reason: write reason='…' or reason=Reason('…', source=Source.POLICY)")

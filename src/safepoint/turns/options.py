"""The options of `push` and `stop`, checked where they are called: a contradiction is refused and asks nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from safepoint._core.asks import Ask, is_seconds, make_ask
from safepoint._core.clock import Clock
from safepoint._core.points import Level, SafePoint, check_point
from safepoint._core.reasons import Reason, Source
from safepoint.turns.turn import Turn

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PushOptions:
    """What a push asks of the turn that it sees; also the return value of a strategy.

    `interrupt`: the turn stops NOW, as a streaming answer has no safe point before its end. `join`: the item becomes a
    message of that turn's conversation, if a model call follows there.
    """

    preempt: SafePoint | None = None
    within: float | None = None
    delay: float | None = None
    interrupt: bool = False
    join: bool = False

    def __post_init__(self) -> None:
        if self.join and (self.interrupt or any(x is not None for x in (self.preempt, self.within, self.delay))):
            raise ValueError("join=True lets the turn go on: leave preempt, within, delay and interrupt out")
        if self.interrupt and (self.preempt is not None or self.within is not None):
            raise ValueError("interrupt=True stops the turn at once: leave preempt and within out")
        if self.preempt is None and not self.interrupt:
            for name, value in (("within", self.within), ("delay", self.delay)):
                if value is not None:
                    raise ValueError(f"{name}={value!r} without preempt: write preempt=SafePoint.ANY as well")
            return
        if self.preempt is not None and check_point(self.preempt).level is not Level.SAFE:
            raise ValueError(
                f"preempt={self.preempt!r}: preempting is for boundaries; write preempt=SafePoint.ANY, with within=… "
                "to stop at once after so many seconds, or interrupt=True to stop at once"
            )
        for name, value in (("within", self.within), ("delay", self.delay)):
            if value is not None and not is_seconds(value):
                raise ValueError(f"{name}={value!r}: write a number of seconds above 0, or leave it out")

    def ask(self, clock: Clock) -> tuple[Ask, float | None] | None:
        """The ask for the turn, and the time before which it is not made; None if nothing is asked."""
        at = SafePoint.NOW if self.interrupt else self.preempt
        if at is None:
            return None
        now, due = clock.now(), None
        if self.delay is not None:
            now = due = now + self.delay
        # With a limit it may become NOW, which reaches everything below; so nested agents get it from the start.
        reason = Reason("another message took the floor", Source.PREEMPT)
        recursive = self.within is not None or self.interrupt
        return make_ask(at, within=self.within, recursive=recursive, reason=reason, now=now, wall=clock.wall()), due


NO_PREEMPT = PushOptions()
Strategy: TypeAlias = Callable[["Turn[T] | None"], "PushOptions | None"]


def from_strategy(strategy: Strategy[T], turn: Turn[T] | None, *, beside: Sequence[object]) -> PushOptions:
    """The options that the strategy chooses for the live turn. It runs in the pusher's thread; nothing waits for it.

    `beside`: the other options of the call, which must be empty.
    """
    if any(option is not None and option is not False for option in beside):
        raise ValueError("strategy=… decides all options: leave preempt, within, delay, interrupt and join out")
    chosen = strategy(turn)
    if chosen is None:
        return NO_PREEMPT
    if not isinstance(chosen, PushOptions):  # pyright: ignore[reportUnnecessaryIsInstance]  # untyped callers
        raise ValueError(f"the strategy returned {chosen!r}: return PushOptions(preempt=…), or None for a plain push")
    return chosen


def stop_ask(
    at: SafePoint | None, within: float | None, idle_for: float | None, cause: str | None, clock: Clock
) -> Ask | None:
    """The ask for the running turn; None if it is to run to its end."""
    if cause is not None and not isinstance(cause, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # untyped callers
        raise ValueError(f"cause={cause!r}: write a str")
    if idle_for is not None:
        if at is not None or within is not None:
            raise ValueError("idle_for leaves the running turn alone: leave at and within out, or call stop twice")
        if not is_seconds(idle_for):
            raise ValueError(f"idle_for={idle_for!r}: write a number of seconds above 0, or stop() to end at once")
        return None
    if at is None:
        if within is not None:
            raise ValueError(f"within={within!r} without a safe point: write stop(SafePoint.ANY, within={within!r})")
        return None
    reason = Reason(cause or "the loop stops", Source.SHUTDOWN)
    return make_ask(at, within=within, recursive=True, reason=reason, now=clock.now(), wall=clock.wall())

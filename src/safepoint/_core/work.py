"""One supervised piece of work: a task, how it is stopped, and what came of it.

    WAITING ──first step──▶ RUNNING ──returns or raises──────────────▶ ENDED
       │ │                     │ stop                                   ▲ ▲
       │ │ stop                ▼                                        │ │
       │ └────────────────▶ STOPPING ──ends within its plan─────────────┘ │
       │                       └──the plan runs out──▶ ABANDONED          │
       └──may not start───────────────────────────────────────────────────┘

Invariants: exactly one outcome is reported, once, in the loop's thread. The work's own coroutine is made inside its
task, so work that was stopped before its first step never ran a line. Nothing that the work raises leaves its task:
not SystemExit, not a CancelledError that nobody asked for. A result that arrives while stopping is kept.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Generic, TypeAlias, TypeVar

from safepoint._core.clock import Clock
from safepoint._core.ladder import Killable, Ladder, Plan, Rung, StopPolicy, WorkKind, plan
from safepoint._core.orphans import Orphan, disown

# How often the loop turns before a task that was cancelled for the last time is abandoned: the cancellation may go
# through tasks of its own, which need a turn each.
LAST_TURNS = 4

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class WorkState(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    STOPPING = "stopping"
    ABANDONED = "abandoned"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Returned(Generic[T_co]):
    """It returned, also if it was being stopped."""

    value: T_co


@dataclass(frozen=True, slots=True)
class Failed:
    """It raised, and nobody had asked it to stop."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class Cut:
    """It was stopped while running. `error`: what it raised instead of the cancellation."""

    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class NeverRan:
    """It was stopped before its first step."""


@dataclass(frozen=True, slots=True)
class Abandoned:
    """It did not stop."""

    orphan: Orphan


WorkResult: TypeAlias = Returned[T] | Failed | Cut | NeverRan | Abandoned


class Work(Generic[T]):
    """Made by `Supervisor.begin`; call `stop` as often as you like, it only gets stronger."""

    def __init__(self, name: str, path: str, *, clock: Clock, ladder: Ladder, stop_policy: StopPolicy) -> None:
        self.name = name
        self.path = path
        self.state = WorkState.WAITING
        self.rung: Rung | None = None
        self.rung_since: float = clock.now()
        self.outcome: WorkResult[T] | None = None
        self.task: asyncio.Task[None] | None = None
        self.on_end: Callable[[], object] = _nothing
        self.on_rung: Callable[[Rung], object] = _nothing_for
        self.on_flag: Callable[[], object] = _nothing
        self.may_start: Callable[[], bool] = _always
        self.orphan: Orphan | None = None
        self.thread: threading.Thread | None = None
        # The processes of work of that kind; before there are any, the task itself is cancelled.
        self.killable: Killable | None = None
        self._clock = clock
        self._ladder = ladder
        # What the work is right now. It may change while it runs: a check first, then a thread.
        self.stop_policy = stop_policy
        self._rest: Plan = ()
        self._forced = False
        self._timer: asyncio.TimerHandle | None = None
        self._limit: asyncio.TimerHandle | None = None
        # When each critical section that is open now must be over.
        self._shields: list[float] = []
        # Set by a stop: whatever rungs, shields and runs inside lie between, nothing of this work holds anybody longer.
        self.last_moment = math.inf

    @property
    def ended(self) -> bool:
        return self.outcome is not None

    @property
    def until(self) -> float | None:
        """When the work leaves its present rung, while it is being stopped."""
        return self._timer.when() if self._timer is not None else None

    async def guard(self, make: Callable[[], Awaitable[T]]) -> None:
        """The body of the task. Cancellation: this is where it lands; it becomes the outcome and goes no further."""
        # Stopped before its first step in a manner that does not cancel, or by an ask that the loop has yet to hear of.
        if self.state is not WorkState.WAITING or not self.may_start():
            self._settle(NeverRan())
            return
        self.state = WorkState.RUNNING
        try:
            value = await make()
        except BaseException as error:  # what it means is decided below; nothing may leave the task
            if not self._steps_now():
                raise  # the loop is gone and the interpreter is tidying up: there is nobody left to tell
            self._settle_error(error)
        else:
            self._settle(Returned(value))

    def _steps_now(self) -> bool:
        """Is it the loop that runs this task, and not a collector that closes it?"""
        try:
            return asyncio.current_task() is self.task
        except RuntimeError:
            return False

    def task_done(self, _task: asyncio.Task[None]) -> None:
        """The task is over; if it never ran a step, that is the outcome."""
        if not self.ended:
            self._settle(NeverRan())

    # -- stopping ----------------------------------------------------------------------------------------------------

    def stop(self, *, force: bool = False) -> None:
        """Begin to climb, or climb faster. Never waits."""
        if self.ended or self._forced or (self.state is WorkState.STOPPING and not force):
            return
        now, seconds = self._clock.now(), self._ladder.kill if force else self._ladder.cap
        self.last_moment = min(self.last_moment, now + seconds)
        self._forced = force
        self.state = WorkState.STOPPING
        self._rest = plan(self.stop_policy, self._ladder, force=force)
        if self._shields and not force:
            self._enter(Rung.SHIELDED, max(self._shields), now)
        else:
            self._climb(now)

    def stop_at(self, when: float, *, force: bool = False) -> None:
        """Stop by itself at that time, if it still runs then; of two times the earlier counts."""
        if self._limit is not None:
            when = min(when, self._limit.when())
            self._limit.cancel()
        self._limit = self._clock.call_at(when, partial(self.stop, force=force))

    def shield(self, seconds: float) -> float:
        """A critical section begins; while it lasts, NOW waits. Returns when it must be over."""
        until = self._clock.now() + seconds
        self._shields.append(until)
        return until

    def unshield(self, until: float | None = None) -> bool:
        """That section is over, or the one that began last. True if a stop has been waiting for that."""
        self._shields.remove(self._shields[-1] if until is None else until)
        if self.rung is not Rung.SHIELDED:
            return False
        if self._shields:
            self._arm(max(self._shields))
            return False
        self._climb(self._clock.now())
        return True

    def _time_is_up(self) -> None:
        self._climb(self._clock.now())

    def _climb(self, now: float) -> None:
        climb, *rest = self._rest
        # A section that began while the work was left to finish is not cut either.
        if self.rung is Rung.FINISH and not self._forced and any(until > now for until in self._shields):
            self._enter(Rung.SHIELDED, max(self._shields), now)
            return
        self._rest = tuple(rest)
        if climb.rung is Rung.ABANDON:
            self._give_up(now)
            return
        self._enter(climb.rung, now + climb.seconds, now)
        if climb.rung is Rung.CANCEL:
            self._cancel_task()
        elif climb.rung is Rung.FLAG:
            self.on_flag()
        elif climb.rung in (Rung.TERM, Rung.KILL):
            self._signal(climb.rung)

    def _enter(self, rung: Rung, until: float, now: float) -> None:
        self.rung, self.rung_since = rung, now
        self._arm(until)
        self.on_rung(rung)

    def _arm(self, until: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._clock.call_at(min(until, self.last_moment), self._time_is_up)

    def _cancel_task(self) -> None:
        assert self.task is not None, "no work is stopped before it has a task"
        self.task.cancel()

    def _signal(self, rung: Rung) -> None:
        if self.killable is None:
            self._cancel_task()
        elif rung is Rung.TERM:
            self.killable.terminate()
        else:
            self.killable.kill()

    def _give_up(self, now: float) -> None:
        """Its grace is over, so nothing of its clean-up is owed any longer: cancel it once more.

        Work that ends by this has stopped. It gets a few turns of the loop for that, and no time.
        """
        if self.stop_policy.kind is not WorkKind.TASK:
            self._abandon()
            return
        self._cancel_task()
        self._timer = self._clock.call_at(now, partial(self._turn, LAST_TURNS))

    def _turn(self, left: int) -> None:
        if left > 0:
            self._timer = self._clock.call_at(self._clock.now(), partial(self._turn, left - 1))
        else:
            self._abandon()

    def _abandon(self) -> None:
        assert self.task is not None, "as above"
        if self.task.done():
            return  # it ended in this very moment; its outcome is on the way
        self.rung, self._timer = Rung.ABANDON, None
        self.orphan = Orphan(self.name, self.path, clock=self._clock, task=self.task)
        self.state = WorkState.ABANDONED
        self.outcome = Abandoned(self.orphan)
        self.orphan.thread = self.thread
        disown(self.task)
        self.on_rung(Rung.ABANDON)
        self.on_end()

    # -- the end -----------------------------------------------------------------------------------------------------

    def _settle_error(self, error: BaseException) -> None:
        asked = self.state in (WorkState.STOPPING, WorkState.ABANDONED)
        if not asked:
            self._settle(Failed(error))
        elif isinstance(error, asyncio.CancelledError):
            self._settle(Cut())
        else:
            self._settle(Cut(error))

    def _settle(self, outcome: WorkResult[T]) -> None:
        if self.orphan is not None:
            if isinstance(outcome, Returned):
                self.orphan.returned_late(outcome.value)
            else:
                self.orphan.ended_late(outcome.error if isinstance(outcome, Failed | Cut) else None)
            return
        for timer in (self._timer, self._limit):
            if timer is not None:
                timer.cancel()
        self._timer = self._limit = None
        self.state = WorkState.ENDED
        self.outcome = outcome
        self.on_end()


def _always() -> bool:
    return True


def _nothing() -> None:
    pass


def _nothing_for(_rung: Rung) -> None:
    pass

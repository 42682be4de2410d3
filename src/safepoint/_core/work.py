"""One supervised piece of work: a task, how it is stopped, and its outcome.

    WAITING ──first step──▶ RUNNING ──returns or raises──────────────▶ ENDED
       │ │                     │ stop                                   ▲ ▲
       │ │ stop                ▼                                        │ │
       │ └────────────────▶ STOPPING ──ends within its plan─────────────┘ │
       │                       └──the plan runs out──▶ ABANDONED          │
       └──may not start───────────────────────────────────────────────────┘

Invariants: exactly one outcome is reported, once, in the loop's thread. The work's own coroutine is made inside its
task, so work that was stopped before its first step never ran a line. No exception that the work raises leaves its
task: neither SystemExit nor a CancelledError without a stop. A result that arrives while stopping is kept.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Awaitable, Callable
from enum import StrEnum
from functools import partial
from typing import Generic, TypeAlias, TypeVar

from safepoint._core.clock import Clock
from safepoint._core.ladder import Killable, Ladder, Plan, Rung, StopPolicy, WorkKind, plan
from safepoint._core.orphans import Orphan, disown
from safepoint._values import Value

# How many turns the loop makes before a task that was cancelled for the last time is abandoned: the cancellation may
# pass through tasks of the work's own, and each needs a turn.
LAST_TURNS = 4

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class WorkState(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    STOPPING = "stopping"
    ABANDONED = "abandoned"
    ENDED = "ended"


class Returned(Value, Generic[T_co], frozen=True):
    """The work returned, perhaps while it was being stopped."""

    value: T_co


class Failed(Value, frozen=True):
    """The work raised without being asked to stop."""

    error: BaseException


class Cut(Value, frozen=True):
    """The work was stopped while running. `error`: the exception it raised in place of the cancellation."""

    error: BaseException | None = None


class NeverRan(Value, frozen=True):
    """The work was stopped before its first step."""


class Abandoned(Value, frozen=True):
    """The work did not stop."""

    orphan: Orphan


WorkResult: TypeAlias = Returned[T] | Failed | Cut | NeverRan | Abandoned


class Work(Generic[T]):
    """Made by `Supervisor.begin`. `stop` may be called any number of times; it only gets stronger."""

    # Defaults of the class because most work ends without ever being stopped.
    state = WorkState.WAITING
    rung: Rung | None = None
    # Known from the first step on: work may be stopped in the very step that begins it.
    task: asyncio.Task[None] | None = None
    orphan: Orphan | None = None
    thread: threading.Thread | None = None
    # The processes of work of the kind PROCESS. Until they exist, the task itself is cancelled.
    killable: Killable | None = None
    _rest: Plan = ()
    _forced = False
    _timer: asyncio.TimerHandle | None = None
    _limit: asyncio.TimerHandle | None = None
    # The end of each critical section that is open now.
    _shields: tuple[float, ...] = ()
    # Set by a stop. No rung, shield or inner run lets this work hold its run any longer.
    last_moment = math.inf

    def __init__(self, name: str, path: str, *, clock: Clock, ladder: Ladder, stop_policy: StopPolicy) -> None:
        self.name = name
        self.path = path
        self.outcome: WorkResult[T] | None = None
        # While the work is on no rung: when it was made.
        self.rung_since: float = clock.now()
        self._clock = clock
        self._ladder = ladder
        # How to stop the work in its present phase. It may change while it runs: first a check, then a thread.
        self.stop_policy = stop_policy
        self.on_end: Callable[[], object] = _nothing
        self.on_rung: Callable[[Rung], object] = _nothing_for
        self.on_flag: Callable[[], object] = _nothing
        self.on_raise: Callable[[], object] = _nothing
        self.may_start: Callable[[], bool] = _always

    @property
    def ended(self) -> bool:
        return self.outcome is not None

    @property
    def until(self) -> float | None:
        """When the work leaves its present rung while it is being stopped; for an undo, when it is stopped itself."""
        timer = self._timer or (self._limit if self.rung is not None else None)
        return timer.when() if timer is not None else None

    async def guard(self, make: Callable[[], Awaitable[T]]) -> None:
        """The body of the task. Cancellation: it lands here, becomes the outcome and goes no further."""
        # Stopped before its first step, by a policy that does not cancel or by an ask the loop has not read yet.
        if self.state is not WorkState.WAITING or not self.may_start():
            self._settle(NeverRan())
            return
        self.state = WorkState.RUNNING
        self.task = asyncio.current_task()
        try:
            value = await make()
        except BaseException as error:  # its meaning is decided below; no exception may leave the task
            if not self._steps_now():
                raise  # the loop is gone and the interpreter is exiting: no owner is left to notify
            self._settle_error(error)
        else:
            self._settle(Returned(value))

    def let_go(self) -> None:
        """Drop the references to the owner once the outcome was read, so that no cycle is left to collect."""
        self.on_end, self.on_rung, self.on_flag, self.may_start = _nothing, _nothing_for, _nothing, _always

    def _steps_now(self) -> bool:
        """Whether the loop runs this task, rather than the garbage collector closing it."""
        try:
            return asyncio.current_task() is self.task
        except RuntimeError:
            return False

    def task_done(self, _task: asyncio.Task[None]) -> None:
        """The task is over. If it never ran a step, that is the outcome."""
        if not self.ended:
            self._settle(NeverRan())

    # -- stopping ----------------------------------------------------------------------------------------------------

    def stop(self, *, force: bool = False) -> None:
        """Begin to climb the ladder, or climb faster. Never waits."""
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

    def stops_within(self, now: float, *, force: bool = False) -> float:
        """How long a stop asked for now may take at most, until the work has ended or is abandoned."""
        if self.ended:
            return 0.0
        if self.state is WorkState.STOPPING and (self._forced or not force):
            begins, rest, last = self.until or now, self._rest, self.last_moment
        else:
            rest = plan(self.stop_policy, self._ladder, force=force)
            last = min(self.last_moment, now + (self._ladder.kill if force else self._ladder.cap))
            begins = max(self._shields, default=now) if not force else now
        return max(0.0, min(max(begins, now) + sum(climb.seconds for climb in rest), last) - now)

    def limited_to(self, now: float) -> float:
        """How long work with a limit of its own may still take at most, if no further stop is asked for."""
        if self._limit is None or self.state is WorkState.STOPPING:
            return self.stops_within(now)
        return max(0.0, self._limit.when() - now) + sum(
            climb.seconds for climb in plan(self.stop_policy, self._ladder, force=False)
        )

    def stop_at(self, when: float, *, force: bool = False) -> None:
        """Stop the work at that time if it still runs then; the earlier of two times counts."""
        if self._limit is not None:
            when = min(when, self._limit.when())
            self._limit.cancel()
        self._limit = self._clock.call_at(when, partial(self.stop, force=force))

    def shield(self, seconds: float) -> float:
        """Begin a critical section, during which NOW waits. Returns the time by which it must be over."""
        until = self._clock.now() + seconds
        self._shields = (*self._shields, until)
        return until

    def unshield(self, until: float | None = None) -> bool:
        """End that section, or the latest one. True if a stop was waiting for it."""
        left = list(self._shields)
        left.remove(left[-1] if until is None else until)
        self._shields = tuple(left)
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
        # A section that began while the work was allowed to finish is not cut either.
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
        elif climb.rung is Rung.RAISE:
            self.on_raise()
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
        if self.task is not None:  # without a task the work has not begun; it reads the state when it does
            self.task.cancel()

    def _signal(self, rung: Rung) -> None:
        if self.killable is None:
            self._cancel_task()
        elif rung is Rung.TERM:
            self.killable.terminate()
        else:
            self.killable.kill()

    def _give_up(self, now: float) -> None:
        """The grace is over, so the work has no more claim to clean up: cancel it once more.

        Work that ends because of this has stopped. It gets a few turns of the loop for that, but no time.
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
            return  # it has just ended; its outcome is being reported
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

"""Every place where a scenario can be cancelled, found by watching its tasks suspend.

Each task's coroutine is wrapped in a `Stepper`, which passes every step on and inspects what came back. The task does
not notice: the wrapper forwards ``send``, ``throw`` and ``close`` unchanged, and the task still shows the user's own
coroutine. Tasks of every task group are seen, because all of them go through ``loop.create_task``.

A `Point` is (task, line, nth visit). A task is named by its path: its parent's path, its number among that parent's
children and its function, all of them the same in each run; a task's own name may not be. Two kinds of point:

- a suspension, with two moments: `blocked`, while the task waits, and `woken`, when what it waits for has come and its
  wake-up is scheduled but has not run: a result that exists and can be lost.
- a start, with one moment: `unstarted`, when the task exists and its first line has not run. A task whose first step
  is part of the step that makes it has one more: `stepped`, when that step is over and its maker goes on. Nothing else
  runs in between, so what fires there stands for an ask from another thread, or from the code of that very step.

An `Aim` names one point and one moment. Everything before it runs as it was recorded; there, it fires once. The
injection may only time something (a cancel from outside), or make the wait itself fail: then the task receives a
`Fault` in place of the value it waits for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias, TypeVar

from safepoint._core.supervisor import start_eagerly
from safepoint.testing.clock import VirtualLoop
from safepoint.testing.frames import Place, caller_place, chain, landed_at, timed_by

T = TypeVar("T")


class Moment(StrEnum):
    """The moment, relative to a wait or to a task's first step."""

    BLOCKED = "blocked"
    WOKEN = "woken"
    UNSTARTED = "unstarted"
    STEPPED = "stepped"


@dataclass(frozen=True, slots=True)
class Point:
    """One place in one task, reached for the nth time; `place` is the line that a reader would point at."""

    task: str
    place: Place
    visit: int
    moments: tuple[Moment, ...]
    seams: frozenset[str] = frozenset()
    """The seams that can fail here."""

    @property
    def id(self) -> str:
        file = self.place.file.replace("\\", "/").rpartition("/")[2]
        start = "!" if Moment.UNSTARTED in self.moments else ""
        return f"{start}{self.task}@{file}:{self.place.line}#{self.visit}"


@dataclass(frozen=True, slots=True)
class Landing:
    """A task received the cancellation here: the user's innermost line in it."""

    task: str
    place: Place
    started: bool

    def __str__(self) -> str:
        return str(self.place) if self.started else f"{self.place}, before its first line"


@dataclass(frozen=True, slots=True)
class Aim:
    """Fire once, at this moment of this point."""

    point: str
    moment: Moment
    fire: Callable[[], None]

    @property
    def task(self) -> str:
        return self.point.removeprefix("!").rpartition("@")[0]


@dataclass(slots=True)
class Fault:
    """An exception on its way to the wait of a task. `struck`: it has arrived there."""

    error: Exception
    struck: bool = False


SeamsOf: TypeAlias = Callable[[str, list[Place]], frozenset[str]]
"""Returns the seams that can fail where this task waits, outermost place first."""


def _no_seams(_task: str, _places: list[Place]) -> frozenset[str]:
    return frozenset()


class Watch:
    """The observations of one run: its points in order, the lines that waited, where a cancellation landed."""

    def __init__(self, entry: str, aim: Aim | None = None, *, seams_of: SeamsOf = _no_seams) -> None:
        self.points: list[Point] = []
        self.landings: list[Landing] = []
        self.sites: set[Place] = set()
        self.fired = False
        self.closed = False
        self.current: Stepper | None = None
        self.aimed_at: Stepper | None = None
        self._entry = entry
        self._aim = aim
        self._aimed_task = aim.task if aim is not None else None
        self._seams_of = seams_of
        self._visits: dict[tuple[str, Place], int] = {}
        self._orphans = 0

    @property
    def fault_struck(self) -> bool:
        """False if a fault was on its way and has not arrived."""
        fault = self.aimed_at.fault if self.aimed_at is not None else None
        return fault is None or fault.struck

    def close(self) -> None:
        """Stop observing, and keep no task alive that would otherwise be collected and complain."""
        self.closed, self.aimed_at = True, None

    def path_of(self, coro: Any) -> str:  # Any: any awaitable of a task
        name = getattr(coro, "__name__", type(coro).__name__)
        if self.current is not None:
            self.current.children += 1
            return f"{self.current.path}/{self.current.children}.{name}"
        self._orphans += 1
        return self._entry if self._orphans == 1 else f"loop/{self._orphans}.{name}"

    def starting(self, stepper: Stepper, loop: asyncio.AbstractEventLoop) -> None:
        """A child is about to be made; callbacks scheduled now run before its first step."""
        if (self.current is None and stepper.path == self._entry) or not self._looks_at(stepper):
            return
        place = caller_place() or chain(stepper.coro)[-1]
        if self._reached(stepper, Point(stepper.path, place, self._visit(stepper, place), (Moment.UNSTARTED,))):
            loop.call_soon(self._fire)

    def stepping(self, stepper: Stepper) -> bool:
        """A child is about to take its first step, before its maker continues. True if it fires after that step."""
        if not self._looks_at(stepper):
            return False
        place = caller_place() or chain(stepper.coro)[-1]
        moments = (Moment.UNSTARTED, Moment.STEPPED)
        moment = self._reached(stepper, Point(stepper.path, place, self._visit(stepper, place), moments))
        if moment is Moment.UNSTARTED:
            self._fire()
        return moment is Moment.STEPPED

    def stepped(self) -> None:
        """That step is over."""
        if not self.closed:
            self._fire()

    def suspended(self, stepper: Stepper, yielded: Any) -> None:  # Any: a future, or None for a bare yield
        if self.closed:
            return
        places = chain(stepper.coro)
        self.sites.update(places)
        place = timed_by(places) if self._looks_at(stepper) else None
        if place is None:
            return
        # A bare yield has its wake-up scheduled as it suspends: it is never only blocked, so it has one moment.
        wakes: Callable[[Callable[[object], None]], None] | None = getattr(yielded, "add_done_callback", None)
        moments = (Moment.BLOCKED, Moment.WOKEN) if wakes else (Moment.BLOCKED,)
        seams = self._seams_of(stepper.path, places) if self._aim is None else frozenset[str]()
        moment = self._reached(stepper, Point(stepper.path, place, self._visit(stepper, place), moments, seams))
        if moment is Moment.BLOCKED:
            asyncio.get_running_loop().call_soon(self._fire)
        elif moment is Moment.WOKEN and wakes:
            # asyncio adds the task's own wake-up when this step returns, so this callback is ahead of it.
            wakes(lambda _: self._fire())

    def landing(self, stepper: Stepper) -> None:
        """The task is about to receive a CancelledError or a fault."""
        place = landed_at(chain(stepper.coro)) if self.fired and not self.closed else None
        if place is not None:
            landing = Landing(stepper.path, place, stepper.stepped)
            if landing not in self.landings:
                self.landings.append(landing)

    def _looks_at(self, stepper: Stepper) -> bool:
        """A recording wants every point. A run with an aim wants one, known by its task and its visits."""
        return self._aim is None or (not self.fired and stepper.path == self._aimed_task)

    def _visit(self, stepper: Stepper, place: Place) -> int:
        visit = self._visits[stepper.path, place] = self._visits.get((stepper.path, place), -1) + 1
        return visit

    def _reached(self, stepper: Stepper, point: Point) -> Moment | None:
        self.points.append(point)
        aim = self._aim
        if aim is None or self.fired or aim.moment not in point.moments or point.id != aim.point:
            return None
        self.aimed_at = stepper
        stepper.aimed_at()
        return aim.moment

    def _fire(self) -> None:
        assert self._aim is not None
        self.fired = True
        self._aim.fire()


class Stepper(Coroutine[Any, Any, Any]):
    """A task's coroutine under observation. All other attributes are the coroutine's own."""

    def __init__(self, coro: Coroutine[Any, Any, Any], watch: Watch) -> None:  # Any: any task's coroutine
        self.coro = coro
        self.watch = watch
        self.path = watch.path_of(coro)
        self.children = 0
        self.stepped = False
        self.task: asyncio.Task[Any] | None = None
        self.fault: Fault | None = None
        self._pending: Fault | None = None
        self._cancels = 0

    def aimed_at(self) -> None:
        """The task is about to suspend at the point; a cancel from now on precedes a fault."""
        self._cancels = self.task.cancelling() if self.task is not None else 0

    def fail(self, error: Exception) -> bool:
        """Make the wait of the task raise `error`. False if the task is not stepped here, or is being cancelled.

        The task is cancelled to wake it, and that cancel is withdrawn as the exception takes its place.
        """
        if self.task is None or self.task.cancelling() > self._cancels:
            return False
        self.fault = self._pending = Fault(error)
        return self.task.cancel()

    def _due(self) -> Fault | None:
        """The fault that the task receives now; None if the task was really cancelled since."""
        fault, self._pending = self._pending, None
        if fault is None or self.task is None:
            return None
        return fault if self.task.uncancel() <= self._cancels else None

    def send(self, value: Any, /) -> Any:  # Any: as in Coroutine
        if self._pending is not None:
            self._due()  # the awaited object refused the cancel and returned after all
        outer, self.watch.current = self.watch.current, self
        self.stepped = True
        try:
            yielded = self.coro.send(value)
        finally:
            self.watch.current = outer
        self.watch.suspended(self, yielded)
        return yielded

    def throw(self, typ: Any, /, *rest: Any) -> Any:  # Any: as in Coroutine
        fault = self._due()
        if fault is not None:
            fault.struck, typ, rest = True, fault.error, ()
        if fault is not None or isinstance(typ, asyncio.CancelledError):
            self.watch.landing(self)
        outer, self.watch.current = self.watch.current, self
        try:
            yielded = self.coro.throw(typ, *rest)
        finally:
            self.watch.current = outer
        self.watch.suspended(self, yielded)
        return yielded

    def close(self) -> None:
        self.coro.close()

    def __await__(self) -> Generator[Any, Any, Any]:  # Any: as in Coroutine
        return self.coro.__await__()

    def __getattr__(self, name: str) -> Any:  # Any: the coroutine's own attributes
        return getattr(self.coro, name)


class WatchedTask(asyncio.Task[T]):
    """A task whose coroutine is the user's, not the stepper."""

    def __init__(self, stepper: Stepper, **options: Any) -> None:  # Any: asyncio's own options differ by version
        self._stepper = stepper
        stepper.task = self
        super().__init__(stepper, **options)

    def get_coro(self) -> Any:  # Any: as in asyncio
        return self._stepper.coro


class WatchedLoop(VirtualLoop):
    """A virtual loop that steps every task under watch and keeps complaints for which no handler was set."""

    def __init__(self, watch: Watch, *, complaints: list[str], max_rounds: int) -> None:
        super().__init__(max_rounds=max_rounds)
        self.watch = watch
        self.complaints = complaints

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: object = None,
        context: Context | None = None,
        **options: Any,  # Any: asyncio's own options differ by version
    ) -> asyncio.Task[T]:
        if self.watch.closed or not isinstance(coro, Coroutine):
            return super().create_task(coro, name=name, context=context, **options)
        self._check_closed()
        stepper = Stepper(coro, self.watch)
        self.watch.starting(stepper, self)
        if self.get_task_factory() is not None:
            return super().create_task(stepper, name=name, context=context, **options)
        return WatchedTask(stepper, loop=self, name=name, context=context, **options)

    def start_eagerly(
        self, coro: Coroutine[Any, Any, T], name: str, context: Context
    ) -> asyncio.Task[T]:  # Any: as in Coroutine
        """As `safepoint._core.supervisor.start_eagerly`, under watch."""
        if self.watch.closed:
            return start_eagerly(asyncio.Task, self, coro, name, context)
        stepper = Stepper(coro, self.watch)
        fires = self.watch.stepping(stepper)
        task: asyncio.Task[T] = start_eagerly(WatchedTask, self, stepper, name, context)
        if fires:
            self.watch.stepped()
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:  # Any: as in asyncio
        if self.get_exception_handler() is not None:
            super().call_exception_handler(context)
            return
        error = context.get("exception")
        if isinstance(error, asyncio.CancelledError):
            return  # asyncio's wait_for leaves one in a cancelled gather; a cancellation is not an error
        self.complaints.append(f"{context.get('message')}: {error!r}" if error else str(context.get("message")))

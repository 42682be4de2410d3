"""One run of a scenario, on a loop of its own, and everything found wrong with it.

A trial is judged in this order: how the scenario ended, what it left in the loop, what it left outside, the complaints
in between (warnings, exceptions that were never retrieved, errors in callbacks and in threads), the subject's checks
and the user's oracles. All of them run each time, so that one run shows all its problems.

The garbage collector is off while a scenario runs, because a collection at a random moment would close a forgotten
generator at a random moment; it runs once at the end, so that faults which only a collection reveals are reported here.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import warnings
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from safepoint.errors import UsageError
from safepoint.testing import leak_checks
from safepoint.testing.clock import Stuck
from safepoint.testing.injections import Ending, Injection, Shot, must_return
from safepoint.testing.points import Aim, Moment, Point, Watch, WatchedLoop
from safepoint.testing.subject import Subject

MAX_ROUNDS = 20_000
_HARMLESS = (DeprecationWarning, PendingDeprecationWarning, FutureWarning)


@dataclass(frozen=True, slots=True)
class Target:
    """What to inject, and where."""

    point: Point
    moment: Moment
    kind: Injection

    @property
    def id(self) -> str:
        return f"{self.kind.name}:{self.moment}:{self.point.id}"


@dataclass(slots=True)
class Trial:
    """The outcome of one run."""

    watch: Watch
    problems: list[str] = field(default_factory=list[str])
    ending: Ending = None
    took: bool = False
    """Whether the injection had a target."""
    seconds: float = 0.0
    """How long it took on the virtual clock."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """The function that is run again and again, with everything that judges it."""

    function: Callable[[], Coroutine[Any, Any, object]]  # Any: what it yields is asyncio's business
    subject: Subject
    oracles: Sequence[Callable[[], object]] = ()

    @property
    def name(self) -> str:
        return name_of(self.function)

    def run(self, target: Target | None = None, *, limit: float = float("inf"), watched: bool = True) -> Trial:
        """Run it once. `limit` is how many virtual seconds it may continue after an injection.

        Without `watched` it is judged too, but its points are not recorded.
        """
        outside = leak_checks.Outside()
        with _listening() as heard:
            trial = self._run_on_loop(target, limit, heard, watched=watched)
            gc.collect()
        trial.problems += [*outside.left(), *heard, *self.subject.check()]
        for oracle in self.oracles:
            try:
                oracle()
            except AssertionError as broken:
                trial.problems.append(f"oracle {name_of(oracle)}: {broken}")
            except Exception as error:  # called code found a fault: a broken history, a session still taken
                trial.problems.append(f"oracle {name_of(oracle)}: {error!r}")
        return trial

    def _run_on_loop(self, target: Target | None, limit: float, heard: list[str], *, watched: bool) -> Trial:
        def fire() -> None:
            assert target is not None
            self.subject.disturbed(cancels=target.kind.cancels)
            shot = Shot(loop, task, self.subject, target.point, target.moment, trial.watch.aimed_at)
            trial.took = target.kind.fire(shot)
            loop.horizon = loop.time() + limit

        aim = Aim(target.point.id, target.moment, fire) if target else None
        trial = Trial(Watch(self.name, aim, seams_of=self.subject.seams_of))
        trial.watch.closed = not watched
        loop = WatchedLoop(trial.watch, complaints=heard, max_rounds=MAX_ROUNDS)
        begun = loop.time()
        try:
            self.subject.begin()
            task = loop.create_task(self._coroutine())
            trial.problems += _drive(loop, task, trial, target)
            trial.watch.close()  # from here on the clean-up cancels
            trial.seconds = loop.time() - begun
            if task.done():
                leak_checks.settle(loop)
                if target is not None and not target.kind.cancels:
                    leak_checks.recover(loop)
                # Before the loop closes its leftovers, such as a generator that was never closed.
                trial.problems += [*leak_checks.in_loop(loop), *self.subject.held()]
        finally:
            trial.problems += leak_checks.end(loop)
        return trial

    def _coroutine(self) -> Coroutine[Any, Any, object]:
        coroutine = self.function()
        if not asyncio.iscoroutine(coroutine):
            raise UsageError(f"{self.name} is not an async function: it returned {coroutine!r}, not a coroutine")
        return coroutine


def _drive(loop: WatchedLoop, task: asyncio.Task[object], trial: Trial, target: Target | None) -> list[str]:
    """Run the scenario's task to its end and judge that end."""
    try:
        loop.run_until_complete(task)
    except Stuck as stuck:
        return [f"the scenario does not end: {stuck}"]
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        if not task.done():
            return [f"the loop was torn down by {error!r}"]
    trial.ending = asyncio.CancelledError() if task.cancelled() else task.exception()
    trial.took = trial.took and trial.watch.fault_struck
    judge = target.kind.judge if target is not None and trial.took else must_return
    complaint = judge(trial.ending)
    return [] if complaint is None else [complaint]


@contextmanager
def _listening() -> Generator[list[str]]:
    """Collect Python's complaints: warnings, and errors that no caller can catch."""
    heard: list[str] = []

    def unraisable(what: sys.UnraisableHookArgs) -> None:
        heard.append(f"{what.err_msg or 'exception ignored in'} {what.object!r}: {what.exc_value!r}")

    def in_thread(what: threading.ExceptHookArgs) -> None:
        heard.append(f"thread {what.thread.name if what.thread else '?'} raised {what.exc_value!r}")

    hooks = sys.unraisablehook, threading.excepthook
    sys.unraisablehook, threading.excepthook = unraisable, in_thread
    try:
        with warnings.catch_warnings(record=True) as warned:
            for category in (ResourceWarning, RuntimeWarning):
                warnings.simplefilter("always", category)
            yield heard
        heard += [f"{w.category.__name__}: {w.message}" for w in warned if not issubclass(w.category, _HARMLESS)]
    finally:
        sys.unraisablehook, threading.excepthook = hooks


@contextmanager
def quiet_collector() -> Generator[None]:
    """Only explicit collections, and cheap ones: existing objects are not scanned again."""
    enabled = gc.isenabled()
    gc.disable()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        if enabled:
            gc.enable()


def name_of(function: Callable[..., object]) -> str:
    return getattr(function, "__qualname__", repr(function)).rpartition("<locals>.")[2]

"""The injections: the two cancels, a jump of the clock, faults, and any that a test defines.

An `Injection` fires once, from a callback of the loop, and then judges how the scenario ended. Its name is the code
that makes it, because a failure's reproduction line repeats it.

A cancel comes from outside, so any point can time it. A fault belongs to a place: the await of a model, a tool, a store
or a reader raises there instead of returning. Nothing is wrapped or armed in advance: code that cannot wait cannot
fail, and a fault that did not arrive is not counted.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from typing import Any, TypeAlias

from safepoint.errors import ModelUnavailable, RunFailed, StoreError
from safepoint.testing.frames import short
from safepoint.testing.points import Moment, Point, Stepper, WatchedLoop
from safepoint.testing.subject import Seam, Subject

Ending: TypeAlias = BaseException | None
"""How a scenario ended: the exception it raised, or None if it returned."""


@dataclass(frozen=True, slots=True)
class Shot:
    """The objects that an injection can reach when it fires."""

    loop: WatchedLoop
    task: asyncio.Task[Any]  # Any: a scenario's value is not looked at
    subject: Subject
    point: Point
    moment: Moment
    stepper: Stepper | None = None

    def throw(self, error: Exception) -> bool:
        """Let the wait at this point raise `error`. The run counts if the task then received it."""
        return self.stepper is not None and self.stepper.fail(error)


@dataclass(frozen=True, slots=True)
class Injection:
    """One kind of injection.

    `fire` returns whether it had a target; if not, the run is not counted. `judge` gets the scenario's ending and
    returns what is wrong with it, or None. `seam`: fire only at points that wait for that seam. `cancels`: it stops
    runs and changes nothing else about them, so their messages up to there are compared with those of the uncancelled
    run.
    """

    name: str
    fire: Callable[[Shot], bool]
    judge: Callable[[Ending], str | None]
    seam: str | None = None
    cancels: bool = False

    def fits(self, point: Point) -> bool:
        return self.seam is None or self.seam in point.seams


def must_return(ending: Ending) -> str | None:
    """The scenario has to return normally."""
    return None if ending is None else f"the scenario raised {_shown(ending)}"


def may_raise(*allowed: type[BaseException]) -> Callable[[Ending], str | None]:
    """The scenario may return normally or raise one of these, also as a group of only these."""

    def is_allowed(error: BaseException) -> bool:
        if isinstance(error, BaseExceptionGroup):
            return all(map(is_allowed, error.exceptions))  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]  # of anything
        return isinstance(error, allowed)

    def judge(ending: Ending) -> str | None:
        return None if ending is not None and is_allowed(ending) else must_return(ending)

    return judge


def _judge_own(ending: Ending) -> str | None:
    if isinstance(ending, asyncio.CancelledError):
        return "Safepoint's own cancel came out of the scenario as a CancelledError"
    return must_return(ending)


def _judge_caller(ending: Ending) -> str | None:
    if ending is None:
        return "the caller's cancellation was swallowed: the scenario returned normally"
    if isinstance(ending, asyncio.CancelledError):
        return None
    return f"the caller's cancellation was replaced: the scenario raised {_shown(ending)}"


def _shown(ending: BaseException) -> str:
    """The exception and the line that raised it."""
    stack = traceback.extract_tb(ending.__traceback__)
    return f"{ending!r} at {short(stack[-1].filename)}:{stack[-1].lineno}" if stack else repr(ending)


def _jump(seconds: float) -> Callable[[Shot], bool]:
    def fire(shot: Shot) -> bool:
        shot.loop.jump(seconds)
        return True

    return fire


def _fault(name: str, error: Exception, seam: Seam, judge: Callable[[Ending], str | None]) -> Injection:
    if not isinstance(error, Exception):  # pyright: ignore[reportUnnecessaryIsInstance]  # untyped callers
        raise ValueError(f"{name}({error!r}): pass an exception, as in {name}(ConnectionError('reset'))")
    # A copy each time: an exception keeps its traceback.
    return Injection(f"{name}({error!r})", lambda shot: shot.throw(copy(error)), judge, seam)


OWN = Injection("own", lambda shot: shot.subject.cancel_all() > 0, _judge_own, cancels=True)
"""Safepoint's own ``cancel(NOW)`` on every live root run. The scenario has to return normally."""

CALLER = Injection("caller", lambda shot: shot.task.cancel(), _judge_caller, cancels=True)
"""``task.cancel()`` on the scenario's task. The scenario has to raise that CancelledError."""


def clock_jump(seconds: float) -> Injection:
    """The clock moves by `seconds` at once, as after a suspended laptop. The scenario may time out."""
    if seconds <= 0:
        raise ValueError(f"clock_jump({seconds}): pass a number of seconds > 0")
    return Injection(f"clock_jump({seconds:g})", _jump(seconds), may_raise(TimeoutError))


def model_error(error: Exception | None = None) -> Injection:
    """The model fails where it waits, from connecting to closing: `ModelUnavailable`, unless another error is given.

    ``model_error(ConnectionResetError())`` is a connection that drops. The run retries or ends with an error.
    """
    return _fault("model_error", error or ModelUnavailable("injected"), Seam.MODEL, may_raise(RunFailed))


def tool_error(error: Exception | None = None) -> Injection:
    """A tool raises where it waits in its own code. The model is told, so the scenario has to return normally."""
    return _fault("tool_error", error or ConnectionError("injected"), Seam.TOOL, must_return)


def store_error(error: Exception | None = None) -> Injection:
    """A store fails while a session waits for it; the requested write may have happened all the same."""
    error = error or StoreError("injected")
    return _fault("store_error", error, Seam.STORE, may_raise(RunFailed, StoreError, type(error)))


def disconnect(error: Exception | None = None) -> Injection:
    """The reader of the events disconnects: its wait for the next event fails, or its own wait in between."""
    error = error or ConnectionResetError("injected")
    return _fault("disconnect", error, Seam.READER, may_raise(type(error)))

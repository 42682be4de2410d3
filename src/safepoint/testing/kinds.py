"""What can be done to a scenario at a point: the two cancels, a jump of the clock, and whatever else is registered.

An `Injection` fires once, from a callback of the loop, and then judges how the scenario ended. Its name is what one
writes to get it, because a failure's reproduction line repeats it.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from safepoint.testing.frames import short
from safepoint.testing.points import Moment, Point, WatchedLoop
from safepoint.testing.subject import Subject

Ending: TypeAlias = BaseException | None
"""How a scenario ended: the exception it raised, or None if it returned."""


@dataclass(frozen=True, slots=True)
class Shot:
    """What an injection can reach when it fires."""

    loop: WatchedLoop
    task: asyncio.Task[Any]  # Any: a scenario's value is not looked at
    subject: Subject
    point: Point
    moment: Moment


@dataclass(frozen=True, slots=True)
class Injection:
    """One kind of trouble.

    `fire` says whether there was anything to trouble; if not, the run is not counted. `judge` is told how the scenario
    ended and says what is wrong with that, or None.
    """

    name: str
    fire: Callable[[Shot], bool]
    judge: Callable[[Ending], str | None]


def must_return(ending: Ending) -> str | None:
    """The scenario has to return normally."""
    return None if ending is None else f"the scenario raised {_shown(ending)}"


def may_raise(*allowed: type[BaseException]) -> Callable[[Ending], str | None]:
    """The scenario may return normally or raise one of these."""

    def judge(ending: Ending) -> str | None:
        return None if isinstance(ending, allowed) else must_return(ending)

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


OWN = Injection("own", lambda shot: shot.subject.cancel_all() > 0, _judge_own)
"""Safepoint's own ``cancel(NOW)`` on every live root run. The scenario has to return normally."""

CALLER = Injection("caller", lambda shot: shot.task.cancel(), _judge_caller)
"""``task.cancel()`` on the scenario's task. The scenario has to raise that CancelledError."""


def clock_jump(seconds: float) -> Injection:
    """The clock moves by `seconds` at once, as after a suspended laptop. The scenario may time out."""
    if seconds <= 0:
        raise ValueError(f"clock_jump({seconds}): pass a number of seconds > 0")
    return Injection(f"clock_jump({seconds:g})", _jump(seconds), may_raise(TimeoutError))

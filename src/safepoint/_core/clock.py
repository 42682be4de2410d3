"""Time is a seam, and the event loop carries it.

A run reads time from its loop, so a loop with a virtual clock moves everything with it: deadlines, ladders, back-offs
and the user's own `asyncio.sleep`. Such a loop may also offer `wall()`, `outside(name)` to count work that it cannot
see (threads, processes), and `virtual = True`, which keeps real-time watchers away from it.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import Protocol


class Outside(Protocol):
    """Work that the loop cannot see. It has ended, or it was told to stop and may never end."""

    def done(self) -> None: ...

    def flagged(self) -> None: ...


class _Uncounted:
    __slots__ = ()

    def done(self) -> None:
        pass

    def flagged(self) -> None:
        pass


_UNCOUNTED = _Uncounted()


class Clock:
    """A loop's time; without a loop, the machine's. A clock does not keep its loop alive.

    `now()`: monotonic seconds. `wall()`: seconds since the epoch, for records. Both work in any thread.
    """

    __slots__ = ("_loop", "now", "wall")

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        reference = _no_loop if loop is None else weakref.ref(loop)
        self._loop: Callable[[], asyncio.AbstractEventLoop | None] = reference
        # Read many times in every stop. asyncio's own loops use the machine's time, so the loop need not be asked.
        by_machine = loop is None or type(loop).time is asyncio.BaseEventLoop.time
        self.now: Callable[[], float] = time.monotonic if by_machine else partial(_time_of, reference)
        self.wall: Callable[[], float] = partial(_wall_of, reference) if hasattr(loop, "wall") else time.time

    def call_at(self, when: float, call: Callable[[], object]) -> asyncio.TimerHandle:
        loop = self._loop()
        assert loop is not None, "a timer needs a loop"
        return loop.call_at(when, call)

    def outside(self, name: str) -> Outside:
        count: Callable[[str], Outside] | None = getattr(self._loop(), "outside", None)
        return _UNCOUNTED if count is None else count(name)

    @property
    def is_virtual(self) -> bool:
        return bool(getattr(self._loop(), "virtual", False))


def _no_loop() -> None:
    return None


def _time_of(reference: Callable[[], asyncio.AbstractEventLoop | None]) -> float:
    loop = reference()
    return time.monotonic() if loop is None else loop.time()


def _wall_of(reference: Callable[[], asyncio.AbstractEventLoop | None]) -> float:
    wall: Callable[[], float] = getattr(reference(), "wall", time.time)
    return wall()


def current_clock() -> Clock:
    """The clock of the running loop, or the machine's clock if no loop runs."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return _MACHINE
    clock = _clocks.get(loop)
    if clock is None:
        clock = _clocks[loop] = Clock(loop)
    return clock


_MACHINE = Clock()
_clocks: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Clock] = weakref.WeakKeyDictionary()

"""Time is a seam, and the event loop carries it.

A run reads time from its loop, so a loop with a virtual clock moves everything with it: deadlines, ladders, back-offs
and the user's own `asyncio.sleep`. Such a loop may also offer `wall()`, `outside(name)` to count work that it cannot
see (threads, processes), and `virtual = True`, which keeps real-time watchers away from it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol


class Outside(Protocol):
    """Work that the loop cannot see: it has ended, or it was told to stop and may never end."""

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
    """A loop's time. Without a loop, the machine's."""

    __slots__ = ("_loop",)

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._loop = loop

    def now(self) -> float:
        """Monotonic seconds; safe in any thread."""
        return time.monotonic() if self._loop is None else self._loop.time()

    def wall(self) -> float:
        """Seconds since the epoch, for records that people read."""
        wall: Callable[[], float] = getattr(self._loop, "wall", time.time)
        return wall()

    def call_at(self, when: float, call: Callable[[], object]) -> asyncio.TimerHandle:
        assert self._loop is not None, "a timer needs a loop"
        return self._loop.call_at(when, call)

    def outside(self, name: str) -> Outside:
        count: Callable[[str], Outside] | None = getattr(self._loop, "outside", None)
        return _UNCOUNTED if count is None else count(name)

    @property
    def is_virtual(self) -> bool:
        return bool(getattr(self._loop, "virtual", False))


def current_clock() -> Clock:
    """The clock of the running loop, or the machine's where none runs."""
    try:
        return Clock(asyncio.get_running_loop())
    except RuntimeError:
        return Clock()

"""Reports the code that blocks an event loop. It cannot interrupt code that never yields or holds the GIL.

One daemon thread pings every loop that has live runs. If a loop does not answer for `PATIENCE` seconds, the watchdog
writes the stack of its thread to the log `safepoint`, and `blocked()`, which works from any thread, returns it. The
remedy is to move that code to a thread or a process.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from safepoint._core.clock import Clock
from safepoint._core.stacks import thread_stack
from safepoint._values import Value

# A frozen loop is named after at most PATIENCE + 2 * PERIOD. A second is promised: the rest is for a busy processor.
PERIOD = 0.1
PATIENCE = 0.4

_log = logging.getLogger("safepoint")


class Blocked(Value, frozen=True):
    """A loop that does not answer: for how long, and where its thread stands."""

    seconds: float
    stack: str


class _Watched:
    """One loop. Only one thread writes `pinged`, and only one writes `answered`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        # The callback runs before the loop's address can be reused by another loop.
        self.loop = weakref.ref(loop, partial(_forget, id(loop)))
        self.thread = threading.get_ident()
        self.runs = 0
        self.pinged = self.answered = 0
        self.since = 0.0
        self.blocked: Blocked | None = None

    def release(self) -> None:
        """A run has ended. The watchdog drops a loop without runs at its next check: usually another run follows."""
        self.runs -= 1

    def answer(self) -> None:
        self.answered = self.pinged

    def check(self) -> None:
        """In the watchdog's thread: ping, or measure how long the last ping has been waiting."""
        loop = self.loop()
        if not self.runs and self._drop(loop):
            return
        if loop is not None and loop.is_closed():  # its runs never end, and it can no longer be blocked
            _watched.pop(id(loop), None)
        if loop is None or not loop.is_running():  # a loop that does not run is not blocked
            self.blocked, self.pinged = None, self.answered
            return
        if self.answered == self.pinged:
            self.blocked = None
            self.pinged += 1
            self.since = time.monotonic()
            with suppress(RuntimeError):  # the loop was closed in the meantime
                loop.call_soon_threadsafe(self.answer)
            return
        seconds = time.monotonic() - self.since
        if seconds < PATIENCE:
            return
        first = self.blocked is None
        self.blocked = Blocked(seconds, thread_stack(self.thread))
        if first:
            _log.warning("the event loop has not answered for %.1f s; it is here:\n%s", seconds, self.blocked.stack)

    def _drop(self, loop: asyncio.AbstractEventLoop | None) -> bool:
        """Stop watching a loop without runs; False if a run has just begun on it."""
        self.blocked, self.pinged = None, self.answered
        if loop is None or _watched.get(id(loop)) is not self:
            return True
        _watched.pop(id(loop), None)
        if self.runs:
            _watched[id(loop)] = self
        return not self.runs


def _forget(address: int, _loop: object) -> None:
    _watched.pop(address, None)


_watched: dict[int, _Watched] = {}
_work = threading.Event()
_thread: threading.Thread | None = None


def watch(loop: asyncio.AbstractEventLoop, clock: Clock) -> Callable[[], None]:
    """Watch the running loop while a run lives on it. Call the returned function when the run ends."""
    global _thread
    if clock.is_virtual:
        return _nothing
    address = id(loop)  # not the loop itself: the release function must not keep it alive
    watched = _watched.get(address)
    if watched is None:
        watched = _Watched(loop)
    watched.runs += 1
    # Checked after the count was raised: the watchdog may have just dropped this loop, which had no run.
    if _watched.get(address) is not watched:
        _watched[address] = watched
        _work.set()
    if _thread is None or not _thread.is_alive():  # after a fork the child has no watchdog thread
        _thread = threading.Thread(target=_patrol, name="safepoint-watchdog", daemon=True)
        _thread.start()
    return watched.release


def blocked(loop: asyncio.AbstractEventLoop) -> Blocked | None:
    """What blocks this loop now, if anything does. Safe in any thread."""
    watched = _watched.get(id(loop))
    return watched.blocked if watched is not None and watched.runs else None


def _patrol() -> None:
    while True:
        _work.wait()
        _work.clear()
        while _watched:
            for watched in list(_watched.values()):
                watched.check()
            time.sleep(PERIOD)


def _nothing() -> None:
    pass

"""Names what blocks an event loop. It cannot help: code that never yields, or holds the GIL, can't be interrupted.

One daemon thread pings every loop that has live runs. A loop that does not answer for `PATIENCE` seconds is named in
the log `safepoint` with the stack of its thread, and in `blocked()`, which works from any thread. The remedy is to
move that code to a thread or a process.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from safepoint._core.clock import Clock
from safepoint._core.stacks import thread_stack

PERIOD = 0.2
PATIENCE = 0.5

_log = logging.getLogger("safepoint")


@dataclass(frozen=True, slots=True)
class Blocked:
    """A loop that does not answer: for how long, and where its thread is."""

    seconds: float
    stack: str


class _Watched:
    """One loop. `pinged` and `answered` are each written by one thread only."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        # Told before its address is free for another loop.
        self.loop = weakref.ref(loop, partial(_forget, id(loop)))
        self.thread = threading.get_ident()
        self.runs = 0
        self.pinged = self.answered = 0
        self.since = 0.0
        self.blocked: Blocked | None = None

    def answer(self) -> None:
        self.answered = self.pinged

    def check(self) -> None:
        """In the watchdog's thread: ping, or measure how long the last ping has been waiting."""
        loop = self.loop()
        if loop is not None and loop.is_closed():  # its runs will never end, and there is nothing more to see
            _watched.pop(id(loop), None)
        if loop is None or not loop.is_running():  # nobody runs it, so nothing blocks it
            self.blocked, self.pinged = None, self.answered
            return
        if self.answered == self.pinged:
            self.blocked = None
            self.pinged += 1
            self.since = time.monotonic()
            with suppress(RuntimeError):  # closed meanwhile
                loop.call_soon_threadsafe(self.answer)
            return
        seconds = time.monotonic() - self.since
        if seconds < PATIENCE:
            return
        first = self.blocked is None
        self.blocked = Blocked(seconds, thread_stack(self.thread))
        if first:
            _log.warning("the event loop has not answered for %.1f s; it is here:\n%s", seconds, self.blocked.stack)


def _forget(address: int, _loop: object) -> None:
    _watched.pop(address, None)


_watched: dict[int, _Watched] = {}
_work = threading.Event()
_thread: threading.Thread | None = None


def watch(loop: asyncio.AbstractEventLoop, clock: Clock) -> Callable[[], None]:
    """Watch the running loop while a run lives on it; call what is returned when the run ends."""
    global _thread
    if clock.is_virtual:
        return _nothing
    address = id(loop)  # and not the loop itself: who releases it must not keep it alive
    watched = _watched.get(address)
    if watched is None:
        watched = _watched[address] = _Watched(loop)
    watched.runs += 1
    _work.set()
    if _thread is None or not _thread.is_alive():  # after a fork the child has no watchdog thread
        _thread = threading.Thread(target=_patrol, name="safepoint-watchdog", daemon=True)
        _thread.start()

    def release() -> None:
        watched.runs -= 1
        if not watched.runs and _watched.get(address) is watched:
            del _watched[address]

    return release


def blocked(loop: asyncio.AbstractEventLoop) -> Blocked | None:
    """What blocks this loop right now, if anything does. Safe in any thread."""
    watched = _watched.get(id(loop))
    return watched.blocked if watched is not None else None


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

"""A loop whose clock jumps: time-outs, back-offs and ladders take no time and happen in a fixed order.

The loop runs the callbacks that are ready. When none is, it does the first of these that applies:

1. Work outside the loop is pending: the loop waits in real time, and the clock stands still.
2. A timer is set: the clock jumps to exactly that timer. Timers due together run in the order they were set.
3. Neither: nothing can ever happen again, and `Deadlock` is raised at once, with each task and where it waits.

What counts as outside work:

- Work announced with ``loop.outside(name)``, until ``done()``. Once ``flagged()`` (told to stop), it counts for
  another 100 ms of real time and no longer.
- Jobs of ``run_in_executor``, ``asyncio.to_thread`` and ``anyio.to_thread``, until they end or their waiter gave up.
- File descriptors that the loop watches (sockets, pipes) and child processes that asyncio waits for. They may stay
  silent for ever, so they only delay: with a timer set, the clock jumps after 50 ms of real silence; without one, the
  loop waits for them.

A real wait in which nothing happens for `patience` seconds (30) ends in `Deadlock` too, which names the missing work. A
thread or a signal that was not announced is invisible: announce it with ``loop.outside``.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
import selectors
import socket
import threading
from collections.abc import Callable, Coroutine, Mapping
from collections.abc import Set as AbstractSet
from concurrent.futures import Executor
from contextvars import Context
from time import monotonic
from typing import Any, TypeAlias, TypeVar, TypeVarTuple, Unpack

from safepoint.errors import SafepointError, UsageError
from safepoint.testing.frames import describe

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

START = 1000.0
"""The first value of ``loop.time()``. Not zero, so that code that takes 0 for "never" is found."""
EPOCH = 1_767_225_600.0
"""The first value of ``loop.wall()``: 2026-01-01 00:00 UTC."""
FLAGGED_FOR = 0.1
SILENCE = 0.05
PATIENCE = 30.0
_CHILD_WATCHERS = ("waitpid-", "asyncio-waitpid-")
_Ready: TypeAlias = list[tuple[selectors.SelectorKey, int]]


class Stuck(SafepointError):
    """The loop gave up. The message lists each pending task and the line where it waits."""


class Deadlock(Stuck):
    """No callback is ready, no timer is set, and no work outside the loop can change that."""


class Endless(Stuck):
    """The loop reached its limit of rounds or of virtual time."""


class OutsideWork:
    """Work outside the loop, from ``loop.outside(name)``. Both methods may be called from any thread.

    Pass the result to the loop first (``call_soon_threadsafe``), then call `done`: in between the clock stands still.
    """

    __slots__ = ("_counts_until", "_loop", "name")

    def __init__(self, loop: VirtualLoop, name: str) -> None:
        self._loop = loop
        self.name = name
        # Real time at which it stops counting; only ever lowered.
        self._counts_until = float("inf")

    def done(self) -> None:
        """The work has ended. A second call, or one after the loop was closed, does nothing."""
        self._loop.forget(self)

    def flagged(self) -> None:
        """The work was told to stop. It counts for another 100 ms of real time; a second call does not extend that."""
        self._counts_until = min(self._counts_until, monotonic() + FLAGGED_FOR)
        self._loop.wake()

    @property
    def counts_until(self) -> float:
        return self._counts_until


class _Timer(asyncio.TimerHandle):
    """A timer that keeps its place in the queue: with a virtual clock, many are due at the very same time."""

    __slots__ = ("_order",)
    _order: int
    _when: float  # asyncio's own, as is `_scheduled`
    _scheduled: bool

    def __lt__(self, other: asyncio.TimerHandle) -> bool:
        if isinstance(other, _Timer) and self._when == other._when:
            return self._order < other._order
        return self._when < other.when()

    def enter(self, heap: list[asyncio.TimerHandle], order: int) -> None:
        self._order = order
        heapq.heappush(heap, self)
        self._scheduled = True


class _Selector(selectors.BaseSelector):
    """The real selector, except that with nothing ready the loop's own rules decide how to wait."""

    def __init__(self, next_round: Callable[[], None], idle: Callable[[selectors.BaseSelector], _Ready]) -> None:
        self._real = selectors.DefaultSelector()
        self._next_round = next_round
        self._idle = idle

    def select(self, timeout: float | None = None) -> _Ready:
        self._next_round()
        if timeout is None or timeout > 0:
            return self._idle(self._real)
        # With only the self-pipe watched a select finds nothing new: the call that woke the loop is queued already.
        return self._real.select(0) if len(self._real.get_map()) > 1 else []

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:  # Any: as in selectors
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:  # Any: as in selectors
        return self._real.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:  # Any: as in selectors
        return self._real.modify(fileobj, events, data)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:  # Any: as in selectors
        return self._real.get_map()

    def close(self) -> None:
        self._real.close()


class VirtualLoop(asyncio.SelectorEventLoop):
    """An asyncio loop on a virtual clock. `run_virtual` is the way to use one.

    `horizon` is a virtual time the clock never passes; it, and `max_rounds`, turn a scenario that never ends into
    `Endless`. Both are off unless set.
    """

    # Real-time watchers ignore a loop with virtual seconds.
    virtual = True

    horizon: float = float("inf")
    # asyncio's own, unchanged from 3.11 to 3.14: the heap of timers, the generators to shut down, the loop's end of its
    # self-pipe, the checks.
    _scheduled: list[asyncio.TimerHandle]
    _asyncgens: AbstractSet[object]
    _default_executor: Executor | None
    _ssock: socket.socket
    _check_closed: Callable[[], None]
    _check_thread: Callable[[], None]
    _clock_resolution: float

    def __init__(self, *, patience: float = PATIENCE, max_rounds: int | None = None) -> None:
        self._now = START
        self._patience = patience
        self._rounds = 0
        self.max_rounds = max_rounds
        self._order = itertools.count()
        # Written by any thread, one atomic operation at a time, so it needs no lock.
        self._outside: dict[OutsideWork, None] = {}
        self._waits = _Selector(self._next_round, self._idle)
        super().__init__(self._waits)

    def time(self) -> float:
        return self._now

    def wall(self) -> float:
        """Seconds since 1970 as this clock sees them: a fixed day, moved by the virtual time alone."""
        return EPOCH + (self._now - START)

    def jump(self, seconds: float) -> None:
        """Move the clock. Timers that this makes due run in the next round, in their order."""
        if seconds < 0:
            raise ValueError(f"jump({seconds}): the clock only moves forward; pass a number of seconds >= 0")
        self._move_to(self._now + seconds)

    def outside(self, name: str) -> OutsideWork:
        """Announce work outside the loop; until its ``done()`` the clock stands still. Any thread may call it."""
        work = OutsideWork(self, name)
        self._outside[work] = None
        return work

    def forget(self, work: OutsideWork) -> None:
        if self._outside.pop(work, work) is None:
            self.wake()

    def wake(self) -> None:
        """Make a waiting loop check again what it waits for. Any thread may call it."""
        try:
            self.call_soon_threadsafe(_look_again)
        except RuntimeError:
            if not self.is_closed():
                raise

    @property
    def has_loose_ends(self) -> bool:
        """Whether there are generators or an executor to shut down before this loop is closed."""
        return bool(self._asyncgens) or self._default_executor is not None

    def open_fds(self) -> list[int]:
        """The file descriptors that are watched on this loop."""
        own_socket = self._ssock.fileno()
        return sorted(key.fd for key in self._waits.get_map().values() if key.fd != own_socket)

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        self._check_closed()
        if self.get_debug():
            self._check_thread()
        timer = _Timer(when, callback, args, self, context)
        timer.enter(self._scheduled, next(self._order))
        return timer

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> asyncio.Future[T]:
        work = self.outside(f"executor job {getattr(func, '__qualname__', func)}")
        future = super().run_in_executor(executor, func, *args)
        future.add_done_callback(lambda _: work.done())
        return future

    async def shutdown_default_executor(self, *args: Any, **kwargs: Any) -> None:  # Any: the signature grew in 3.12
        """As in asyncio. Cancellation: the executor's threads are left to end by themselves."""
        work = self.outside("the default executor's threads")
        try:
            await super().shutdown_default_executor(*args, **kwargs)
        finally:
            work.done()

    def _idle(self, real: selectors.BaseSelector) -> _Ready:
        """No callback is ready: wait, jump, or give up. The selector calls it inside asyncio's own round."""
        begun = monotonic()
        while (until := self._waits_until(begun)) > (now := monotonic()):
            if now >= begun + self._patience:
                raise Deadlock(self._complaint(f"nothing has come from outside for {self._patience:g} s of real time"))
            # A result and its `done()` may arrive between the check and the wait; both have then written to the
            # self-pipe, so the wait ends at once.
            if ready := real.select(min(until, begun + self._patience) - now):
                return ready
        if ready := real.select(0):
            return ready
        if not self._scheduled:
            raise Deadlock(self._complaint("nothing can happen any more"))
        when = self._scheduled[0].when()
        if when > self.horizon:
            raise Endless(self._complaint(f"the next timer is {when - self.horizon:g} s past the horizon"))
        self._move_to(when)
        return []

    def _waits_until(self, begun: float) -> float:
        """The real time until which outside work may still report; in the past if there is none."""
        until = max((work.counts_until for work in tuple(self._outside)), default=0.0)
        silent, busy = len(self._waits.get_map()) > 1, False  # one is the loop's own self-pipe
        for thread in threading.enumerate():
            silent = silent or thread.name.startswith(_CHILD_WATCHERS)
            busy = busy or _is_busy_for(self, thread)
        if busy or (silent and not self._scheduled):
            return float("inf")
        return max(until, begun + SILENCE) if silent else until

    def _move_to(self, when: float) -> None:
        self._now = max(self._now, when)
        # asyncio runs a timer that is due before now + resolution; far from zero, now + 1e-9 is now.
        self._clock_resolution = max(1e-9, math.ulp(self._now))

    def _next_round(self) -> None:
        self._rounds += 1
        if self.max_rounds is not None and self._rounds > self.max_rounds:
            raise Endless(self._complaint(f"the loop has run {self.max_rounds} rounds"))

    def _complaint(self, what: str) -> str:
        tasks = sorted(asyncio.all_tasks(self), key=lambda task: (len(task.get_name()), task.get_name()))
        lines = [f"{what}, at {self._now - START:g} s on the virtual clock", *map(describe, tasks)]
        lines += [f"outside the loop: {work.name}" for work in tuple(self._outside)]
        lines += [f"file descriptor {fd} is watched" for fd in self.open_fds()]
        return "\n  ".join(lines)


def _look_again() -> None:
    """Does nothing: the callback only makes the loop turn."""


def _is_busy_for(loop: VirtualLoop, thread: threading.Thread) -> bool:
    """AnyIO's worker threads are shared and idle between jobs; a thread that is not among the idle ones has a job."""
    idle = getattr(thread, "idle_workers", None)
    return idle is not None and getattr(thread, "loop", None) is loop and thread not in idle


def run_virtual(main: Callable[[], Coroutine[Any, Any, T]] | Coroutine[Any, Any, T]) -> T:  # Any: what it yields
    """``asyncio.run`` on a virtual clock: it ends tasks, generators and threads alike, and leaves no global state.

    Raises `Deadlock` as soon as nothing can happen any more.
    """
    if asyncio._get_running_loop() is not None:
        if not callable(main):
            main.close()
        raise UsageError(
            "run_virtual() starts its own loop and one is already running here: "
            "call it from a plain function, and `await` the coroutine where a loop runs"
        )
    coroutine = main() if callable(main) else main
    if not asyncio.iscoroutine(coroutine):
        raise UsageError(f"run_virtual() takes an async function or its coroutine, not {main!r}")
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(coroutine)

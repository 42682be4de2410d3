"""Blocking functions run in daemon threads of our own, one each.

A pool's threads are joined when the interpreter exits, so one stuck call would hold the whole process. A daemon thread
does not hold it. The thread wakes the waiting task through the loop; if the loop is closed, it updates the orphan.
"""

from __future__ import annotations

import asyncio
import ctypes
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from typing import cast

from safepoint._core.clock import Clock, current_clock
from safepoint._core.work import T, Work
from safepoint.errors import StopTool


async def in_thread(work: Work[T], call: Callable[[], T], clock: Clock) -> T:
    """Run `call` in a thread and wait for it, as the body of `work`.

    Cancellation: only the waiting ends. A thread cannot be stopped from outside: `work.on_flag` tells it.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    outside = clock.outside(work.name)
    context = copy_context()

    def report(value: T | None, error: BaseException | None) -> None:
        try:
            loop.call_soon_threadsafe(_settle, future, value, error)
        except RuntimeError:  # the loop was closed while the thread ran on
            if work.orphan is not None:
                if error is None:
                    work.orphan.returned_late(value)
                else:
                    work.orphan.ended_late(error)
        finally:
            outside.done()

    returned: list[T] = []
    gate = _Gate()

    def body() -> None:
        failed: BaseException | None = None
        try:
            try:
                returned.append(context.run(call))
            except BaseException as error:  # it belongs to the run, not to the thread's excepthook
                failed = error
            gate.close()
        except StopTool as late:  # raised from outside, between the function's end and the gate's
            failed = failed or (None if returned else late)
        if returned:
            report(returned[0], None)
        else:
            report(None, failed)

    def raise_in_thread() -> None:
        if work.thread is not None and work.thread.ident is not None:
            gate.throw(work.thread.ident)

    flag, work.on_raise = work.on_flag, raise_in_thread

    def flag_and_count() -> None:
        flag()
        outside.flagged()

    work.on_flag = flag_and_count
    work.thread = threading.Thread(target=body, name=f"safepoint:{work.path}", daemon=True)
    work.thread.start()
    return await future


_JUMPS = 10


class _Gate:
    """Lets an exception into a thread at most once, and none after the function has ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_open = True

    def close(self) -> None:
        """The function has ended; call it in its thread. An exception that has not landed yet lands here, or never."""
        with self._lock:
            was_thrown = not self._is_open
            self._is_open = False
        # It is not taken back: `PyThreadState_SetAsyncExc(…, NULL)` leaves CPython 3.11 looking for an exception at
        # every step for ever, and a profiler makes that an endless loop. A pending one lands at the first jump back.
        for _ in range(_JUMPS if was_thrown else 0):
            pass

    def throw(self, ident: int) -> None:
        """It lands at the next step of Python code in that thread; a call that blocks in C ends first."""
        # Looked at first: if the exception landed where the thread took the lock, the lock is never free again.
        if not self._is_open:
            return
        with self._lock:
            if self._is_open:
                self._is_open = False
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(StopTool))


def _settle(future: asyncio.Future[T], value: T | None, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(cast(T, value))
    elif isinstance(error, StopIteration):
        future.set_exception(RuntimeError(f"the function raised {error!r}"))  # a future cannot carry it
    else:
        future.set_exception(error)


async def off_loop(call: Callable[[], T], name: str) -> T:
    """Run a long computation in a daemon thread and return its value; the event loop keeps turning meanwhile.

    Cancellation: only the waiting ends. The thread computes to its end, and its value is dropped.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    outside = current_clock().outside(name)

    def report(value: T | None, error: BaseException | None) -> None:
        with suppress(RuntimeError):  # the loop was closed meanwhile: it has no waiters left
            loop.call_soon_threadsafe(_settle, future, value, error)
        outside.done()

    def body() -> None:
        try:
            value = call()
        except BaseException as error:  # it belongs to the caller, not to the thread's excepthook
            report(None, error)
        else:
            report(value, None)

    threading.Thread(target=body, name=f"safepoint:{name}", daemon=True).start()
    return await future

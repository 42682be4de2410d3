"""A blocking call of an SDK in a daemon thread of its own.

`asyncio.to_thread` would not block the loop either, but the threads of its pool are joined when the loop is closed: a
call that hangs would hold `asyncio.run` and the process, long after the run that made it was stopped.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from safepoint._core.clock import current_clock

T = TypeVar("T")


async def in_daemon(name: str, call: Callable[[], T]) -> T:
    """The call's result or exception. Cancellation: only the waiting ends; the thread does not hold the process."""
    outside = current_clock().outside(name)
    done: Future[T] = Future()
    done.set_running_or_notify_cancel()  # from now on the future cannot be cancelled: only the caller leaves

    def body() -> None:
        try:
            done.set_result(call())
        except BaseException as error:  # it belongs to the caller
            done.set_exception(error)
        finally:
            outside.done()

    threading.Thread(target=body, name=f"safepoint:{name}", daemon=True).start()
    try:
        return await asyncio.wrap_future(done)
    except asyncio.CancelledError:
        outside.flagged()
        raise

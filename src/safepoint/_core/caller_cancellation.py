"""The one place where a caller's own cancellation meets a run. The core uses AnyIO only here.

The caller waits; the run closes itself, in its own task. If the caller is cancelled, the run is asked to stop and the
caller keeps waiting behind a shield (an AnyIO scope would otherwise cancel every later await as well). Then the
caller's own exception is raised again: it is never swallowed and never becomes a result. The run's ladder bounds the
wait.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import anyio

from safepoint._core.latch import Latch

_SCOPES = "anyio._backends._asyncio"


async def outlive(task: asyncio.Task[None], on_cancelled: Callable[[], object], last_step: Latch | None = None) -> None:
    """Wait until the task is done. `last_step`: what the task sets in its last step, if it does.

    Cancellation: `on_cancelled` is called, the wait goes on until the task is done, then the exception is raised.
    """
    if task.done() and task.get_loop() is not asyncio.get_running_loop():  # the task's own loop may be closed
        return
    try:
        await _until_done(task, last_step)
    except asyncio.CancelledError:
        on_cancelled()
        await outlast(task, last_step)
        raise


async def outlast(task: asyncio.Task[None], last_step: Latch | None = None) -> None:
    """Wait for a task that is already stopping. Cancellation: deferred until the task is done, then raised."""
    put_off: asyncio.CancelledError | None = None
    with _shield():
        while not task.done():
            try:
                await _until_done(task, last_step)
            except asyncio.CancelledError as again:  # AnyIO's shield does not hold off a second task.cancel()
                put_off = again
    if put_off is not None:
        raise put_off


async def _until_done(task: asyncio.Task[None], last_step: Latch | None) -> None:
    """`asyncio.wait` for one task, at a third of its cost. Cancellation: only the waiting ends."""
    if last_step is not None and not task.done():
        await last_step.wait()  # wakes this waiter a turn of the loop before a callback of the task could
    if task.done():
        return
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake(_task: asyncio.Task[None]) -> None:
        if not done.done():
            done.set_result(None)

    task.add_done_callback(wake)
    try:
        await done
    finally:
        task.remove_done_callback(wake)


def _shield() -> AbstractContextManager[object]:
    """Shield the caller against AnyIO's cancel scopes.

    While AnyIO's asyncio backend is not loaded, this task cannot be in a scope. Importing it here would block the loop
    for a fifth of a second in a process's first stop.
    """
    return anyio.CancelScope(shield=True) if _SCOPES in sys.modules else nullcontext()

"""The one place where a caller's own cancellation meets a run. AnyIO is used here and nowhere else in the core.

The caller waits; the run closes itself, in its own task. If the caller is cancelled, the run is told, the caller goes
on waiting behind a shield (an AnyIO scope would otherwise cancel every await again), and then the caller's own
exception is raised again: never swallowed, never turned into a result. The run's ladder bounds the wait.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import anyio

_SCOPES = "anyio._backends._asyncio"


async def outlive(task: asyncio.Task[None], on_cancelled: Callable[[], object]) -> None:
    """Wait until the task is done.

    Cancellation: `on_cancelled` is called, the task is waited for all the same, then the caller's exception goes on.
    """
    if task.done() and task.get_loop() is not asyncio.get_running_loop():  # that loop may be closed
        return
    try:
        await asyncio.wait((task,))
    except asyncio.CancelledError:
        on_cancelled()
        await outlast(task)
        raise


async def outlast(task: asyncio.Task[None]) -> None:
    """Wait for a task that is already stopping. Cancellation: put off until it is done, then it goes on."""
    put_off: asyncio.CancelledError | None = None
    with _shield():
        while not task.done():
            try:
                await asyncio.wait((task,))
            except asyncio.CancelledError as again:  # a shield does not stop a second task.cancel()
                put_off = again
    if put_off is not None:
        raise put_off


def _shield() -> AbstractContextManager[object]:
    """Against the scopes of AnyIO. Before the module is loaded that makes them, this task can be in none.

    To load it here would hold the loop for a fifth of a second in the first stop of a process.
    """
    return anyio.CancelScope(shield=True) if _SCOPES in sys.modules else nullcontext()

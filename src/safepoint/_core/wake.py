"""Schedule a call on a loop from anywhere: from its own tasks, another thread, or a signal handler.

Inside a step of one of the loop's own tasks `call_soon` is enough: the loop reads its queue after the step. Anywhere
else the loop may be asleep, even when a signal handler runs in its own thread, and waking it takes system calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


def in_step_of(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether this code runs inside a step of one of the loop's tasks. Then the loop is awake."""
    try:
        return asyncio.current_task() is not None and asyncio.get_running_loop() is loop
    except RuntimeError:  # no loop runs in this thread
        return False


def call_soon(loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> bool:
    """Have the loop call it. False if the loop is closed and will never call it."""
    try:
        if in_step_of(loop):
            loop.call_soon(call)
        else:
            loop.call_soon_threadsafe(call)
    except RuntimeError:
        return False
    return True

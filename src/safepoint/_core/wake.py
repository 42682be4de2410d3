"""Have a loop do something soon, from anywhere: its own tasks, another thread, a signal handler.

Inside a step of one of the loop's own tasks its queue is enough: the loop looks at it when the step is over. Anywhere
else the loop may be asleep, also when a signal handler runs in its own thread, and waking it takes system calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


def in_step_of(loop: asyncio.AbstractEventLoop) -> bool:
    """Is this code running inside a step of one of the loop's tasks? Then the loop is awake."""
    try:
        return asyncio.current_task() is not None and asyncio.get_running_loop() is loop
    except RuntimeError:  # no loop runs in this thread
        return False


def call_soon(loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> bool:
    """Have the loop call it. False if that loop is closed and will never call anything again."""
    try:
        if in_step_of(loop):
            loop.call_soon(call)
        else:
            loop.call_soon_threadsafe(call)
    except RuntimeError:
        return False
    return True

"""Where code is right now, as text for people."""

from __future__ import annotations

import asyncio
import sys
import traceback


def thread_stack(ident: int) -> str:
    """The stack of another thread; empty if it has ended."""
    frame = sys._current_frames().get(ident)  # pyright: ignore[reportPrivateUsage]  # documented, despite its name
    return "".join(traceback.format_stack(frame)) if frame is not None else ""


def task_stack(task: asyncio.Task[None]) -> str:
    """Where a suspended task waits, outermost frame first; empty if it has ended."""
    return "".join(line for frame in task.get_stack() for line in traceback.format_stack(frame, limit=1))

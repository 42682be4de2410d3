"""Where code is right now, as text for people."""

from __future__ import annotations

import asyncio
import sys
import traceback
from collections.abc import Iterator
from types import FrameType


def thread_stack(ident: int) -> str:
    """The stack of another thread; empty if it has ended."""
    frame = sys._current_frames().get(ident)  # pyright: ignore[reportPrivateUsage]  # documented, despite its name
    return "".join(traceback.format_stack(frame)) if frame is not None else ""


def task_stack(task: asyncio.Task[None]) -> str:
    """Where a suspended task waits, from its own coroutine to the innermost await; empty if it has ended."""
    return "".join(line for frame in _frames(task.get_coro()) for line in traceback.format_stack(frame, limit=1))


_LINKS = (("cr_frame", "cr_await"), ("gi_frame", "gi_yieldfrom"), ("ag_frame", "ag_await"))


def _frames(awaitable: object) -> Iterator[FrameType]:
    """Follow the awaits by hand: `Task.get_stack` ends at the first frame, for a suspended one has none above it."""
    while awaitable is not None:
        frame_name, await_name = next(((f, a) for f, a in _LINKS if hasattr(awaitable, f)), ("", ""))
        frame: FrameType | None = getattr(awaitable, frame_name, None)
        if frame is not None:
            yield frame
        awaitable = getattr(awaitable, await_name, None)

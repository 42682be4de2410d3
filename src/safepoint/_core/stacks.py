"""Where code is right now, as text for people."""

from __future__ import annotations

import asyncio
import gc
import sys
import traceback
from collections.abc import Iterator
from types import FrameType

_FRAMED = (("cr_frame", "cr_await"), ("gi_frame", "gi_yieldfrom"), ("ag_frame", "ag_await"))
_OPAQUE = frozenset({"async_generator_asend", "async_generator_athrow", "coroutine_wrapper", "anext_awaitable"})


def thread_stack(ident: int) -> str:
    """The stack of another thread; empty if it has ended."""
    frame = sys._current_frames().get(ident)  # pyright: ignore[reportPrivateUsage]  # documented, despite its name
    return "".join(traceback.format_stack(frame)) if frame is not None else ""


def task_stack(task: asyncio.Task[None]) -> str:
    """Where a suspended task waits, outermost frame first; empty if it has ended."""
    return "".join(line for frame in _frames(task.get_coro()) for line in traceback.format_stack(frame, limit=1))


def _frames(awaitable: object) -> Iterator[FrameType]:
    """asyncio knows the outermost frame alone; what is awaited in there is followed by hand."""
    while awaitable is not None:
        for frame_name, next_name in _FRAMED:
            frame: FrameType | None = getattr(awaitable, frame_name, None)
            if frame is not None:
                yield frame
                awaitable = getattr(awaitable, next_name, None)
                break
        else:
            awaitable = _held_by(awaitable)


def _held_by(awaitable: object) -> object:
    """What stands between two frames and names nothing; the garbage collector knows what it holds."""
    if type(awaitable).__name__ not in _OPAQUE:
        return None
    for held in gc.get_referents(awaitable):
        if type(held).__name__ in _OPAQUE or any(hasattr(held, name) for name, _ in _FRAMED):
            return held
    return None

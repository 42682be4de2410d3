"""Where code is right now, as text for people."""

from __future__ import annotations

import asyncio
import gc
import sys
import traceback
from collections.abc import Iterator
from types import FrameType
from typing import Any


def thread_stack(ident: int) -> str:
    """The stack of another thread; empty if it has ended."""
    frame = sys._current_frames().get(ident)  # pyright: ignore[reportPrivateUsage]  # documented, despite its name
    return "".join(traceback.format_stack(frame)) if frame is not None else ""


def task_stack(task: asyncio.Task[None]) -> str:
    """Where a suspended task waits, outermost frame first; empty if it has ended."""
    return "".join(line for _, frame in suspended(task) for line in traceback.format_stack(frame, limit=1))


def suspended(task: asyncio.Task[Any]) -> Iterator[tuple[object, FrameType]]:  # Any: any task
    """The coroutines and generators that a suspended task is in, from its own to the innermost, with their frames."""
    awaited: object = task.get_coro()
    while awaited is not None:
        for frame_name, inner in _FRAMED:
            frame: FrameType | None = getattr(awaited, frame_name, None)
            if frame is not None:
                yield awaited, frame
                awaited = getattr(awaited, inner, None)
                break
        else:
            awaited = _held_by(awaited)


# Objects between two frames that name nothing; only the garbage collector knows what they refer to.
_OPAQUE = frozenset({"async_generator_asend", "async_generator_athrow", "coroutine_wrapper", "anext_awaitable"})
_FRAMED = (("cr_frame", "cr_await"), ("gi_frame", "gi_yieldfrom"), ("ag_frame", "ag_await"))


def _held_by(awaited: object) -> object:
    if type(awaited).__name__ not in _OPAQUE:
        return None
    for held in gc.get_referents(awaited):
        if any(hasattr(held, frame_name) for frame_name, _ in _FRAMED) or type(held).__name__ in _OPAQUE:
            return held
    return None

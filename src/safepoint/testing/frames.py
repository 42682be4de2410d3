"""Where a suspended coroutine stands: the chain of frames from the task's own coroutine to the innermost await.

A suspended coroutine names the object it awaits (``cr_await``, ``gi_yieldfrom``, ``ag_await``), so the whole chain can
be walked from outside. Four interpreter objects stand between two frames and name nothing (an async generator's
``asend`` and ``athrow``, a coroutine's ``__await__``, ``anext`` with a default): only the garbage collector knows what
they refer to.

Each frame has an `Owner`. Reports speak about the innermost frame that is worth reading, which is never
``asyncio/tasks.py``.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import sys
import sysconfig
from dataclasses import dataclass
from enum import Enum
from functools import cache
from types import CodeType, FrameType
from typing import Any

import anyio

_OPAQUE = frozenset({"async_generator_asend", "async_generator_athrow", "coroutine_wrapper", "anext_awaitable"})
_FRAMED = (("cr_frame", "cr_await"), ("gi_frame", "gi_yieldfrom"), ("ag_frame", "ag_await"))


class Owner(Enum):
    """Whose code a frame runs."""

    MACHINERY = "the standard library, anyio, pass_time"  # every wait ends here
    INSTALLED = "some other installed package"
    SAFEPOINT = "safepoint"
    USER = "the user"


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """One line of one function that is suspended there, or about to start."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{short(self.file)}:{self.line} in {self.function}"

    @property
    def owner(self) -> Owner:
        return owner_of(self.file)


# Decoding a line number from its table is slow; a place is fixed by the code and the instruction. The code object is
# kept with the place, so that its id cannot be reused.
_places: dict[tuple[int, int], tuple[CodeType, Place]] = {}
_owners: dict[str, Owner] = {}
_SAFEPOINT = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_PASS_TIME = os.path.join(os.path.dirname(os.path.abspath(__file__)), "virtual_sleep.py")  # counts as a sleep
_ANYIO = os.path.dirname(os.path.abspath(anyio.__file__)) + os.sep
_STDLIB = tuple(os.path.realpath(sysconfig.get_path(key)) + os.sep for key in ("stdlib", "platstdlib"))
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


def place_of(frame: FrameType) -> Place:
    key = (id(frame.f_code), frame.f_lasti)
    known = _places.get(key)
    if known is None:
        code = frame.f_code
        line = frame.f_lineno or code.co_firstlineno
        known = _places[key] = (code, Place(os.path.abspath(code.co_filename), line, code.co_qualname))
    return known[1]


def chain(awaitable: Any) -> list[Place]:  # Any: any awaitable of a task
    """The places where `awaitable` is suspended, outermost first. Empty if it is running or has ended."""
    found: list[Place] = []
    while awaitable is not None:
        for frame_name, next_name in _FRAMED:
            frame: FrameType | None = getattr(awaitable, frame_name, None)
            if frame is not None:
                found.append(place_of(frame))
                awaitable = getattr(awaitable, next_name, None)
                break
        else:
            awaitable = _held_by(awaitable)
    return found


def _held_by(awaitable: Any) -> Any:
    if type(awaitable).__name__ not in _OPAQUE:
        return None
    for held in gc.get_referents(awaitable):
        if any(hasattr(held, name) for name, _ in _FRAMED) or type(held).__name__ in _OPAQUE:
            return held
    return None


def owner_of(file: str) -> Owner:
    known = _owners.get(file)
    if known is None:
        known = _owners[file] = _find_owner(file)
    return known


def _find_owner(file: str) -> Owner:
    if file == _PASS_TIME:
        return Owner.MACHINERY
    if file.startswith(_SAFEPOINT):
        return Owner.SAFEPOINT
    if file.startswith(_ANYIO) or os.path.basename(file).startswith("<frozen"):
        return Owner.MACHINERY
    if any(part in file for part in _INSTALLED):
        return Owner.INSTALLED
    return Owner.MACHINERY if os.path.realpath(file).startswith(_STDLIB) else Owner.USER


def timed_by(places: list[Place]) -> Place | None:
    """The innermost place that is not machinery: the await a reader would point at."""
    for place in reversed(places):
        if place.owner is not Owner.MACHINERY:
            return place
    return places[-1] if places else None


def landed_at(places: list[Place]) -> Place | None:
    """The user's innermost line; an installed package's if the chain has none; None inside Safepoint alone."""
    for wanted in (Owner.USER, Owner.INSTALLED):
        for place in reversed(places):
            if place.owner is wanted:
                return place
    return None


def caller_place() -> Place | None:
    """The innermost place of the running stack that is not machinery and not this package."""
    frame: FrameType | None = inspect.currentframe()
    here = os.path.dirname(__file__) + os.sep
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(here) and owner_of(os.path.abspath(file)) is not Owner.MACHINERY:
            return place_of(frame)
        frame = frame.f_back
    return None


def describe(task: asyncio.Task[Any]) -> str:  # Any: any task
    """``name waits at file:line in function``, for error messages."""
    place = timed_by(chain(task.get_coro()))
    return f"{task.get_name()} waits at {place}" if place else f"{task.get_name()} has not started"


@cache
def short(file: str) -> str:
    """The path as a person would type it: from here, or, for an installed file, from its entry in ``sys.path``."""
    here = os.getcwd() + os.sep
    if file.startswith(here) and owner_of(file) in (Owner.USER, Owner.SAFEPOINT):
        return file[len(here) :]
    roots = [os.path.abspath(entry) + os.sep for entry in sys.path]
    fitting = [root for root in roots if file.startswith(root)]
    return file[len(max(fitting, key=len)) :] if fitting else file

"""Where the world outside comes in: the waits that a fault can strike.

| seam   | the task waits                                                                             |
|--------|--------------------------------------------------------------------------------------------|
| model  | in a model's own stream, from connecting to closing                                        |
| tool   | in an async tool's own code; a thread is not ours to throw into                            |
| store  | in a store, on behalf of a session                                                         |
| reader | for the next event of a run, or, having read some, in its own code: sending it on, perhaps |

A seam is seen in the chain of awaits: right below the runtime's own frame stands a frame of somebody else's. What waits
in the runtime itself is no part of the world outside, and is not made to fail.
"""

from __future__ import annotations

import os
from itertools import pairwise
from types import CodeType, FunctionType
from typing import cast

from safepoint.agent.event_hub import EventReader
from safepoint.agent.model_call import receive
from safepoint.agent.tool_execution import ToolExecution
from safepoint.sessions.session import Session
from safepoint.testing.frames import Owner, Place, timed_by
from safepoint.testing.subject import Seam


def _code(function: object) -> CodeType:
    return cast(FunctionType, function).__code__


def _file(function: object) -> str:
    return os.path.abspath(_code(function).co_filename)


_MODEL_CALL = _file(receive)
_SESSION = _file(Session.write)
_STORES = os.path.dirname(_SESSION) + os.sep
_TOOL_CALL = _file(ToolExecution.harvest), f"{ToolExecution.__qualname__}._perform"
_NEXT_EVENT = _file(EventReader.put), _code(EventReader.__anext__).co_qualname


class Seams:
    """The seams of one run of a scenario; it remembers which tasks read events."""

    def __init__(self) -> None:
        self._readers: set[str] = set()

    def at(self, task: str, places: list[Place]) -> frozenset[str]:
        """Where this task waits, outermost place first."""
        waits_for = timed_by(places)
        if waits_for is None:
            return frozenset()
        own_code = waits_for.owner in (Owner.USER, Owner.INSTALLED)
        found: set[str] = set()
        if any((place.file, place.function) == _NEXT_EVENT for place in places):
            self._readers.add(task)
            found.add(Seam.READER)
        elif task in self._readers and own_code:
            found.add(Seam.READER)
        for above, below in pairwise(places):
            if above.file == _MODEL_CALL and waits_for.file != _MODEL_CALL:
                found.add(Seam.MODEL)
            elif (above.file, above.function) == _TOOL_CALL and below.owner is not Owner.SAFEPOINT and own_code:
                found.add(Seam.TOOL)
            elif above.file == _SESSION and below.file != _SESSION and _is_store(below):
                found.add(Seam.STORE)
        return frozenset(found)


def _is_store(place: Place) -> bool:
    return place.owner in (Owner.USER, Owner.INSTALLED) or place.file.startswith(_STORES)

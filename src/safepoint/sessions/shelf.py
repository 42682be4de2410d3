"""What a server keeps beside its conversations: values that sessions share, and changes made outside any run.

Neither is part of a conversation, so no run reads or writes more because of them: a run takes the shared values of its
own user and app, and gives back what it has changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Note:
    """Something that happened to a session outside its runs, and when."""

    at: float
    body: Mapping[str, Any]  # Any: JSON values


class Shelf(Protocol):
    """Every method is atomic: it happens whole or raises. Cancellation of any of them: likewise."""

    async def shared(self, places: Iterable[str]) -> dict[str, Any]:  # Any: JSON values
        """All values of these places, by name."""
        ...

    async def share(self, place: str, delta: Mapping[str, Any]) -> None:  # Any: as above
        """Set these values of the place; None takes one away."""
        ...

    async def note(self, session: str, note: Note) -> None: ...

    async def notes(self, session: str) -> list[Note]:
        """Oldest first."""
        ...

    async def forget(self, session: str) -> None:
        """The session is deleted, and its notes with it."""
        ...


class MemoryShelf:
    """As long as the process."""

    def __init__(self) -> None:
        self._shared: dict[str, dict[str, Any]] = {}  # Any: as above
        self._notes: dict[str, list[Note]] = {}

    async def shared(self, places: Iterable[str]) -> dict[str, Any]:  # Any: as above
        """Cancellation: of this and of every other method: there is nothing to wait for."""
        found: dict[str, Any] = {}  # Any: as above
        for place in places:
            if place in self._shared:
                found |= deepcopy(self._shared[place])
        return found

    async def share(self, place: str, delta: Mapping[str, Any]) -> None:  # Any: as above
        values = {**self._shared.get(place, {}), **deepcopy(dict(delta))}
        self._shared[place] = {name: value for name, value in values.items() if value is not None}

    async def note(self, session: str, note: Note) -> None:
        self._notes.setdefault(session, []).append(note)

    async def notes(self, session: str) -> list[Note]:
        return list(self._notes.get(session, ()))

    async def forget(self, session: str) -> None:
        self._notes.pop(session, None)

"""What a server keeps beside its conversations: values that sessions share, and changes made outside any run.

Neither is part of a conversation, so no run reads or writes more because of them: a run takes the shared values of its
own user and app, and gives back what it has changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from safepoint._values import Value


class Note(Value, frozen=True):
    """Something that happened to a session outside its runs, and when."""

    at: float
    body: Mapping[str, Any]  # Any: JSON values


class SharedState(Protocol):
    """Every method is atomic: it happens whole or raises. Cancellation of any of them: likewise."""

    async def shared(self, places: Iterable[str]) -> dict[str, Any]:  # Any: JSON values
        """All values of these places, by name."""
        ...

    async def share(self, place: str, delta: Mapping[str, Any]) -> None:  # Any: as above
        """Set these values of the place; None deletes one."""
        ...

    async def note(self, session: str, note: Note) -> None: ...

    async def notes(self, session: str) -> list[Note]:
        """Oldest first."""
        ...

    async def forget(self, session: str) -> None:
        """The session is deleted, and its notes with it."""
        ...

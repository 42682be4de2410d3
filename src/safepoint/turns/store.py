"""Where a loop keeps its record: one value per loop, replaced whole. Nothing is known here of what is in it."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class TurnStore(Protocol):
    """Every method happens whole or raises and changes nothing. Cancellation of any of them: likewise."""

    async def load(self, id: str) -> bytes | None:
        """The record, or None if there is none."""
        ...

    async def save(self, id: str, record: bytes) -> None:
        """Replace the record. When this returns, it is durable."""
        ...

    async def delete(self, id: str) -> None:
        """Forget the record. Deleting what is not there is no error."""
        ...


class MemoryTurnStore:
    """A store that forgets everything with its process."""

    def __init__(self) -> None:
        self._records: dict[str, bytes] = {}

    async def load(self, id: str) -> bytes | None:
        """Cancellation: of this and of every other method: there is nothing to wait for."""
        return self._records.get(id)

    async def save(self, id: str, record: bytes) -> None:
        self._records[id] = record

    async def delete(self, id: str) -> None:
        self._records.pop(id, None)

"""Where a loop keeps its record: one value per loop, replaced whole. Nothing is known here of what is in it.

Two loops on one record would each undo what the other has saved. A store that can tell refuses the second one.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from safepoint.errors import StoreError


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


@runtime_checkable
class ClaimingStore(Protocol):
    """What a store also has if it lets one loop at a time use a record. Cancellation of any of them: likewise."""

    async def claim(self, id: str, claimant: str) -> None:
        """Take the record. Raises `StoreError` while another claimant has it whose process lives."""
        ...

    async def release(self, id: str, claimant: str) -> None:
        """Give it back. Does nothing if somebody else has it."""
        ...


def in_use(id: str, where: str = "in this process") -> StoreError:
    return StoreError(
        f"another loop uses the record {id!r} {where}: wait for its end, or write another checkpoint_id for this one"
    )


class MemoryTurnStore:
    """A store that forgets everything with its process."""

    def __init__(self) -> None:
        self._records: dict[str, bytes] = {}
        self._claimed: dict[str, str] = {}

    async def load(self, id: str) -> bytes | None:
        """Cancellation: of this and of every other method: there is nothing to wait for."""
        return self._records.get(id)

    async def save(self, id: str, record: bytes) -> None:
        self._records[id] = record

    async def delete(self, id: str) -> None:
        self._records.pop(id, None)

    async def claim(self, id: str, claimant: str) -> None:
        if self._claimed.setdefault(id, claimant) != claimant:
            raise in_use(id)

    async def release(self, id: str, claimant: str) -> None:
        if self._claimed.get(id) == claimant:
            del self._claimed[id]

"""Stores that keep a loop's record as one value, and the storage in memory.

`TurnStore` is the protocol for a user's own store: three methods and bytes. `WholeRecords` makes a `LoopStorage` of it
by keeping the rows in memory and writing all of them each time, so a store of rows is better for long queues.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol, runtime_checkable

from safepoint._core.threads import off_loop
from safepoint.storage.loop_codec import decode, encode
from safepoint.storage.loop_data import (
    LoopChange,
    LoopStorage,
    LoopTable,
    OpenedLoop,
    StoredLoop,
)
from safepoint.storage.memory import MemoryStorage
from safepoint.storage.protocol import Storage


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
        """Delete the record. Deleting a missing record is no error."""
        ...


@runtime_checkable
class ClaimingStore(Protocol):
    """The extra methods of a store that lets one loop at a time use a record. Cancellation of any of them: likewise."""

    async def claim(self, id: str, claimant: str) -> None:
        """Take the record. Raises `StoreError` while another claimant has it and that claimant's process lives."""
        ...

    async def release(self, id: str, claimant: str) -> None:
        """Release it. Does nothing if another claimant has it."""
        ...


def storage_of(store: TurnStore | LoopStorage) -> LoopStorage:
    """The storage for the store that a loop was given.

    A subclass of one of our stores that overrides `load`, `save` or `delete` expects these to be called.
    """
    if isinstance(store, LoopStorage) and not _overrides_bytes(store):
        return store
    assert isinstance(store, TurnStore)
    return WholeRecords(store)


def _overrides_bytes(store: object) -> bool:
    kind = type(store)
    ours = [base for base in kind.__mro__ if base.__module__.startswith("safepoint.turns.")]
    return bool(ours) and any(
        getattr(kind, name, None) is not getattr(ours[0], name, None) for name in ("load", "save", "delete")
    )


class WholeRecords:
    """A store of bytes as a storage of rows, for one loop."""

    def __init__(self, store: TurnStore) -> None:
        self._store = store
        self._table = LoopTable()
        self._is_stored = False

    async def open(self, id: str, claimant: str) -> OpenedLoop:
        """Claim and read the record. Cancellation: the record may be claimed; it is unchanged."""
        if isinstance(self._store, ClaimingStore):
            await self._store.claim(id, claimant)
        data = await self._store.load(id)
        self._is_stored = data is not None
        stored = StoredLoop() if data is None else await off_loop(partial(decode, data), "read the record of a loop")
        self._table = LoopTable(stored)
        return OpenedLoop(1, stored)

    async def apply(self, id: str, epoch: int, changes: Sequence[LoopChange]) -> None:
        """Write the changes. Cancellation: as for the store. The rows here keep the changes for the next write."""
        for change in changes:
            self._table.apply(change)
        stored = self._table.read()
        if not stored.empty:
            data = await off_loop(partial(encode, stored), "write the record of a loop")
            self._is_stored = True
            await self._store.save(id, data)
        elif self._is_stored:
            await self._store.delete(id)
            self._is_stored = False

    async def release(self, id: str, claimant: str) -> None:
        """Release the record. Cancellation: it is released or it is not."""
        if isinstance(self._store, ClaimingStore):
            await self._store.release(id, claimant)


class StorageTurnStore:
    """The loops of a storage as a store. `load` and `save` have a loop's whole record as bytes, to carry it elsewhere.

    Cancellation of a write: only the waiting ends, and the write still happens, whole.
    """

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    async def open(self, id: str, claimant: str) -> OpenedLoop:
        return await self.storage.loops.open(id, claimant)

    async def apply(self, id: str, epoch: int, changes: Sequence[LoopChange]) -> None:
        await self.storage.loops.apply(id, epoch, changes)

    async def claim(self, id: str, claimant: str) -> None:
        await self.storage.loops.open(id, claimant)

    async def release(self, id: str, claimant: str) -> None:
        await self.storage.loops.release(id, claimant)

    async def load(self, id: str) -> bytes | None:
        stored = await self.storage.loops.read(id)
        return None if stored.empty else encode(stored)

    async def save(self, id: str, record: bytes) -> None:
        await self.storage.loops.replace(id, decode(record))

    async def delete(self, id: str) -> None:
        await self.storage.loops.replace(id, StoredLoop())


class MemoryTurnStore(StorageTurnStore):
    """A store that forgets everything with its process."""

    def __init__(self) -> None:
        super().__init__(MemoryStorage())

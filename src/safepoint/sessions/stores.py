"""Session stores: the two that come with Safepoint, and how a store of the user's own is used as a storage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast
from weakref import WeakValueDictionary

from safepoint.agent.journal import Ended, as_store_errors
from safepoint.errors import UsageError
from safepoint.storage import operations as op
from safepoint.storage.lease import LEASE
from safepoint.storage.memory import MemoryStorage
from safepoint.storage.operations import Statement
from safepoint.storage.protocol import SessionCalls, SessionCommits, Storage, Store
from safepoint.storage.session_data import Change, LateResult, Stored
from safepoint.storage.sqlite.storage import SqliteStorage

_METHODS = ("create", "load", "claim", "release", "append", "add_late", "delete", "list_ids", "states")


class StorageSessions:
    """The sessions of a storage, as a `Store`. Cancellation of any write: it still happens, whole."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    async def create(self, session_id: str, state: Mapping[str, Any]) -> None:  # Any: JSON values
        await self.storage.sessions.create(session_id, state)

    async def load(self, session_id: str) -> Stored:
        return await self.storage.sessions.load(session_id)

    async def claim(self, session_id: str, claimant: str) -> int:
        return await self.storage.sessions.claim(session_id, claimant)

    async def release(self, session_id: str, claimant: str) -> None:
        await self.storage.sessions.release(session_id, claimant)

    async def append(self, session_id: str, epoch: int, changes: Sequence[Change]) -> None:
        await self.storage.sessions.append(session_id, epoch, changes)

    async def add_late(self, session_id: str, late: LateResult) -> None:
        await self.storage.sessions.add_late(session_id, late)

    async def delete(self, session_id: str) -> None:
        await self.storage.sessions.delete(session_id)

    async def list_ids(self, prefix: str = "") -> list[str]:
        return await self.storage.sessions.list_ids(prefix)

    async def states(self, prefix: str = "") -> dict[str, Mapping[str, Any]]:  # Any: JSON values
        return await self.storage.sessions.states(prefix)

    async def aclose(self) -> None:
        await self.storage.aclose()


class MemoryStore(StorageSessions):
    """A store that forgets everything with its process."""

    storage: MemoryStorage

    def __init__(self) -> None:
        super().__init__(MemoryStorage())


class SqliteStore(StorageSessions):
    """`SqliteStore("chat.db")`. Many processes may use one file; a session has one live run among all of them.

    The options are those of `SqliteStorage`.
    """

    storage: SqliteStorage

    def __init__(
        self,
        path: str | Path,
        *,
        timeout: float = 10.0,
        synchronous: Literal["NORMAL", "FULL"] = "NORMAL",
        lease: float = LEASE,
    ) -> None:
        super().__init__(SqliteStorage(path, timeout=timeout, synchronous=synchronous, lease=lease))


class StoreAdapter:
    """A store of the user's own, for sessions: each operation of a unit of work is one call of the store.

    Such a store has no unit of work that claims and writes, and does not count its writes, so `Session` claims first.
    The one write that is sent again is the end of a run, and whether that is there can be seen.
    """

    def __init__(self, store: Store) -> None:
        self.sessions: SessionCalls = _Uncounted(store)
        self._sent: set[tuple[str, int | None, int]] = set()

    async def commit(self, *statements: Statement[Any]) -> tuple[Any, ...]:  # Any: a result for each
        """Cancellation: as of the store's own methods."""
        return tuple([await self._do(statement) for statement in statements])

    async def _do(self, statement: Statement[Any]) -> Any:  # Any: its result
        match statement:
            case op.CreateSession(session_id, state):
                return await self.sessions.create(session_id, state)
            case op.AppendChanges(session_id, int(epoch), changes, number):
                return await self._append(session_id, epoch, changes, number)
            case _:
                raise UsageError(f"a session store has no {type(statement).__name__}: use a storage")

    async def _append(self, session_id: str, epoch: int, changes: Sequence[Change], number: int) -> None:
        mark = (session_id, epoch, number)
        if mark in self._sent and await self._is_there(session_id, changes):
            return
        self._sent.add(mark)
        await self.sessions.append(session_id, epoch, changes)
        self._sent.discard(mark)

    async def _is_there(self, session_id: str, changes: Sequence[Change]) -> bool:
        runs = (await self.sessions.load(session_id)).runs
        ends = [change.run_id for change in changes if isinstance(change, Ended)]
        return bool(runs) and runs[-1].ended and runs[-1].run_id in ends


class _Uncounted:
    """The store, whose errors are `StoreError`s: nothing may build on what it has not kept."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def create(self, session_id: str, state: Mapping[str, Any]) -> None:  # Any: JSON values
        await self._store.create(session_id, state)

    async def load(self, session_id: str) -> Stored:
        with as_store_errors():
            stored = await self._store.load(session_id)
        return stored.claimed(stored.epoch)

    async def claim(self, session_id: str, claimant: str) -> int:
        with as_store_errors():
            return await self._store.claim(session_id, claimant)

    async def release(self, session_id: str, claimant: str) -> None:
        with as_store_errors():
            await self._store.release(session_id, claimant)

    async def append(self, session_id: str, epoch: int, changes: Sequence[Change]) -> None:
        with as_store_errors():
            await self._store.append(session_id, epoch, changes)

    async def add_late(self, session_id: str, late: LateResult) -> None:
        with as_store_errors():
            await self._store.add_late(session_id, late)

    async def delete(self, session_id: str) -> None:
        await self._store.delete(session_id)


# By the store's identity, which is its own for as long as the adapter refers to it.
_ADAPTERS: WeakValueDictionary[int, StoreAdapter] = WeakValueDictionary()


def replaced_methods(store: StorageSessions) -> list[str]:
    """The methods that a class of the user's own has in place of ours: its storage alone would pass them by."""
    return [name for name in _METHODS if getattr(type(store), name) is not getattr(StorageSessions, name)]


def storage_of(store: Store | SessionCommits) -> SessionCommits:
    """What a session commits to: the storage itself, the one behind a store, or an adapter for any other store."""
    if hasattr(store, "commit") and hasattr(store, "sessions"):
        return cast("SessionCommits", store)
    if isinstance(store, StorageSessions) and not replaced_methods(store):
        return store.storage
    whole = cast("Store", cast("object", store))  # it has no more than that
    adapter = _ADAPTERS.get(id(whole))
    if adapter is None:
        adapter = _ADAPTERS[id(whole)] = StoreAdapter(whole)
    return adapter

"""The stores that every test of sessions runs with, and a wrapper that fails or hangs where it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from safepoint.errors import StoreError
from safepoint.sessions import LateResult, MemoryStore, SqliteStore, Store, Stored
from safepoint.sessions.store import Change

both_stores = pytest.mark.parametrize("kind", ["memory", "sqlite"])


@asynccontextmanager
async def opened(kind: str, folder: Path) -> AsyncGenerator[Store]:
    store: Store = MemoryStore() if kind == "memory" else SqliteStore(folder / "sessions.db")
    try:
        yield store
    finally:
        await store.aclose()


class Wrapped:
    """A store in front of another one: `before` is called with the name of each method and its number, from 1 up."""

    def __init__(self, inner: Store, before: Callable[[str, int], object] = lambda name, number: None) -> None:
        self.inner = inner
        self.before: Callable[[str, int], object] = before
        self.counts: dict[str, int] = {}
        self.hangs_at: tuple[str, int] | None = None
        self.reached = asyncio.Event()

    def fail_at(self, name: str, number: int) -> None:
        def before(called: str, times: int) -> None:
            if (called, times) == (name, number):
                raise StoreError(f"{name} {number} failed")

        self.before = before

    def fail_from(self, name: str, number: int) -> None:
        """Until `before` is set again."""

        def before(called: str, times: int) -> None:
            if called == name and times >= number:
                raise StoreError(f"{name} {times} failed")

        self.before = before

    async def _pass(self, name: str) -> None:
        number = self.counts[name] = self.counts.get(name, 0) + 1
        self.before(name, number)
        if self.hangs_at == (name, number):
            self.reached.set()
            await asyncio.get_running_loop().create_future()

    async def create(self, session_id: str, state: Mapping[str, Any]) -> None:  # Any: JSON values
        await self._pass("create")
        await self.inner.create(session_id, state)

    async def load(self, session_id: str) -> Stored:
        await self._pass("load")
        return await self.inner.load(session_id)

    async def claim(self, session_id: str, claimant: str) -> int:
        await self._pass("claim")
        return await self.inner.claim(session_id, claimant)

    async def release(self, session_id: str, claimant: str) -> None:
        await self._pass("release")
        await self.inner.release(session_id, claimant)

    async def append(self, session_id: str, epoch: int, changes: Sequence[Change]) -> None:
        await self._pass("append")
        await self.inner.append(session_id, epoch, changes)

    async def add_late(self, session_id: str, late: LateResult) -> None:
        await self._pass("add_late")
        await self.inner.add_late(session_id, late)

    async def delete(self, session_id: str) -> None:
        await self._pass("delete")
        await self.inner.delete(session_id)

    async def list_ids(self, prefix: str = "") -> list[str]:
        return await self.inner.list_ids(prefix)

    async def states(self, prefix: str = "") -> dict[str, Mapping[str, Any]]:  # Any: JSON values
        return await self.inner.states(prefix)

    async def aclose(self) -> None:
        await self.inner.aclose()

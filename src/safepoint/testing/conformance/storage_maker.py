"""How the rules for storages get their storages."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from safepoint.storage.protocol import Storage
from safepoint.storage.run_records import RunRecord, RunState


@dataclass(frozen=True, slots=True)
class StorageMaker:
    """Makes a new, empty storage for each rule."""

    make: Callable[[], Storage]
    reopen: Callable[[Storage], Storage] | None = None
    lapse: Callable[[Storage], Awaitable[object]] | None = None

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[Storage]:
        storage = self.make()
        try:
            yield storage
        finally:
            await storage.aclose()

    @asynccontextmanager
    async def after_death(self) -> AsyncGenerator[tuple[Storage, Storage]]:
        """A storage with a run, a session and a loop that it owns, whose lease is over; and another that lives."""
        assert self.lapse is not None
        async with self.opened() as dead, self.reopened(dead) as other:
            await dead.sessions.create("s", {})
            await dead.sessions.claim("s", "me")
            await dead.runs.accept(record(dead, "run_1", "s"), since=0)
            await dead.loops.open("loop", "me")
            await self.lapse(dead)
            yield dead, other

    @asynccontextmanager
    async def reopened(self, storage: Storage) -> AsyncGenerator[Storage]:
        assert self.reopen is not None
        other = self.reopen(storage)
        try:
            yield other
        finally:
            await other.aclose()


def record(storage: Storage, run_id: str = "run_1", session: str = "a/u/s", **more: Any) -> RunRecord:  # Any: fields
    made = RunRecord(run_id, session, RunState.LIVE, 1.0, storage.worker)
    return replace(made, **more)

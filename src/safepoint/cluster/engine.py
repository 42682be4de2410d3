"""Which engine starts free runs here, and how long that goes on."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Protocol

from safepoint.cluster.work import register, unregister
from safepoint.errors import StoreError
from safepoint.serving.config import Role
from safepoint.serving.run_manager import RunManager
from safepoint.storage.placement import Engine, placement_of

_log = logging.getLogger("safepoint.server")

_AGAIN = 1.0
_GOODBYE = 12.0
NEEDS_POSTGRES = "the roles api and worker need a storage that many processes share: write --store postgresql://…"


class JobEngine(Protocol):
    """A worker of an engine inside this process: it calls `work_on` for each run that it is given."""

    async def start(self) -> None: ...

    async def stop(self) -> None:
        """Take no more, and return when what it had is over. Bounded."""
        ...


class EngineHost:
    """`await start()` before the server answers; `await stop()` when its runs are over.

    The storage says which engine it is, and is asked again until it answers. Without a shared storage, or in a process
    that only accepts runs, there is none. Raises ValueError for a role that the storage can't play.
    """

    def __init__(self, manager: RunManager) -> None:
        self._manager = manager
        self._placement = placement_of(manager.storage)
        self._begins: asyncio.Task[None] | None = None
        self.engine: JobEngine | None = None
        if manager.config.role is not Role.SERVE and self._placement is None:
            raise ValueError(NEEDS_POSTGRES)

    async def start(self) -> None:
        """Cancellation: it may have started."""
        register(self._manager)
        if self._placement is not None and self._manager.config.role is not Role.API:
            self._begins = asyncio.create_task(self._begin(), name="safepoint: engine")

    async def _begin(self) -> None:
        assert self._placement is not None
        while True:
            try:
                name = await self._placement.engine()
                break
            except StoreError as error:
                _log.warning("no runs of others are taken yet: %s", error)
                await asyncio.sleep(_AGAIN)
        if name is Engine.PROCRASTINATE and not self._manager.draining:
            self.engine = self._procrastinate()
            await self.engine.start()

    def _procrastinate(self) -> JobEngine:
        from safepoint.cluster.procrastinate import ProcrastinateEngine
        from safepoint.storage.postgres.storage import PostgresStorage

        assert isinstance(self._manager.storage, PostgresStorage)
        return ProcrastinateEngine(self._manager, self._manager.storage)

    async def stop(self) -> None:
        """Bounded. Cancellation: it ends all the same."""
        if self._begins is not None:
            self._begins.cancel()
            await asyncio.wait({self._begins})
        if self.engine is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(_GOODBYE):
                    await self.engine.stop()
        unregister(self._manager)

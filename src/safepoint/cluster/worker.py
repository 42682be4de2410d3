"""A worker inside a program of one's own: `async with Worker(agents, storage): …`, without HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any

from safepoint.agent.base import BaseAgent
from safepoint.cluster.engine import EngineHost
from safepoint.serving.apps import Catalog
from safepoint.serving.config import Role, ServingConfig
from safepoint.serving.freezes import FreezeWatcher
from safepoint.serving.lease_sweeper import LeaseSweeper
from safepoint.serving.run_manager import RunManager
from safepoint.storage.protocol import Storage


class Worker:
    """Works on runs of these agents, which others accept, for as long as the block lasts.

    The storage is not closed. Leaving the block hands live runs over: they stop at a safe point, within
    `config.shutdown_seconds`, and go on elsewhere. Raises ValueError for a storage that only one machine can use.
    """

    def __init__(
        self,
        agents: Mapping[str, BaseAgent[Any, Any]] | Catalog,  # Any: agents of every kind
        storage: Storage,
        config: ServingConfig | None = None,
    ) -> None:
        catalog = agents if isinstance(agents, Catalog) else Catalog.of(agents)
        given = replace(config or ServingConfig(), role=Role.WORKER)
        self._manager = RunManager(catalog, storage, given)
        self._sweeper = LeaseSweeper(self._manager)
        self._freezes = FreezeWatcher(self._manager, self._sweeper.look_again)
        self._host = EngineHost(self._manager)

    @property
    def live(self) -> int:
        """How many runs it works on."""
        return len(self._manager.live())

    async def __aenter__(self) -> Worker:
        """Cancellation: it may have begun to work."""
        await self._freezes.start()
        await self._sweeper.start()
        await self._host.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Bounded. Cancellation: its runs are found by others when its lease is over."""
        await self._sweeper.stop()
        await self._freezes.stop()
        await self._manager.shut_down()
        await self._host.stop()

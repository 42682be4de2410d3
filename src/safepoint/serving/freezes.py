"""The switch of a server: stored, so that it survives restarts, and followed, so that every process obeys it.

    freeze ──▶ a row, written before the answer ──change──▶ every process reads all rows ──▶ its `Switch`

A process that cannot read the rows when it starts takes everything for frozen until it can: it may have been started in
the middle of an incident. One that cannot read them later keeps those that it knows.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from safepoint._core.supervisor import Supervisor
from safepoint.agent.freeze import TOPIC, Freeze
from safepoint.errors import StoreError
from safepoint.serving.managed_run import ManagedRun
from safepoint.serving.run_manager import RunManager

_log = logging.getLogger("safepoint.server")

_LOOK = 0.05  # between two looks at a storage that does not tell
_AGAIN = 0.25
_GOODBYE = 1.0
NOT_KNOWN = Freeze("it is not known yet what is frozen: the store is out of reach", id="not-known", at=0.0)


class FreezeWatcher:
    """`await start()` before any run is picked up, `await stop()` when the server leaves.

    `on_thaw`: called when less is frozen than before: what was stopped may go on.
    """

    def __init__(self, manager: RunManager, on_thaw: Callable[[], Awaitable[None]]) -> None:
        self._manager = manager
        self._on_thaw = on_thaw
        self._known: tuple[Freeze, ...] = ()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Cancellation: nothing is followed yet."""
        try:
            await self._read()
        except StoreError as error:
            _log.error("nothing begins: %s (%s)", NOT_KNOWN.reason, error)
            self._manager.switch.put([NOT_KNOWN])
        self._task = Supervisor.current().spawn(self._follow(), "freezes", None)

    async def stop(self) -> None:
        """Cancellation: it may still be looking."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=_GOODBYE)

    async def _read(self) -> None:
        await read_freezes(self._manager)
        before, self._known = self._known, self._manager.switch.freezes
        if any(freeze not in self._known for freeze in before):
            await self._on_thaw()

    async def _follow(self) -> None:
        """Cancellation: the freezes stay as they are."""
        while True:
            with suppress(StoreError):  # readiness tells that the store is out of reach
                async with self._manager.storage.changes(topic=TOPIC, every=_LOOK) as changes:
                    async for _ in changes:
                        await self._read()
            await asyncio.sleep(_AGAIN)


async def read_freezes(manager: RunManager) -> None:
    """Let the switch be as the storage says. Raises `StoreError`. Cancellation: read or not."""
    manager.switch.put(await manager.storage.freezes.all())


@dataclass(frozen=True, slots=True)
class Concerned:
    """One live run that a freeze would concern.

    `stops`: whether it is asked to stop; else it waits where it next would begin something. `cut`: the calls that the
    stop would cut while they run. `seconds`: how long it may take at most; None without a bound.
    """

    run: ManagedRun
    stops: bool
    cut: tuple[str, ...] = ()
    seconds: float | None = 0.0


def concerned(manager: RunManager, freeze: Freeze) -> list[Concerned]:
    """What that freeze would do to the live runs of this process."""
    covered = [run for run in manager.live() if freeze.covers(run.key.app, run.key.user)]
    return [_judged(run, freeze) for run in covered]


def _judged(managed: ManagedRun, freeze: Freeze) -> Concerned:
    point, begun = freeze.point, managed.run.node.started
    if point is None or not begun or not (freeze.is_total or managed.run.is_calling(freeze)):
        return Concerned(managed, stops=False)
    preview = managed.run.preview_cancel(point, recursive=True)
    return Concerned(managed, stops=True, cut=preview.cut, seconds=preview.seconds)

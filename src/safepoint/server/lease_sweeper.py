"""One process looks after another: requests to cancel its runs, and runs whose owner is dead.

At each beat a process takes up the requests that others have stored for its runs. Then it looks for open records of
dead owners and takes them over, the oldest first; the storage lets one process do that and refuses the others. The
first such look is over before the server answers, so a client that comes back after a restart finds its session as busy
as it was. That an owner has died is told by time alone, so this is the one place that looks again and again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress

from safepoint._core.reasons import Reason
from safepoint._core.receipts import Receipt
from safepoint._core.supervisor import Supervisor
from safepoint.errors import StoreError
from safepoint.server.cancel_request import decode_ask, stopping
from safepoint.server.cancel_service import ask, clear_pause
from safepoint.server.managed_run import ManagedRun
from safepoint.server.requests import CancelRequest
from safepoint.server.run_manager import NoSuchApp, RunManager
from safepoint.server.takeover import settle, take_over
from safepoint.serving.ids import SessionKey
from safepoint.serving.principal import NotFound
from safepoint.storage.run_records import RecordMoved, RunRecord, RunState, StoredCancelRequest

_log = logging.getLogger("safepoint.server")

# A record of our own that nobody works on after that time: whoever was to start it was cancelled.
_FORGOTTEN = 60.0
_LONG_LOOK = 60.0
_GOODBYE = 1.0


class LeaseSweeper:
    """`await start()` before the server answers, `await stop()` when it leaves. Without a durable storage: nothing."""

    def __init__(self, manager: RunManager) -> None:
        self._manager = manager
        self._task: asyncio.Task[None] | None = None
        # Taken over, and not settled: the session was busy in another process, or the store failed.
        self._pending: set[str] = set()
        # What was looked at and is left alone for as long as it does not change, by epoch.
        self._left_alone: dict[str, int] = {}
        self._next_long_look = 0.0

    async def start(self) -> None:
        """Cancellation: some runs may be running already."""
        if self._manager.storage.durable:
            await self.once()
            self._task = asyncio.create_task(self._for_ever(), name="safepoint: recovery")

    async def stop(self) -> None:
        """Cancellation: it may still be looking."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=_GOODBYE)

    async def _for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._manager.config.heartbeat_seconds)
            await self.once()

    async def once(self) -> None:
        """One beat and one look; what fails is tried again at the next. Cancellation: likewise."""
        try:
            await self._beat()
            await self._sweep()
        except (StoreError, TimeoutError) as error:
            _log.error("runs of other processes could not be looked after: %s", error)

    # -- our own runs --------------------------------------------------------------------------------------------------

    async def _beat(self) -> None:
        """Cancellation: some requests were taken up."""
        manager = self._manager
        for stored in await manager.storage.runs.unheard_cancels(manager.storage.worker):
            try:
                await self._deliver(stored)
            except Exception:  # whatever is wrong with one request, the others are heard, and this process goes on
                _log.exception("the run %s could not be cancelled as requested", stored.run_id)
            await manager.storage.runs.acknowledge_cancel(stored.number)
        for managed in [each for each in manager.runs.values() if each.owed and each.over.is_set]:
            await managed.record_end(manager.storage.runs)

    async def _deliver(self, stored: StoredCancelRequest) -> None:
        """Cancellation: delivered, or not; the request stays stored."""
        (request, reason), managed = decode_ask(stored), self._manager.runs.get(stored.run_id)
        if managed is not None and managed.live:
            return await self._ask(managed, request, reason, stored.number)
        record = await self._manager.storage.runs.get(stored.run_id)
        if record is not None and record.state is RunState.PAUSED and request.node is None:
            key = SessionKey.parse(record.session)
            assert key is not None
            await clear_pause(self._manager, key, record, reason)

    async def _ask(self, managed: ManagedRun, request: CancelRequest, reason: Reason, number: int) -> None:
        """Ask it. Of a node, the request is answered: was there one? Cancellation: asked; perhaps not answered."""
        try:
            receipt = ask(managed, request, reason)
        except NotFound:  # that part of the run is over, or never was
            await self._manager.storage.runs.answer_cancel(number, {"outcome": None})
            return
        if request.node is not None and receipt is not None:
            Supervisor.current().spawn(self._tell(number, receipt), f"tell {managed.id}", None)

    async def _tell(self, number: int, receipt: Receipt) -> None:
        """Once the node has ended. Cancellation: its asker is told that it was asked, and no more."""
        outcome = await receipt.wait()
        with suppress(StoreError):
            await self._manager.storage.runs.answer_cancel(number, {"outcome": str(outcome)})

    # -- runs that nobody has ------------------------------------------------------------------------------------------

    async def _sweep(self) -> None:
        """Cancellation: some were taken over."""
        # Many may wait for a person, for weeks, and hardly one of them is in need of anything.
        waiting = time.monotonic() >= self._next_long_look
        if waiting:
            self._next_long_look = time.monotonic() + _LONG_LOOK
        runs, me = self._manager.storage.runs, self._manager.storage.worker
        found = await runs.orphans(waiting=waiting)
        if waiting:
            still = {record.run_id for record in found}
            self._left_alone = {run_id: epoch for run_id, epoch in self._left_alone.items() if run_id in still}
        for record in [*found, *await runs.still_open(waiting=waiting, owner=me)]:
            if self._manager.draining:
                return
            if not await self._is_looked_after(record):
                await self._pick_up(record)

    async def _is_looked_after(self, record: RunRecord) -> bool:
        """Does a run of this process work on it, or is it to be left alone? Cancellation: nothing has changed."""
        manager, run_id = self._manager, record.run_id
        if record.owner == manager.storage.worker:
            return run_id not in self._pending and not self._is_dropped(record)
        if self._left_alone.get(run_id) == record.epoch:
            return True
        stays = record.state is RunState.SUSPENDED and not manager.config.resume_on_start
        if record.state is RunState.PAUSED or stays:
            wanted = stopping(await manager.storage.runs.cancel_requests(run_id))
            if wanted is None:
                self._left_alone[run_id] = record.epoch
            return wanted is None
        return False

    def _is_dropped(self, record: RunRecord) -> bool:
        """Is it ours, and does nobody here work on it?"""
        managed = self._manager.runs.get(record.run_id)
        if managed is not None:  # picked up while its session was busy elsewhere
            return managed.over.is_set and managed.refused is not None and managed.epoch == record.epoch
        waits = record.state in (RunState.PAUSED, RunState.SUSPENDED)
        return not waits and record.created_at < time.time() - _FORGOTTEN

    async def _pick_up(self, record: RunRecord) -> None:
        """Cancellation: it was taken over, or not."""
        manager, run_id = self._manager, record.run_id
        try:
            manager.agent(record.session.partition("/")[0])
            self._pending.add(run_id)
            done = await (settle if record.owner == manager.storage.worker else take_over)(manager, record)
        except RecordMoved:
            done = True  # another process was faster
        except NoSuchApp as error:
            _log.error("the run %s waits for its app: %s", run_id, error)
            self._left_alone[run_id] = record.epoch
            done = True
        except Exception:  # whatever is wrong with one of them, the others are looked after
            _log.exception("the run %s could not be picked up yet", run_id)
            done = False
        if done:
            self._pending.discard(run_id)

"""A worker that cannot renew its lease stops its own runs before another worker may have them.

    held       runs go on
    doubtful   each run stops at its next safe point: it starts no tool, model call or child
    over       each run stops NOW

A lease that is renewed in time takes the first kind of stop back, from every run that has not acted on it. What was
stopped is suspended, not cancelled: any live process may continue it under its own id, this one among them.
"""

from __future__ import annotations

import asyncio
import logging

from safepoint._core.points import SafePoint
from safepoint._core.reasons import Reason, Source
from safepoint._core.receipts import Receipt
from safepoint.serving.managed_run import ManagedRun
from safepoint.serving.run_manager import RunManager
from safepoint.storage.postgres.worker_lease import LeaseState, WorkerLease
from safepoint.storage.run_records import RunState

_log = logging.getLogger("safepoint.server")

OUT_OF_REACH = Reason("the store was out of reach", Source.SHUTDOWN)
# The part of a lease after which a lease that is not held is looked at again.
_LOOK_AGAIN = 1 / 30


class LeaseGuard:
    """`await watch()` in a task of its own."""

    def __init__(self, manager: RunManager, lease: WorkerLease) -> None:
        self._manager = manager
        self._lease = lease
        self._asked: dict[str, Receipt] = {}
        self._lapses = lease.lapses

    async def watch(self) -> None:
        """For ever. Cancellation: the asks stand."""
        while True:
            until_next = self.look()
            await asyncio.sleep(until_next)

    def look(self) -> float:
        """Do what the state of the lease demands. Seconds until it may demand something else."""
        lease = self._lease
        state, left = lease.state, lease.left()
        lapsed, self._lapses = lease.lapses > self._lapses, lease.lapses
        if lapsed:  # and was renewed before this look: the process stood still, and another may have its runs
            for managed in self._manager.live():
                self._stop_now(managed)
        elif state is LeaseState.HELD:
            self._go_on()
            return max(left - lease.seconds / 3, lease.seconds * _LOOK_AGAIN)
        else:
            for managed in self._manager.live():
                if state is LeaseState.OVER:
                    self._stop_now(managed)
                elif managed.state is RunState.LIVE and managed.id not in self._asked:
                    self._stop_soon(managed)
        return lease.seconds * _LOOK_AGAIN

    def _stop_soon(self, managed: ManagedRun) -> None:
        _log.warning("the run %s stops at its next safe point unless the store answers soon", managed.id)
        self._asked[managed.id] = managed.run.node.cancel(SafePoint.ANY, recursive=True, reason=OUT_OF_REACH)

    def _stop_now(self, managed: ManagedRun) -> None:
        request = managed.run.node.request()
        if request is not None and request.at in (SafePoint.NOW, SafePoint.FORCE):
            return
        _log.error("the run %s is stopped: the lease of this process is over", managed.id)
        managed.ask(SafePoint.NOW, OUT_OF_REACH)

    def _go_on(self) -> None:
        asked, self._asked = self._asked, {}
        for receipt in asked.values():
            receipt.withdraw()

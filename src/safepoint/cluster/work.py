"""All that an engine has to call: claim a run, and see it through.

Whoever calls, and however often: one of them works on the run, and the others are told that it is taken. What is true
is decided by `take`, which raises the record's epoch: every later write of an owner before is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

from safepoint.errors import StoreError
from safepoint.serving.cancel_requests import MOVED
from safepoint.serving.managed_run import ManagedRun
from safepoint.serving.run_manager import RunManager
from safepoint.serving.takeover import settle
from safepoint.storage.protocol import Storage
from safepoint.storage.run_records import FREE, RecordMoved, RunRecord, RunState

WhenCancelled: TypeAlias = Callable[[RunManager, ManagedRun], Coroutine[Any, Any, None]]  # Any: what it yields

HANDED_OVER = "handed_over"
"""The outcome of a run that has stopped here, to continue elsewhere under the same id."""

_LOOK = 1.0
_WRITING = 1.0

# The worker of each storage in this process.
_managers: WeakKeyDictionary[Storage, RunManager] = WeakKeyDictionary()


class AlreadyTaken(StoreError):
    """Another worker has the run, or it is over: an engine has nothing more to do for it."""


def register(manager: RunManager) -> None:
    """Work on runs of that storage is done here from now on."""
    _managers[manager.storage] = manager


def unregister(manager: RunManager) -> None:
    _managers.pop(manager.storage, None)


async def work_on(storage: Storage, run_id: str) -> str:
    """Claim this queued or orphaned run, and run it to its end or to a hand-over; the outcome.

    `storage`: one whose worker runs in this process: a server, or `async with Worker(agents, storage)`. Raises
    `AlreadyTaken` for a run that another worker has or that is over, RuntimeError if no worker of the storage is here,
    `NoSuchApp` if the worker lacks its app, `StoreError`. Cancellation: the run stops at its next safe point and is
    handed over.
    """
    return await work_for(manager_of(storage), run_id)


def manager_of(storage: Storage) -> RunManager:
    """Of the worker of that storage in this process. Raises RuntimeError."""
    manager = _managers.get(storage)
    if manager is None:
        raise RuntimeError("no worker of this storage runs here: write `async with Worker(agents, storage): …`")
    return manager


async def work_for(manager: RunManager, run_id: str, cancelled: WhenCancelled | None = None) -> str:
    """As `work_on`. `cancelled`: what becomes of the run if this is cancelled, in place of a hand-over."""
    if manager.draining:
        raise AlreadyTaken(f"this worker is leaving, and the run {run_id} is for another one")
    record = await _take(manager, run_id)
    try:
        managed = await _settled(manager, record)
    finally:
        manager.settling.discard(run_id)
    return await _seen_through(manager, managed, run_id, cancelled or hand_over)


async def _take(manager: RunManager, run_id: str) -> RunRecord:
    """Raises as `work_on`. Cancellation: taken, or not; what was taken is picked up by the sweep."""
    runs, me = manager.storage.runs, manager.storage.worker
    record = await runs.get(run_id)
    if record is None or record.state in (RunState.ENDED, RunState.PAUSED):
        raise AlreadyTaken(f"the run {run_id} is {'not there' if record is None else record.state}")
    if record.owner != FREE and not await runs.orphans(run_id=run_id):
        raise AlreadyTaken(f"another worker has the run {run_id}")
    manager.agent(record.session.partition("/")[0])
    manager.settling.add(run_id)
    try:
        return await runs.take(run_id, me, epoch=record.epoch)
    except RecordMoved as error:
        manager.settling.discard(run_id)
        raise AlreadyTaken(str(error)) from error
    except BaseException:
        manager.settling.discard(run_id)
        raise


async def _settled(manager: RunManager, record: RunRecord) -> ManagedRun | None:
    """The run, once its session is free; None if there was nothing left to run. Cancellation: it is given back."""
    run_id = record.run_id
    try:
        async with manager.storage.changes(session=record.session) as changes:
            while not await settle(manager, record):
                if manager.draining:
                    raise AlreadyTaken(f"this worker leaves before the session of the run {run_id} is free")
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK):
                        await anext(changes)
    except BaseException as error:
        with suppress(StoreError):  # else the sweep finds it
            await asyncio.shield(_give_back(manager, record))
        if isinstance(error, RecordMoved):
            raise AlreadyTaken(str(error)) from error
        raise
    managed = manager.runs.get(run_id)
    return managed if managed is not None and not managed.over.is_set else None


async def _give_back(manager: RunManager, record: RunRecord) -> None:
    """Bounded. Cancellation: never cancelled."""
    with suppress(RecordMoved, TimeoutError):
        async with asyncio.timeout(_WRITING):
            await manager.storage.runs.take(record.run_id, FREE, epoch=record.epoch)


async def _seen_through(manager: RunManager, managed: ManagedRun | None, run_id: str, cancelled: WhenCancelled) -> str:
    """Cancellation: as `cancelled` says, which is bounded."""
    if managed is not None:
        try:
            await managed.over.wait()
        except asyncio.CancelledError:
            await asyncio.shield(cancelled(manager, managed))
            raise
    found = await manager.storage.runs.get(run_id)
    if found is None:
        return "cancelled"  # its session was deleted
    if not found.ended:
        return HANDED_OVER if found.state is not RunState.PAUSED else str(found.outcome)
    return str(found.outcome)


async def hand_over(manager: RunManager, managed: ManagedRun) -> None:
    """Stop it at a safe point, to be continued by any worker. Bounded. Cancellation: the ask stands."""
    seconds = manager.config.shutdown_seconds
    managed.hand_over(MOVED, within=seconds)
    ladder = manager.config.ladder or managed.run.agent.ladder
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds + ladder.cap + _WRITING):
            await managed.over.wait()

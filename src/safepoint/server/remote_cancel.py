"""Stop a run that another process owns: the request is stored for that process, and the record tells the outcome.

If the owner lives, it finds the request at its next look. If it is dead, the run is taken over, and ends here. The
record is looked at whenever it may have changed, until it has ended or the caller's patience is over; then the answer
is that it was asked, and no more. Only the owner knows which nodes a run has: it answers the stored request.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress

from safepoint._core.reasons import Reason
from safepoint._core.receipts import Outcome
from safepoint.agent.result import StopReason
from safepoint.errors import SessionNotFound
from safepoint.server.cancel_service import Cancelled, cancel_all, clear_pause, no_node, store_request
from safepoint.server.requests import CancelRequest
from safepoint.server.run_manager import RunManager
from safepoint.server.takeover import settle, take_over
from safepoint.serving.ids import SessionKey
from safepoint.storage.run_records import RecordMoved, RunRecord, RunState

_LAST_WORD = 0.5


async def cancel_records(
    manager: RunManager, records: Iterable[RunRecord], request: CancelRequest, reason: Reason
) -> list[Cancelled]:
    """Each of them that has not ended, at once. A node is a part of a live run: raises `NotYours` if none is live.

    Cancellation: the requests stand, once they are stored.
    """
    still = [record for record in records if not record.ended]
    meant = [record for record in still if request.node is None or record.state is RunState.LIVE]
    if still and not meant:
        raise no_node(request)
    found = [(key, record) for record in meant if (key := SessionKey.parse(record.session)) is not None]
    cancel = _cancel if request.node is None else _cancel_node
    asked = [cancel(manager, key, record, request, reason) for key, record in found]
    cancelled = [each for each in await asyncio.gather(*asked) if each is not None]
    if request.node is not None and found and not cancelled:
        raise no_node(request)
    return cancelled


async def _cancel(
    manager: RunManager, key: SessionKey, record: RunRecord, request: CancelRequest, reason: Reason
) -> Cancelled | None:
    """None if its session is gone. Cancellation: the request stands, once it is stored."""
    if record.state is RunState.PAUSED:
        try:
            cleared = await clear_pause(manager, key, record, reason)
        except SessionNotFound:
            return None
        if cleared is not None:
            return cleared
    number = await store_request(manager, record.run_id, request, reason)
    durable = number is not None and manager.storage.durable
    if number is None:
        return Cancelled(record.run_id, True, None, durable)
    until = time.monotonic() + request.wait_seconds
    async with manager.storage.changes(run=record.run_id) as changes:
        while True:
            managed = manager.runs.get(record.run_id)
            if managed is not None and managed.live:  # it has come to us meanwhile
                for cancelled in await cancel_all(manager, [managed], request, reason):
                    return cancelled
            outcome = await _outcome(manager, key, record.run_id, reason)
            if outcome is not None or time.monotonic() >= until:
                return Cancelled(record.run_id, True, outcome, durable)
            await _wait_for(changes, until)


async def _wait_for(changes: AsyncIterator[None], until: float) -> None:
    """Until something may have changed, or that time has come. Cancellation: only the waiting ends."""
    with suppress(TimeoutError):
        async with asyncio.timeout(max(until - time.monotonic(), 0)):
            await anext(changes)


async def _cancel_node(
    manager: RunManager, key: SessionKey, record: RunRecord, request: CancelRequest, reason: Reason
) -> Cancelled | None:
    """None if its owner has no such node. Without its answer in time: asked. Cancellation: the request stands."""
    run_id, until, runs = record.run_id, time.monotonic() + request.wait_seconds, manager.storage.runs
    number = await store_request(manager, run_id, request, reason)
    if number is None:
        return Cancelled(run_id, True, None, durable=False)
    async with manager.storage.changes(run=run_id) as changes:
        while True:
            said, now = await runs.cancel_answer(number), await runs.get(run_id)
            if said is not None:
                return (
                    None
                    if said["outcome"] is None
                    else Cancelled(run_id, True, said["outcome"], manager.storage.durable)
                )
            managed = manager.runs.get(run_id)
            if managed is not None and managed.live:  # it has come to us meanwhile
                for cancelled in await cancel_all(manager, [managed], request, reason):
                    return cancelled
            is_live = now is not None and now.state is RunState.LIVE
            if not is_live:  # it may have ended by this very request: then its owner's answer comes right after
                until = min(until, time.monotonic() + _LAST_WORD)
            if time.monotonic() >= until:
                return Cancelled(run_id, True, None, manager.storage.durable) if is_live else None
            await _wait_for(changes, until)


async def _outcome(manager: RunManager, key: SessionKey, run_id: str, reason: Reason) -> str | None:
    """How it ended; taken over first if nobody has it. Cancellation: only the looking ends."""
    record = await manager.storage.runs.get(run_id)
    if record is None:
        return str(Outcome.STOPPED)  # its session is deleted
    if record.ended:
        return str(Outcome.STOPPED if record.outcome == StopReason.CANCELLED else Outcome.FINISHED_FIRST)
    if record.state is RunState.PAUSED:
        await clear_pause(manager, key, record, reason)
    elif record.state is RunState.SUSPENDED or await manager.storage.runs.orphans(run_id=run_id):
        await _take(manager, record)
    return None


async def _take(manager: RunManager, record: RunRecord) -> None:
    """Cancellation: taken, or not."""
    with suppress(RecordMoved):  # another process was faster, and knows the request too
        await (settle if record.owner == manager.storage.worker else take_over)(manager, record)

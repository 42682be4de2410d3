"""Stop a run that another process owns: the request is stored for that process, which answers it.

The owner answers what a client would have got from it: the outcome, the calls it touched, orphans and usage. If the
owner is dead, the run is taken over and ends here, and the record tells the outcome. Both are looked at whenever they
may have changed, until one of them tells or the caller's patience is over; then the answer is that it was asked, and no
more.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

from safepoint._core.reasons import Reason
from safepoint._core.receipts import Outcome
from safepoint.agent.result import StopReason
from safepoint.errors import SessionNotFound
from safepoint.serving.cancel_requests import StopRequest, new_ask_id
from safepoint.serving.cancel_service import Cancelled, cancel_all, clear_pause, no_node, store_request
from safepoint.serving.ids import SessionKey
from safepoint.serving.run_manager import RunManager
from safepoint.serving.takeover import settle, take_over
from safepoint.storage.run_records import RecordMoved, RunRecord, RunState

_LAST_WORD = 0.5
_PATIENCE = 1.0


async def cancel_records(
    manager: RunManager, records: Iterable[RunRecord], request: StopRequest, reason: Reason
) -> list[Cancelled]:
    """Each of them that has not ended, at once. A node is a part of a live run: raises `NotFound` if none is live.

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
    manager: RunManager, key: SessionKey, record: RunRecord, request: StopRequest, reason: Reason
) -> Cancelled | None:
    """None if its session is gone. Cancellation: the request stands, once it is stored."""
    if record.state is RunState.PAUSED:
        try:
            cleared = await clear_pause(manager, key, record, reason)
        except SessionNotFound:
            return None
        if cleared is not None:
            return cleared
    run_id, ask_id, durable = record.run_id, new_ask_id(), manager.storage.durable
    # A run that waits for its turn is taken out of the queue: there is no ask that could be withdrawn.
    receipt_fields = {} if record.state is RunState.QUEUED else {"askId": ask_id}
    until = time.monotonic() + request.wait_seconds
    async with _subscribed(manager, run_id) as changes:  # before the request: its answer may come at once
        number = await store_request(manager, run_id, request, reason, ask_id=ask_id)
        if number is None or changes is None:
            return Cancelled(run_id, True, None, durable and number is not None, receipt_fields=receipt_fields)
        while True:
            managed = manager.runs.get(run_id)
            if managed is not None and managed.live:  # it has come to us meanwhile
                for cancelled in await cancel_all(manager, [managed], request, reason):
                    return cancelled
            said, now = await asyncio.gather(_said(manager, run_id, number), manager.storage.runs.get(run_id))
            if said is not None and now is not None:
                return _as_answered(run_id, said, durable=durable)
            outcome = await _outcome(manager, key, now, reason)
            if outcome == Outcome.STOPPED and now is not None and now.epoch == record.epoch:
                # It was stopped by its owner, whose answer comes right after.
                until = min(until, time.monotonic() + _LAST_WORD)
            elif outcome is not None:
                until = 0.0
            if time.monotonic() >= until:
                return Cancelled(run_id, True, outcome, durable, receipt_fields=receipt_fields)
            await _wait_for(changes, until)


@asynccontextmanager
async def _subscribed(manager: RunManager, run_id: str) -> AsyncGenerator[AsyncIterator[None] | None]:
    """Changes of that run; None if the store does not answer: a caller is told that within a moment."""
    async with AsyncExitStack() as stack:
        changes: AsyncIterator[None] | None = None
        with suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE):
                changes = await stack.enter_async_context(manager.storage.changes(run=run_id))
        yield changes


async def _wait_for(changes: AsyncIterator[None], until: float) -> None:
    """Until something may have changed, or that time has come. Cancellation: only the waiting ends."""
    with suppress(TimeoutError):
        async with asyncio.timeout(max(until - time.monotonic(), 0)):
            await anext(changes)


async def _cancel_node(
    manager: RunManager, key: SessionKey, record: RunRecord, request: StopRequest, reason: Reason
) -> Cancelled | None:
    """None if its owner has no such node. Without its answer in time: asked. Cancellation: the request stands."""
    run_id, until, ask_id = record.run_id, time.monotonic() + request.wait_seconds, new_ask_id()
    durable = manager.storage.durable
    async with _subscribed(manager, run_id) as changes:
        number = await store_request(manager, run_id, request, reason, ask_id=ask_id)
        if number is None or changes is None:
            return Cancelled(run_id, True, None, durable and number is not None, receipt_fields={"askId": ask_id})
        while True:
            said, now = await asyncio.gather(_said(manager, run_id, number), manager.storage.runs.get(run_id))
            if said is not None:
                return None if said.get("outcome") is None else _as_answered(run_id, said, durable=durable)
            managed = manager.runs.get(run_id)
            if managed is not None and managed.live:  # it has come to us meanwhile
                for cancelled in await cancel_all(manager, [managed], request, reason):
                    return cancelled
            is_live = now is not None and now.state is RunState.LIVE
            if not is_live:  # it may have ended by this very request: then its owner's answer comes right after
                until = min(until, time.monotonic() + _LAST_WORD)
            if time.monotonic() >= until:
                return Cancelled(run_id, True, None, durable, receipt_fields={"askId": ask_id}) if is_live else None
            await _wait_for(changes, until)


async def _said(manager: RunManager, run_id: str, number: int) -> Mapping[str, Any] | None:  # Any: JSON values
    """What the owner has answered; a request that is there no more was withdrawn. Cancellation: no change."""
    requests = await manager.storage.runs.cancel_requests(run_id)
    mine = next((each for each in requests if each.number == number), None)
    return {"outcome": str(Outcome.WITHDRAWN)} if mine is None else mine.answer


def _as_answered(run_id: str, said: Mapping[str, Any], *, durable: bool) -> Cancelled:  # Any: JSON values
    receipt_fields = {name: value for name, value in said.items() if name != "outcome"}
    return Cancelled(run_id, True, said.get("outcome"), durable, receipt_fields=receipt_fields)


async def _outcome(manager: RunManager, key: SessionKey, record: RunRecord | None, reason: Reason) -> str | None:
    """How it ended; it is taken over first if its owner is dead. Cancellation: only the looking ends."""
    if record is None:
        return str(Outcome.STOPPED)  # its session is deleted
    if record.ended:
        return str(Outcome.STOPPED if record.outcome == StopReason.CANCELLED else Outcome.FINISHED_FIRST)
    if record.state is RunState.PAUSED:
        await clear_pause(manager, key, record, reason)
    elif record.state is RunState.SUSPENDED or await manager.storage.runs.orphans(run_id=record.run_id):
        await _take(manager, record)
    return None


async def _take(manager: RunManager, record: RunRecord) -> None:
    """Cancellation: taken, or not."""
    with suppress(RecordMoved):  # another process was faster, and knows the request too
        await (settle if record.owner == manager.storage.worker else take_over)(manager, record)

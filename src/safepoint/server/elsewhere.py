"""Stop a run that this process does not have: its wish is stored for whoever does, and the record tells the outcome.

The owner lives: it finds the wish at its next beat. The owner is gone: the run is taken over, and ends there. Nobody
tells us when, so the record is looked at until it has ended or the caller's patience is over; then the answer is that
it was asked, and no more. Which nodes a run has, only its owner knows: it answers the wish in the book.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from contextlib import suppress

from safepoint._core.reasons import Reason
from safepoint._core.receipts import Outcome
from safepoint.agent.result import StopReason
from safepoint.errors import SessionNotFound
from safepoint.server.cancelling import Cancelled, cancel_all, clear_pause, keep_wish, no_node, store_wish
from safepoint.server.host import Host
from safepoint.server.ids import SessionKey
from safepoint.server.requests import CancelRequest
from safepoint.server.takeover import settle, take_over
from safepoint.server.wish import Wish
from safepoint.sessions.records import RecordMoved, RunRecord, RunState

_LOOK = 0.05
_LAST_WORD = 0.5


async def cancel_records(
    host: Host, records: Iterable[RunRecord], request: CancelRequest, reason: Reason
) -> list[Cancelled]:
    """Each of them that has not ended, at once. A node is a part of a live run: raises `NotYours` if none is live.

    Cancellation: the wishes stand, once they are stored.
    """
    still = [record for record in records if not record.ended]
    meant = [record for record in still if request.node is None or record.state is RunState.LIVE]
    if still and not meant:
        raise no_node(request)
    found = [(key, record) for record in meant if (key := SessionKey.parse(record.session)) is not None]
    cancel = _cancel if request.node is None else _cancel_node
    asked = [cancel(host, key, record, request, reason) for key, record in found]
    cancelled = [each for each in await asyncio.gather(*asked) if each is not None]
    if request.node is not None and found and not cancelled:
        raise no_node(request)
    return cancelled


async def _cancel(
    host: Host, key: SessionKey, record: RunRecord, request: CancelRequest, reason: Reason
) -> Cancelled | None:
    """None if its session is gone. Cancellation: the wish stands, once it is stored."""
    if record.state is RunState.PAUSED:
        try:
            cleared = await clear_pause(host, key, record, reason)
        except SessionNotFound:
            return None
        if cleared is not None:
            return cleared
    durable = await store_wish(host, record.run_id, Wish(request, reason, host.owner))
    outcome, until = None, time.monotonic() + request.wait_seconds
    while durable is host.book.durable:  # else the store has failed
        hosted = host.runs.get(record.run_id)
        if hosted is not None and hosted.live:  # it has come to us meanwhile
            return (await cancel_all(host, [hosted], request, reason))[0]
        outcome = await _outcome(host, key, record.run_id, reason)
        if outcome is not None or time.monotonic() >= until:
            break
        await asyncio.sleep(min(_LOOK, max(until - time.monotonic(), 0)))
    return Cancelled(record.run_id, True, outcome, durable)


async def _cancel_node(
    host: Host, key: SessionKey, record: RunRecord, request: CancelRequest, reason: Reason
) -> Cancelled | None:
    """None if its owner has no such node. Without its word in time: asked. Cancellation: the wish stands."""
    run_id, until = record.run_id, time.monotonic() + request.wait_seconds
    number = await keep_wish(host, run_id, Wish(request, reason, host.owner))
    while number is not None:
        said, now = await host.book.answer_to(number), await host.book.get(run_id)
        if said is not None:
            return None if said["outcome"] is None else Cancelled(run_id, True, said["outcome"], host.book.durable)
        hosted = host.runs.get(run_id)
        if hosted is not None and hosted.live:  # it has come to us meanwhile
            return (await cancel_all(host, [hosted], request, reason))[0]
        is_live = now is not None and now.state is RunState.LIVE
        if not is_live:  # it may have ended by this very wish: then its owner's word comes right after
            until = min(until, time.monotonic() + _LAST_WORD)
        if time.monotonic() >= until:
            return Cancelled(run_id, True, None, host.book.durable) if is_live else None
        await asyncio.sleep(min(_LOOK, max(until - time.monotonic(), 0)))
    return Cancelled(run_id, True, None, durable=False)


async def _outcome(host: Host, key: SessionKey, run_id: str, reason: Reason) -> str | None:
    """How it ended; taken over first if nobody has it. Cancellation: only the looking ends."""
    record = await host.book.get(run_id)
    if record is None:
        return str(Outcome.STOPPED)  # its session is deleted
    if record.ended:
        return str(Outcome.STOPPED if record.outcome == StopReason.CANCELLED else Outcome.FINISHED_FIRST)
    if record.state is RunState.PAUSED:
        await clear_pause(host, key, record, reason)
    elif record.is_orphan or record.state is RunState.SUSPENDED:
        await _take(host, record)
    return None


async def _take(host: Host, record: RunRecord) -> None:
    """Cancellation: taken, or not."""
    with suppress(RecordMoved):  # another process was faster, and knows the wish too
        await (settle if record.owner == host.owner else take_over)(host, record)

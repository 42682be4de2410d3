"""How a client's wish to stop a run becomes a stopped run, and what it is told.

A live run is asked first and the wish is stored then, both before anybody is answered: a crash after the answer still
ends in a cancelled run. Asked and stopped are two facts: `outcome` is there once no further effect can be written.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from safepoint._core.points import SafePoint
from safepoint._core.reasons import Reason
from safepoint._core.receipts import Receipt
from safepoint.agent.resume import Resume
from safepoint.errors import StoreError
from safepoint.server.host import Host
from safepoint.server.hosted import HostedRun, ask_json, reason_json
from safepoint.server.ids import SessionKey
from safepoint.server.principal import NotYours
from safepoint.server.requests import CancelRequest
from safepoint.server.wire_events import Scene
from safepoint.sessions.records import RunRecord, RunState

_INTENT_PATIENCE = 1.0


@dataclass(frozen=True, slots=True)
class Cancelled:
    """What came of one cancel of one run. `receipt` is None for a run that had not started, or was over.

    `requested`: whether this call asked for anything. `outcome`: None while the run is still stopping.
    """

    run_id: str
    requested: bool
    outcome: str | None
    durable: bool
    receipt: Receipt | None = None


async def cancel_all(host: Host, runs: list[HostedRun], request: CancelRequest, reason: Reason) -> list[Cancelled]:
    """Each of them, at once. Raises `NotYours` if none has the node. Cancellation: the asks stand."""
    asked = [(hosted, _ask(hosted, request, reason)) for hosted in runs]
    return list(await asyncio.gather(*(_settle(host, run, receipt, request, reason) for run, receipt in asked)))


async def _settle(
    host: Host, hosted: HostedRun, receipt: Receipt | None, request: CancelRequest, reason: Reason
) -> Cancelled:
    """Store the wish, and wait as long as the request says. Cancellation: only the waiting ends."""
    if hosted.over.is_set and receipt is None and hosted.withdrawn is None:
        return Cancelled(hosted.id, False, hosted.outcome, durable=host.book.durable)
    wish = ask_json(receipt.asked) if receipt is not None else {"at": ["now"], "reason": reason_json(reason)}
    durable = await _store_intent(host, hosted.id, wish)
    if request.wait_seconds > 0:
        try:
            async with asyncio.timeout(request.wait_seconds):
                await (hosted.over.wait() if request.node is None or receipt is None else receipt.wait())
        except TimeoutError:
            pass
    if receipt is None:
        return Cancelled(hosted.id, True, hosted.outcome if hosted.over.is_set else None, durable)
    ended = receipt.node.ended.is_set if request.node is not None else hosted.over.is_set
    return Cancelled(hosted.id, True, str(receipt.outcome) if ended else None, durable, receipt)


def _ask(hosted: HostedRun, request: CancelRequest, reason: Reason) -> Receipt | None:
    """Ask it now; None for a run that is over, or is withdrawn from the queue. Raises `NotYours`."""
    match hosted.state:
        case RunState.QUEUED:
            hosted.withdraw(reason)
            return None
        case RunState.LIVE:
            node = hosted.run.node
            if request.node is not None:
                found = [each for each in node.walk() if each.path == request.node]
                if not found:
                    raise NotYours(f"no live node has the path {request.node!r}")
                node = found[0]
            within, recursive = request.within_seconds, request.recursive
            return node.cancel(request.point(), within=within, recursive=recursive, reason=reason)
        case _:
            return None


async def _store_intent(host: Host, run_id: str, wish: Mapping[str, Any]) -> bool:  # Any: JSON values
    """Whether it outlives the process. Cancellation: stored or not."""
    try:
        async with asyncio.timeout(_INTENT_PATIENCE):
            await host.book.intend(run_id, wish)
    except (StoreError, TimeoutError):
        return False
    return host.book.durable


async def clear_pause(host: Host, key: SessionKey, paused: RunRecord, reason: Reason) -> Cancelled | None:
    """Cancel a run that waits for a person: its questions are closed truthfully and it can't be resumed.

    None if it does not wait any more. Cancellation: the pause is cleared or it is not.
    """
    sender = await host.sender(key)
    session = sender.session
    checkpoint = session.checkpoint
    if checkpoint is None or not checkpoint.questions or sender.busy:
        return None
    durable = await _store_intent(host, paused.run_id, {"at": ["now"], "reason": reason_json(reason)})
    run = host.agent(key.app).start(checkpoint=Resume(checkpoint), session=session)
    run.cancel(SafePoint.NOW, reason=reason)
    hosted = HostedRun(key, run, "", Scene(session.runs[-1].origin, run.agent.name))
    now = time.time()
    record = RunRecord(run.id, key.stored_as, RunState.LIVE, now, host.owner, started_at=now, renewed=now)
    await host.book.accept(record, since=now)
    host.serve(hosted, sender, "reject")
    await hosted.over.wait()
    await host.book.move(
        paused.run_id, RunState.ENDED, epoch=paused.epoch, outcome="cancelled", reason=reason_json(reason)
    )
    return Cancelled(paused.run_id, True, "stopped", durable)

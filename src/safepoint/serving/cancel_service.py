"""How a client's request to stop a run becomes a stopped run, and what it is told.

A live run is asked first and the request is stored then, both before the client is answered: a crash after the answer
still ends in a cancelled run. Asked and stopped are two facts: `outcome` is there once no further effect can be
written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from safepoint._core.asks import make_ask
from safepoint._core.points import SafePoint
from safepoint._core.reasons import Reason
from safepoint._core.receipts import Outcome, Receipt
from safepoint._core.tree import Node
from safepoint.agent.result import StopReason
from safepoint.agent.resume import Unanswered
from safepoint.errors import SessionBusy, StoreError
from safepoint.serving.cancel_requests import StopRequest, encode_ask
from safepoint.serving.events import Turn
from safepoint.serving.ids import SessionKey
from safepoint.serving.managed_run import ManagedRun
from safepoint.serving.principal import NotFound
from safepoint.serving.run_manager import RunManager
from safepoint.storage.run_records import RecordMoved, RunRecord, RunState

_PATIENCE = 1.0


@dataclass(frozen=True, slots=True)
class Cancelled:
    """What came of one cancel of one run. `receipt` is None for a run that had not started, or was over.

    `requested`: whether this call asked for anything. `outcome`: None while the run is still stopping.
    `receipt_fields`: what another process that owns the run has answered beside the outcome, as `receipt_json` does.
    """

    run_id: str
    requested: bool
    outcome: str | None
    durable: bool
    receipt: Receipt | None = None
    receipt_fields: Mapping[str, Any] = field(default_factory=dict[str, Any])  # Any: JSON values


async def cancel_all(
    manager: RunManager, runs: list[ManagedRun], request: StopRequest, reason: Reason
) -> list[Cancelled]:
    """Each of them, at once; none for a message that was refused after all.

    Raises `NotFound` if none has the node. Cancellation: the asks stand.
    """
    meant = [managed for managed in runs if _node(managed, request) is not None]
    if not meant and runs:
        raise no_node(request)
    asked = [(managed, ask(managed, request, reason)) for managed in meant]
    settled = await asyncio.gather(*(_settle(manager, run, receipt, request, reason) for run, receipt in asked))
    return [each for each in settled if each is not None]


def _node(managed: ManagedRun, request: StopRequest) -> Node | None:
    """What is to stop of it: all, or the node that the request names, if it is live and has that."""
    if request.node is None:
        return managed.run.node
    nodes = managed.run.node.walk() if managed.state is RunState.LIVE else ()
    return next((node for node in nodes if node.path == request.node), None)


def no_node(request: StopRequest) -> NotFound:
    """What names a node that is not there, or is there no more."""
    return NotFound(f"no live node has the path {request.node!r}")


async def _settle(
    manager: RunManager, managed: ManagedRun, receipt: Receipt | None, request: StopRequest, reason: Reason
) -> Cancelled | None:
    """Store the request, and wait as long as the request says; None if there is no such run after all.

    Cancellation: only the waiting ends.
    """
    if managed.over.is_set and receipt is None and managed.withdrawn is None:
        return Cancelled(managed.id, False, managed.outcome, durable=manager.storage.durable)
    run: ManagedRun | None = managed
    with suppress(TimeoutError):
        async with asyncio.timeout(_PATIENCE):
            run = await managed.as_accepted()
    if run is None and managed.is_refused:
        return None
    # Also if it is unknown whether there is a record: a record that is stored later is then not resumed.
    ask_id = receipt.asked.id if receipt is not None else None
    number = await store_request(manager, managed.id, request, reason, ask_id=ask_id, acknowledged=True)
    if run is not None and request.wait_seconds > 0:
        with suppress(TimeoutError):
            async with asyncio.timeout(request.wait_seconds):
                run = await managed.as_accepted()
                if run is not None:
                    await _until_settled(run, receipt if run is managed else None, request)
    if run is None and managed.is_refused:
        return None
    if run is None or not run.is_accepted:  # nothing that is told of it would hold after a crash
        return Cancelled(managed.id, True, None, durable=False, receipt=receipt)
    durable = number is not None and manager.storage.durable
    return _cancelled(run, receipt if run is managed else None, request, durable=durable)


def _cancelled(managed: ManagedRun, receipt: Receipt | None, request: StopRequest, *, durable: bool) -> Cancelled:
    never_began = managed.over.is_set and not managed.run.node.started
    if receipt is None or never_began:
        outcome = str(Outcome.STOPPED) if managed.withdrawn is not None else managed.outcome
        return Cancelled(managed.id, True, outcome if managed.over.is_set else None, durable)
    ended = receipt.node.ended.is_set if request.node is not None else managed.over.is_set
    settled = ended or _is_withdrawn(receipt)
    return Cancelled(managed.id, True, str(receipt.outcome) if settled else None, durable, receipt)


async def _until_settled(managed: ManagedRun, receipt: Receipt | None, request: StopRequest) -> None:
    """Until the run is over and recorded, or the node has ended, or the ask was taken back.

    Cancellation: only the waiting ends.
    """
    if receipt is not None:
        await managed.begun.wait()  # a run that has been accepted begins by itself, or is refused after all
        if managed.run.node.started and await receipt.wait() is Outcome.WITHDRAWN:
            return
    if receipt is None or request.node is None:
        await managed.over.wait()


async def outcome_of(managed: ManagedRun, receipt: Receipt | None, request: StopRequest) -> Cancelled:
    """What came of an ask that `ask` has made, once that is known. Cancellation: only the waiting ends."""
    await _until_settled(managed, receipt, request)
    return _cancelled(managed, receipt, request, durable=True)


def _is_withdrawn(receipt: Receipt) -> bool:
    return receipt.node.log.standing().was_withdrawn(receipt.asked.id)


async def withdraw(manager: RunManager, managed: ManagedRun, ask_id: str) -> bool:
    """Take an ask back; False if something was done about it already. Raises `NotFound`.

    Cancellation: it is taken back, but after a crash it may count again.
    """
    receipt = managed.asks.get(ask_id)
    if receipt is None:
        raise NotFound(f"Ask not found: {ask_id}")
    taken_back = receipt.withdraw()
    if taken_back:
        with suppress(StoreError, TimeoutError):
            async with asyncio.timeout(_PATIENCE):
                await manager.storage.runs.withdraw_cancel(managed.id, ask_id)
    return taken_back


def ask(managed: ManagedRun, request: StopRequest, reason: Reason, ask_id: str | None = None) -> Receipt | None:
    """Ask it now; None for a run that is over, or is withdrawn from the queue. Raises `NotFound`.

    `ask_id`: by which the asker, in another process, knows the ask already.
    """
    if not managed.live:
        return None
    node = _node(managed, request)
    if node is None:
        raise no_node(request)
    if managed.state is RunState.QUEUED:
        managed.withdraw(reason)
        return None
    within, recursive = request.within_seconds, request.recursive
    if ask_id is None:
        receipt = node.cancel(request.at, within=within, recursive=recursive, reason=reason)
    else:
        now, wall = node.clock.now(), node.clock.wall()
        made = make_ask(request.at, within=within, recursive=recursive, reason=reason, now=now, wall=wall)
        receipt = node.take(replace(made, id=ask_id))
    managed.asks[receipt.asked.id] = receipt
    return receipt


async def store_request(
    manager: RunManager,
    run_id: str,
    request: StopRequest,
    reason: Reason,
    *,
    ask_id: str | None = None,
    acknowledged: bool = False,
) -> int | None:
    """Its number; None if it could not be stored in time. `acknowledged`: the run was asked here.

    Cancellation: stored or not.
    """
    ask = encode_ask(request, reason, ask_id)
    try:
        async with asyncio.timeout(_PATIENCE):
            return await manager.storage.runs.request_cancel(run_id, ask, acknowledged=acknowledged)
    except (StoreError, TimeoutError):
        return None


async def clear_pause(manager: RunManager, key: SessionKey, paused: RunRecord, reason: Reason) -> Cancelled | None:
    """Cancel a run that waits for a person: its questions are closed truthfully, and asked again if it is resumed.

    It is done once, for all who want it. None if it can't be done now, or if the run does not wait any more.
    Cancellation: only the waiting ends.
    """
    run_id = paused.run_id
    if run_id not in manager.clearing:

        def forget(task: asyncio.Task[bool | None]) -> None:
            del manager.clearing[run_id]
            if not task.cancelled():
                task.exception()  # retrieved, because the waiters may have gone

        clearing = manager.clearing[run_id] = asyncio.create_task(_clear_pause(manager, key, paused, reason))
        clearing.add_done_callback(forget)
    durable = await asyncio.shield(manager.clearing[run_id])
    return None if durable is None else Cancelled(run_id, True, str(Outcome.STOPPED), durable)


async def _clear_pause(manager: RunManager, key: SessionKey, paused: RunRecord, reason: Reason) -> bool | None:
    """Whether the request outlives the process; None as above. Cancellation: the pause is cleared or it is not."""
    dispatcher = await manager.dispatcher(key)
    session = dispatcher.session
    try:
        await dispatcher.between(session.save_state)  # also learns what other processes have written
        record = await manager.storage.runs.take(paused.run_id, manager.storage.worker, epoch=paused.epoch)
    except (SessionBusy, RecordMoved):
        return None
    checkpoint = session.checkpoint
    if checkpoint is None or not checkpoint.questions or session.runs[-1].run_id != paused.run_id:
        return None
    number = await store_request(manager, paused.run_id, StopRequest(), reason, acknowledged=True)
    durable = number is not None and manager.storage.durable
    agent = manager.agent_of(key)
    run = agent.start(checkpoint=Unanswered(checkpoint), session=session, ladder=manager.config.ladder)
    run = run.under(paused.run_id)
    run.cancel(SafePoint.NOW, reason=reason)
    turn = Turn.of(session.runs[-1].origin, run.agent)
    queued = RunState.QUEUED  # it becomes live, and then ends
    managed = ManagedRun(key, run, "", turn, by=record.by, epoch=record.epoch, record_state=queued)
    manager.serve(managed, dispatcher, "reject")
    await managed.over.wait()
    return durable if managed.outcome == StopReason.CANCELLED else None  # a new message that came first closes it too

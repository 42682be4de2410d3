"""What becomes of a run whose owner is dead: judged from what is stored, then done, once.

A run and its record end in one transaction, so what is left to decide is a run that

| in the session                        | the record                                                           |
|---------------------------------------|----------------------------------------------------------------------|
| never began                           | ends cancelled if that was requested; else the run begins            |
| joined another run                    | ends as joined                                                       |
| was cut by the crash, or suspended    | ends cancelled if that was requested, or a later message came;       |
|                                       | else it goes on from its checkpoint, or stays stopped: by policy;    |
|                                       | ends with an error if three workers in a row have died with it       |
| waits for a person                    | is paused; cleared if it was to be cancelled                         |

The run goes on under its own id, so its clients find it. A finished effect is in its checkpoint and is not repeated; an
effect whose outcome is unknown is told to the model. `verdict` is pure; `settle` does what it says.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from enum import StrEnum

from msgspec.structs import replace

from safepoint._core.reasons import Reason, Source
from safepoint.agent.result import StopReason
from safepoint.errors import CheckpointError, SessionBusy, SessionNotFound
from safepoint.history.parts import user_message
from safepoint.serving.cancel_requests import reason_json, stopping
from safepoint.serving.cancel_service import clear_pause
from safepoint.serving.config import OnCrash, ServingConfig
from safepoint.serving.ids import SessionKey
from safepoint.serving.managed_run import GOES_ON_LATER, ManagedRun
from safepoint.serving.run_manager import RunManager
from safepoint.serving.submission import NothingToAnswer, Start, Submission, start
from safepoint.sessions.dispatch import SessionDispatcher
from safepoint.sessions.sealing import CRASH
from safepoint.sessions.session import Session
from safepoint.storage.run_records import RunRecord, RunState

_log = logging.getLogger("safepoint.server")

# A run that was live in so many workers in a row when they died is taken for what kills them.
_DEATHS = 3
_HOW = {RunState.LIVE: "taken_over", RunState.SUSPENDED: "handed_over"}
KILLER = Reason(f"{_DEATHS} workers in a row died while they ran it", Source.POLICY)


class Move(StrEnum):
    START = "start"
    RESUME = "resume"
    PAUSE = "pause"
    CLEAR = "clear"
    SUSPEND = "suspend"
    END = "end"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to do. `outcome` and `reason`: for a run that ends, or whose pause is cleared."""

    move: Move
    outcome: str = str(StopReason.CANCELLED)
    reason: Reason | None = None


def verdict(record: RunRecord, session: Session, wanted: Reason | None, config: ServingConfig) -> Verdict:
    """`session`: as it is stored, with every run of a dead process sealed. `wanted`: why it is to be cancelled."""
    runs = session.runs
    run = next((each for each in runs if each.run_id == record.run_id), None)
    if run is None:
        return _never_began(record, session, wanted, config)
    last, checkpoint = run is runs[-1], run.checkpoint
    reason = checkpoint.reason if checkpoint is not None else None
    match run.stop_reason:
        case StopReason.INTERRUPTED if last:
            return Verdict(Move.PAUSE) if wanted is None else Verdict(Move.CLEAR, reason=wanted)
        case StopReason.CANCELLED:
            pass
        case _:  # of a version that wrote the two one after the other, or left behind by a later turn
            return Verdict(Move.END, str(run.stop_reason))
    suspended = record.state is RunState.SUSPENDED or (reason is not None and reason.source in GOES_ON_LATER)
    if wanted is not None or not suspended or not last or checkpoint is None:
        return Verdict(Move.END, reason=wanted or reason)
    if reason == CRASH:
        if record.deaths >= _DEATHS:
            return Verdict(Move.END, str(StopReason.ERROR), KILLER)
        return Verdict(Move.RESUME) if config.on_crash == OnCrash.RESUME else Verdict(Move.END, reason=CRASH)
    return Verdict(Move.RESUME if config.resume_on_start else Move.SUSPEND)


def _never_began(record: RunRecord, session: Session, wanted: Reason | None, config: ServingConfig) -> Verdict:
    if _has_joined(record, session):
        return Verdict(Move.END, "joined")
    if wanted is not None:
        return Verdict(Move.END, reason=wanted)
    if any(run.origin == record.run_id for run in session.runs):
        return Verdict(Move.END, reason=Reason("it was continued as another run", Source.PREEMPT))
    if record.state is RunState.SUSPENDED and not config.resume_on_start:
        return Verdict(Move.SUSPEND)
    return Verdict(Move.START)


def _has_joined(record: RunRecord, session: Session) -> bool:
    """Is its message part of a run that was live when it came?"""
    submission = Submission.from_json(record.request)
    prompt = list(submission.prompt or ())
    if submission.if_busy != "steer" or not prompt or not session.runs:
        return False
    parts = user_message(prompt).parts
    said = zip(session.messages, session.times, strict=True)
    since = [message.parts for message, at in said if at >= record.created_at and message.role == "user"]
    return any(part[start : start + len(parts)] == parts for part in since for start in range(len(part)))


# -- doing it --------------------------------------------------------------------------------------------------------


async def take_over(manager: RunManager, record: RunRecord) -> bool:
    """Take the record of a process that is gone, and settle it.

    Raises `RecordMoved` if another process was faster, `StoreError`. Cancellation: as for `settle`.
    """
    return await settle(
        manager, await manager.storage.runs.take(record.run_id, manager.storage.worker, epoch=record.epoch)
    )


async def settle(manager: RunManager, record: RunRecord) -> bool:
    """Do what has to be done with a record of this process without a task. False: not yet, try again.

    Raises `StoreError`, `NoSuchApp`. Cancellation: the record stays open, and is settled the next time.
    """
    key = SessionKey.parse(record.session)
    assert key is not None, record.session
    try:
        dispatcher = await manager.dispatcher(key)
        if not dispatcher.busy:
            # Learns what others have written, and seals what they left open.
            await dispatcher.between(dispatcher.session.save_state)
    except SessionNotFound:
        await _end(manager, record, Verdict(Move.END, reason=Reason("its session was deleted", Source.POLICY)))
        return True
    except SessionBusy:
        return False
    wanted = stopping(await manager.storage.runs.cancel_requests(record.run_id))
    decided = verdict(record, dispatcher.session, wanted, manager.config)
    _log.info("the run %s is picked up: %s", record.run_id, decided.move)
    match decided.move:
        case Move.START | Move.RESUME:
            manager.operations.metrics.picked_up[_HOW.get(record.state, "accepted")] += 1
            await _adopt(manager, key, dispatcher, record, decided.move)
        case Move.END:
            await _end(manager, record, decided)
        case Move.SUSPEND:
            if record.state is not RunState.SUSPENDED:
                await manager.storage.runs.move(record.run_id, RunState.SUSPENDED, epoch=record.epoch)
        case Move.PAUSE | Move.CLEAR:
            if record.state is not RunState.PAUSED:
                outcome = str(StopReason.INTERRUPTED)
                record = await manager.storage.runs.move(
                    record.run_id, RunState.PAUSED, epoch=record.epoch, outcome=outcome
                )
            if decided.reason is not None:
                await clear_pause(manager, key, record, decided.reason)
    return True


async def _end(manager: RunManager, record: RunRecord, decided: Verdict) -> None:
    """Cancellation: it has ended, or not."""
    why = reason_json(decided.reason) if decided.reason is not None else None
    changes = {"outcome": decided.outcome, "reason": why, "ended_at": time.time()}
    await manager.storage.runs.move(record.run_id, RunState.ENDED, epoch=record.epoch, **changes)


async def _adopt(
    manager: RunManager, key: SessionKey, dispatcher: SessionDispatcher, record: RunRecord, move: Move
) -> None:
    """Let it run, when its turn comes. No client is connected, so no disconnect stops it. Cancellation: not adopted."""
    submission = Submission.from_json(record.request)
    try:
        begun = _make(manager, key, dispatcher.session, submission, move)
    except (CheckpointError, NothingToAnswer, ValueError) as error:
        why = Reason(f"it could not go on: {error}", Source.POLICY)
        return await _end(manager, record, Verdict(Move.END, str(StopReason.ERROR), why))
    begun = replace(begun, run=begun.run.under(record.run_id))
    try:
        turn = await manager.turn(begun, dispatcher.session, submission)
    except BaseException:
        begun.run.discard()
        raise
    try:
        if record.state is RunState.SUSPENDED:
            record = await manager.storage.runs.move(record.run_id, RunState.QUEUED, epoch=record.epoch)
    except BaseException:
        begun.run.discard()
        raise
    managed = ManagedRun(
        key, begun.run, begun.prompt, turn, by=record.by, epoch=record.epoch, record_state=record.state
    )
    managed.disconnect_policy.policy = "detach"
    managed.was_frozen = (record.reason or {}).get("source") == Source.FREEZE
    if move is Move.START:
        managed.state_delta = submission.state_delta or {}
    manager.serve(managed, dispatcher, "queue")


def _make(manager: RunManager, key: SessionKey, session: Session, submission: Submission, move: Move) -> Start:
    agent, gate = manager.agent_of(key), manager.gate(key)
    if move is Move.START:
        return start(agent, session, submission, manager.config.ladder, gate)
    assert session.checkpoint is not None
    run = agent.start(checkpoint=session.checkpoint, session=session, ladder=manager.config.ladder, switch=gate)
    return Start(run, "", continued=True)

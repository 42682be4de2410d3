"""Hand a live run over to another worker, without ending the process that has it."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from safepoint.errors import SafepointError
from safepoint.serving.cancel_requests import MOVED
from safepoint.serving.owner_requests import Question, ask_owner
from safepoint.serving.run_manager import RunManager
from safepoint.storage.placement import placement_of
from safepoint.storage.run_records import RunRecord, RunState
from safepoint.storage.workers import WorkerRow, workers_of


class CannotMove(SafepointError):
    """The run is not live, or no other worker can take it."""


async def move(manager: RunManager, record: RunRecord, to: str | None, wait_seconds: float) -> tuple[str, bool]:
    """The worker that is to take the run, and whether it has. `to`: that worker; None chooses the one with most room.

    Raises `CannotMove`, `OwnerSilent`. Cancellation: it is asked to move, or not.
    """
    placement = placement_of(manager.storage)
    workers = workers_of(manager.storage)
    if placement is None or workers is None:
        raise CannotMove("there is one machine only: runs move where processes share a PostgreSQL")
    if record.state is not RunState.LIVE:
        raise CannotMove(f"the run {record.run_id} is {record.state}: only a live run moves")
    target = chosen(await workers.all(), record, to)
    await placement.aim(record.run_id, target)
    async with manager.storage.changes(run=record.run_id) as changes:
        managed = manager.runs.get(record.run_id)
        if managed is not None and managed.live:
            managed.hand_over(MOVED, within=manager.config.shutdown_seconds)
        else:
            await ask_owner(manager, record.run_id, Question.MOVE)
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_seconds):
                async for _ in changes:
                    now = await manager.storage.runs.get(record.run_id)
                    if now is None or now.ended or now.owner == target:
                        return target, now is not None and now.owner == target
    return target, False


def chosen(workers: list[WorkerRow], record: RunRecord, to: str | None) -> str:
    """Raises `CannotMove`."""
    app = record.session.partition("/")[0]
    able = [
        each
        for each in workers
        if app in each.info.apps and each.info.room > 0 and not each.draining and each.lease_left > 0
    ]
    candidates = {each.id: each for each in able if each.id != record.owner}
    if to is not None:
        if to == record.owner:
            raise CannotMove(f"the run {record.run_id} is in the worker {to} already")
        if to not in candidates:
            raise CannotMove(f"the worker {to} can't take it: it is not there, drains, or lacks the app {app}")
        return to
    if not candidates:
        raise CannotMove(f"no other worker takes runs of the app {app}")
    return max(candidates.values(), key=lambda each: each.info.room - each.live).id

"""What a cancel changes in a session whose last run waits for a person. Pure."""

from __future__ import annotations

from safepoint.agent.journal import Ended
from safepoint.agent.pause import Clearing
from safepoint.agent.result import StopReason
from safepoint.agent.resume import cleared_error
from safepoint.agent.usage import Usage
from safepoint.storage.session_data import Change, Stored


def stands_at(stored: Stored, checkpoint_id: str) -> bool:
    """Is that the checkpoint from which its last run goes on?"""
    checkpoint = stored.runs[-1].checkpoint if stored.runs else None
    return checkpoint is not None and checkpoint.id == checkpoint_id


def pause_cleared(stored: Stored, clearing: Clearing, at: float) -> list[Change]:
    """The last run was cancelled, with what its model is told; nothing if it was answered, or a new message came."""
    run = stored.runs[-1] if stands_at(stored, clearing.checkpoint.id) else None
    if run is None or run.checkpoint is None:
        return []
    left = run.checkpoint.cleared(clearing.mark.reason, clearing.mark.successor)
    own = left.messages[run.index :]
    return [Ended(run.run_id, StopReason.CANCELLED, run.index, own, run.ledger, Usage(), left, at)]


def refuse_cleared(stored: Stored, continues: str | None) -> None:
    """Raise `CheckpointError` for a run that goes on from a pause that was cleared. A store could not say why."""
    last = stored.runs[-1] if stored.runs else None
    if continues is None or last is None or last.checkpoint is None or last.checkpoint.id == continues:
        return
    if last.stop_reason == StopReason.CANCELLED and last.checkpoint.asked:
        raise cleared_error(f"the checkpoint {continues}", last.checkpoint.reason)

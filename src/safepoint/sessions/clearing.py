"""What a cancel does to a session whose last run waits for a person: what it changes, and how that is stored."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import copy_context

from safepoint._core.clock import current_clock
from safepoint._core.reasons import Reason
from safepoint._core.supervisor import Supervisor
from safepoint.agent.checkpoint import Checkpoint
from safepoint.agent.journal import Ended
from safepoint.agent.pause import Clearing
from safepoint.agent.result import StopReason
from safepoint.agent.resume import cleared_error, continued
from safepoint.agent.usage import Usage
from safepoint.errors import SessionBusy, UsageError
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
    messages = left.messages[run.index :]
    return [Ended(run.run_id, StopReason.CANCELLED, run.index, messages, run.ledger, Usage(), left, at)]


def refuse_cleared(stored: Stored, continues: str | None) -> None:
    """Raise `CheckpointError` for a run that goes on from a pause that was cleared. A store could not say why."""
    last = stored.runs[-1] if stored.runs else None
    if continues is None or last is None or last.checkpoint is None or last.checkpoint.id == continues:
        return
    if last.stop_reason == StopReason.CANCELLED and last.checkpoint.asked:
        raise cleared_error(f"the checkpoint {continues}", last.checkpoint.reason)


_PATIENCE = 10.0  # seconds for the claimant of the session to write what it does there
_LOOK = 0.01


class PauseClearer:
    """Clears the pause of one session, once for everyone who asks.

    `change` claims the session, makes the changes from what is stored then, and returns what is stored after it. It
    raises `SessionBusy` while another run or change has the session.
    """

    def __init__(
        self,
        session_id: str,
        load: Callable[[], Awaitable[Stored]],
        known: Callable[[], Stored],
        change: Callable[[Callable[[Stored], list[Change]]], Awaitable[Stored]],
    ) -> None:
        self._session_id = session_id
        self._load = load
        self._known = known
        self._change = change
        self._clearing: Clearing | None = None

    async def wait(self) -> None:
        """Until no pause is being cleared. Cancellation: only the waiting ends."""
        if self._clearing is not None:
            await self._clearing.wait()

    def clear(self, checkpoint: Checkpoint, reason: Reason) -> Clearing | None:
        """Begin to clear a pause, or join the clearing under way; None if it was answered or cleared."""
        if self._clearing is not None and self._clearing.checkpoint.id == checkpoint.id:
            return self._clearing
        if not checkpoint.questions or not stands_at(self._known(), checkpoint.id):
            return None
        clearing = Clearing(checkpoint, reason, _running_loop())
        if not continued.clear(checkpoint.id, clearing.mark):
            return None
        self._clearing = clearing
        name = f"clearing of a pause of {self._session_id}"
        Supervisor.current().spawn(self._clear(clearing), name, copy_context())
        return clearing

    async def _clear(self, clearing: Clearing) -> None:
        """Cancellation: it is stored or it is not; in this process the pause is cleared."""
        cleared, error = True, None
        try:
            cleared = await self._store(clearing)
        except BaseException as failure:
            error = failure
        self._clearing = None
        if not cleared:
            continued.put_back(clearing.checkpoint.id)
        clearing.end(cleared=cleared, error=error)
        if error is not None and not isinstance(error, Exception):
            raise error

    async def _store(self, clearing: Clearing) -> bool:
        """False if the questions were answered first, or a new message came. Cancellation: stored or not."""
        until = asyncio.get_running_loop().time() + _PATIENCE
        while True:
            try:
                stored = await self._change(lambda stored: pause_cleared(stored, clearing, current_clock().wall()))
                return stands_at(stored, clearing.mark.successor)
            except SessionBusy:
                if not stands_at(await self._load(), clearing.checkpoint.id):
                    return False
                if asyncio.get_running_loop().time() >= until:
                    raise
            await asyncio.sleep(_LOOK)  # the claimant is about to write what it does there


def _running_loop() -> asyncio.AbstractEventLoop:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise UsageError("session.cancel() needs the event loop, to store it: call it inside asyncio.run(…)") from None

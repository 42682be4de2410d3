"""A run that waits for a person, from its end until its questions are answered or a cancel clears them.

    OPEN ──a resume, or a new message──▶ OVER
      └──a cancel──▶ CLEARING ──recorded──▶ CLEARED
                         └──another call was first──▶ OVER

The run has ended: its result and its terminal event stay as they are. One place decides which call was first: for a
bare checkpoint the list of checkpoints that were continued in this process, in a session its store.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from safepoint._core.asks import Ask, Request, fold
from safepoint._core.clock import current_clock
from safepoint._core.endings import Ending
from safepoint._core.latch import Latch
from safepoint._core.reasons import Reason, Source
from safepoint._core.receipts import Outcome, Receipt
from safepoint._core.tree import Node
from safepoint.agent.checkpoint import Checkpoint
from safepoint.agent.resume import Cleared, continued
from safepoint.errors import NotEnded, UsageError

# Asks that concern the task of the run. Asks from other sources concern its execution, and a paused run does not run.
_MEAN_THE_RUN = (Source.USER, Source.POLICY)


class Clearing:
    """One pause being cleared, shared by all its askers. `loop`: where it is cleared, if that takes time."""

    def __init__(self, checkpoint: Checkpoint, reason: Reason, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.checkpoint = checkpoint
        self.mark = Cleared(reason)
        self.loop = loop
        self.done = Latch()
        self.cleared = False
        self.ended_at = math.nan
        # Why it could not be stored; then only this process knows of it.
        self.error: BaseException | None = None

    def end(self, *, cleared: bool, error: BaseException | None = None) -> None:
        self.cleared, self.error, self.ended_at = cleared, error, current_clock().wall()
        self.done.set()

    async def wait(self) -> None:
        """Wait until the clearing is recorded. Cancellation: only the waiting ends."""
        await self.done.wait()


@runtime_checkable
class KeepsPauses(Protocol):
    """A session whose store decides between an answer and a cancel."""

    def clear_pause(self, checkpoint: Checkpoint, reason: Reason) -> Clearing | None:
        """Begin to clear it, or join a clearing under way; None if it was answered or cleared. Call it on the loop."""
        ...


class PauseReceipt(Receipt):
    """The receipt of an ask to a run that waits for a person. `clearing`: None if the ask was too late."""

    def __init__(self, node: Node, ask: Ask, clearing: Clearing | None) -> None:
        super().__init__(node, ask)
        self.accepted = clearing is not None
        self._clearing = clearing

    @property
    def effective(self) -> Request | None:
        return fold([self.asked]) if self.accepted else None

    @property
    def contributed(self) -> bool:
        return self._ending().cancelled

    @property
    def outcome(self) -> Outcome:
        return Outcome.STOPPED if self._ending().cancelled else Outcome.FINISHED_FIRST

    @property
    def acted_on(self) -> bool:
        return self.accepted

    def _ending(self) -> Ending:
        clearing = self._clearing
        if clearing is None:
            return Ending(cancelled=False, stopped_at=math.nan)
        if not clearing.done.is_set:
            raise NotEnded(f"the pause of {self.node.path} is being cleared: write `await receipt.wait()` first")
        return Ending(clearing.cleared, clearing.ended_at, save_error=clearing.error)

    def withdraw(self) -> bool:
        """Always False: the pause was cleared at once."""
        return False

    async def wait(self, timeout: float | None = None) -> Outcome:
        """As for every receipt. Cancellation: only the waiting ends; the ask stands."""
        if self._clearing is not None:
            async with asyncio.timeout(timeout):
                await self._clearing.wait()
        return self.outcome

    def wait_sync(self, timeout: float | None = None) -> Outcome:
        clearing = self._clearing
        if clearing is not None and not clearing.done.is_set:
            if clearing.loop is _running_loop():
                raise UsageError("wait_sync() would block the loop that it waits for: write `await receipt.wait()`")
            if not clearing.done.wait_sync(timeout):
                raise TimeoutError(f"the pause of {self.node.path} was not cleared within {timeout} s")
        return self.outcome


class Pause:
    """The pause of one run that has ended with questions. `session`: the run's session, if it has one."""

    def __init__(self, node: Node, checkpoint: Checkpoint, session: object) -> None:
        self._node = node
        self._checkpoint = checkpoint
        self._session = session if isinstance(session, KeepsPauses) else None
        # The last clearing that an ask to this run began.
        self.clearing: Clearing | None = None

    def cancel(self, ask: Ask) -> Receipt:
        """Clear the pause for this ask. Safe from any thread."""
        return PauseReceipt(self._node, ask, self._clear(ask.reason))

    def take_late(self) -> None:
        """Clear the pause for asks that arrived while the run ended; each keeps its receipt."""
        asks: Sequence[Ask] = self._node.log.standing().late
        meant = [ask for ask in asks if ask.reason.source in _MEAN_THE_RUN]
        clearing = self._clear(max((ask.reason for ask in meant), key=lambda why: why.strength)) if meant else None
        for ask in meant:
            self._node.hand_on(ask.id, PauseReceipt(self._node, ask, clearing))

    def _clear(self, reason: Reason) -> Clearing | None:
        session, checkpoint = self._session, self._checkpoint
        clearing: Clearing | None
        if session is None:
            clearing = Clearing(checkpoint, reason)
            if not continued.clear(checkpoint.id, clearing.mark):
                return None
            clearing.end(cleared=True)
        elif self._node.runs_in_this_thread():
            clearing = session.clear_pause(checkpoint, reason)
        else:
            clearing = self._clear_there(session, reason)
        self.clearing = clearing or self.clearing
        return clearing

    def _clear_there(self, session: KeepsPauses, reason: Reason) -> Clearing | None:
        """Clear from another thread or loop: the session belongs to its run's loop until that loop is closed."""
        outer = Clearing(self._checkpoint, reason)

        def begin() -> None:
            inner = session.clear_pause(self._checkpoint, reason)
            if inner is None:
                outer.end(cleared=False)
            else:
                inner.done.when_set(lambda: outer.end(cleared=inner.cleared, error=inner.error))

        if continued.is_over(self._checkpoint.id):
            return None
        if self._node.call_soon(begin):
            return outer
        return session.clear_pause(self._checkpoint, reason) if _running_loop() is not None else None


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None

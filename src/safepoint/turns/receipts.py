"""What a push and a stop return: what was asked, whether it was in time, and what came of it.

Both are settled once, in the loop's thread, when their outcome is true and recorded: a preempt when its turn is over, a
stop when the loop has ended and its record is saved. Every receipt is settled at the latest by the end of the loop.
"""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from enum import StrEnum
from typing import Generic, TypeVar

from safepoint._core.latch import Latch
from safepoint.errors import NotEnded, StoreError, UsageError, WaitInsideRun

# The loops that the current task or thread works for: it must not wait for them.
inside_loops: ContextVar[tuple[object, ...]] = ContextVar("safepoint_inside_loops", default=())

OutcomeT = TypeVar("OutcomeT")


class PushOutcome(StrEnum):
    """What came of the wish to preempt."""

    PREEMPTED = "preempted"
    NOTHING_TO_PREEMPT = "nothing_to_preempt"
    FINISHED_FIRST = "finished_first"


class StopOutcome(StrEnum):
    """What came of a stop."""

    CLEAN = "clean"
    STOPPED = "stopped"
    ESCALATED = "escalated"
    FINISHED_FIRST = "finished_first"


def refuse_inside(loop: object, what: str) -> None:
    """Waiting in a callback or a turn of the loop for something that comes after it would never end."""
    if any(loop is other for other in inside_loops.get()):
        raise WaitInsideRun(f"{what} was waited for inside the loop itself: return, and wait from outside")


def refuse_in_its_thread(event_loop: asyncio.AbstractEventLoop | None, instead: str) -> None:
    try:
        running = asyncio.get_running_loop()
    except RuntimeError:
        return
    if running is event_loop:
        raise UsageError(f"wait_sync() would block the loop that it waits for: write `await {instead}`")


class _Settled(Generic[OutcomeT]):
    """A value that comes once, for any number of waiters in any thread."""

    __slots__ = ("latch", "value")

    def __init__(self) -> None:
        self.latch = Latch()
        self.value: OutcomeT | None = None

    def settle(self, value: OutcomeT) -> None:
        if not self.latch.is_set:
            self.value = value
            self.latch.set()


class LoopReceipt(Generic[OutcomeT]):
    """The receipt of something asked of a loop."""

    def __init__(self, loop: object, *, accepted: bool = True) -> None:
        # What was asked came before the end; for a push, before the door was closed.
        self.accepted = accepted
        self._loop = loop
        self._outcome: _Settled[OutcomeT] = _Settled()
        self.event_loop: asyncio.AbstractEventLoop | None = None

    @property
    def settled(self) -> bool:
        return self._outcome.latch.is_set

    @property
    def outcome(self) -> OutcomeT:
        """What `wait` returns. Raises `NotEnded` before that is known."""
        if self._outcome.value is None:
            raise NotEnded("what comes of it is not known yet: write `await receipt.wait()` first")
        return self._outcome.value

    def settle(self, outcome: OutcomeT) -> None:
        self._outcome.settle(outcome)

    async def wait(self, timeout: float | None = None) -> OutcomeT:
        """Wait until the outcome is true and recorded. Raises TimeoutError after `timeout` seconds.

        Cancellation: only the waiting ends; what was asked stands.
        """
        if not self.settled:
            refuse_inside(self._loop, "the receipt")
            async with asyncio.timeout(timeout):
                await self._outcome.latch.wait()
        return self.outcome

    def wait_sync(self, timeout: float | None = None) -> OutcomeT:
        """As `wait`, from a thread that runs no event loop."""
        if not self.settled:
            refuse_inside(self._loop, "the receipt")
            refuse_in_its_thread(self.event_loop, "receipt.wait()")
            if not self._outcome.latch.wait_sync(timeout):
                raise TimeoutError(f"nothing has come of it within {timeout} s")
        return self.outcome


class StopReceipt(LoopReceipt[StopOutcome]):
    """`await receipt.wait()`: how the loop ended."""


class PushReceipt(LoopReceipt[PushOutcome]):
    """`accepted`: the loop has the item and accounts for it in its exit state.

    `await receipt.wait()`: was a turn preempted? `await receipt.saved()`: the item outlives this process.
    """

    def __init__(self, loop: object, *, stored: bool) -> None:
        super().__init__(loop)
        self._saved: _Settled[BaseException | bool] | None = _Settled() if stored else None

    def settle_saved(self, error: BaseException | None = None) -> None:
        if self._saved is not None:
            self._saved.settle(True if error is None else error)

    async def saved(self) -> None:
        """Wait until the item is in the loop's store, from where a process that dies does not take it along.

        Raises what kept it from being stored. Cancellation: only the waiting ends.
        """
        if self._saved is None:
            raise UsageError("the loop has no store, so nothing is saved: write TurnLoop(…, store=…, checkpoint_id=…)")
        if not self.accepted:
            raise StoreError("the item was refused, so it is not saved: look at receipt.accepted first")
        await self._saved.latch.wait()
        if isinstance(self._saved.value, BaseException):
            raise self._saved.value

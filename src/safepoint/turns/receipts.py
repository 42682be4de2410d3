"""What a push and a stop return: the request, whether it was in time, and its outcome.

Both are settled once, in the loop's thread, when their outcome is true and recorded: a preempt when its turn is over, a
stop when the loop has ended and its record is saved. Every receipt is settled at the latest by the end of the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from enum import StrEnum
from typing import Any, Generic, TypeAlias, TypeVar

from safepoint._core.latch import Latch
from safepoint.agent.result import RunResult
from safepoint.errors import NotEnded, StoreError, UsageError, WaitInsideRun
from safepoint.turns.exit import Saved, SavedState

# The loops that the current task or thread works for: it must not wait for their end.
inside_loops: ContextVar[tuple[object, ...]] = ContextVar("safepoint_inside_loops", default=())

OutcomeT = TypeVar("OutcomeT")


class PushOutcome(StrEnum):
    """The outcome of the request to preempt, or to join."""

    PREEMPTED = "preempted"
    NOTHING_TO_PREEMPT = "nothing_to_preempt"
    FINISHED_FIRST = "finished_first"
    JOINED = "joined"
    """The message is in the conversation of the turn that ran at the push."""
    QUEUED = "queued"
    """No model call followed in that turn, or there was none: the item waits like any other."""


class StopOutcome(StrEnum):
    """The outcome of a stop."""

    CLEAN = "clean"
    STOPPED = "stopped"
    ESCALATED = "escalated"
    FINISHED_FIRST = "finished_first"


class ItemOutcome(StrEnum):
    """The fate of an item that has no result."""

    PREEMPTED = "preempted"
    """A push preempted its turn, and the loop was made with `carry="drop"`."""
    DROPPED = "dropped"
    """A plan named it in neither of its lists."""
    FAILED = "failed"
    """Its turn failed, or it could not be written: it is in `exit.failed`."""
    LATE = "late"
    """It was pushed after a stop."""
    REFUSED = "refused"
    """Its type has no codec: `receipt.error` says so."""
    WITHDRAWN = "withdrawn"
    INTERRUPTED = "interrupted"
    """The loop ended while its turn could still continue."""
    UNHANDLED = "unhandled"
    """The loop ended before a turn had consumed it."""


ItemResult: TypeAlias = RunResult[Any] | ItemOutcome  # Any: of any output type


def refuse_inside(loop: object, what: str) -> None:
    """Refuse to wait, inside a callback or a turn of the loop, for something that comes after it."""
    if any(loop is other for other in inside_loops.get()):
        raise WaitInsideRun(f"{what} was waited for inside the loop itself: return, and wait from outside")


def refuse_in_its_thread(event_loop: asyncio.AbstractEventLoop | None, instead: str) -> None:
    try:
        running = asyncio.get_running_loop()
    except RuntimeError:
        return
    if running is event_loop:
        raise UsageError(f"a blocking wait would hold the loop that it waits for: write `await {instead}`")


class _Settled(Generic[OutcomeT]):
    """A value that is set once, for any number of waiters in any thread."""

    __slots__ = ("latch", "value")

    def __init__(self) -> None:
        self.latch = Latch()
        self.value: OutcomeT | None = None

    def settle(self, value: OutcomeT) -> None:
        if not self.latch.is_set:
            self.value = value
            self.latch.set()


class LoopReceipt(Generic[OutcomeT]):
    """The receipt of a request to a loop."""

    def __init__(self, loop: object, *, accepted: bool = True) -> None:
        # Whether the request came before the end; for a push, before the loop stopped taking items.
        self.accepted = accepted
        self._loop = loop
        self._outcome: _Settled[OutcomeT] = _Settled()
        self.event_loop: asyncio.AbstractEventLoop | None = None

    @property
    def settled(self) -> bool:
        return self._outcome.latch.is_set

    @property
    def outcome(self) -> OutcomeT:
        """The value that `wait` returns. Raises `NotEnded` before it is known."""
        if self._outcome.value is None:
            raise NotEnded("what comes of it is not known yet: write `await receipt.wait()` first")
        return self._outcome.value

    def settle(self, outcome: OutcomeT) -> None:
        self._outcome.settle(outcome)

    async def wait(self, timeout: float | None = None) -> OutcomeT:
        """Wait until the outcome is true and recorded. Raises TimeoutError after `timeout` seconds.

        Cancellation: only the waiting ends; the request stands.
        """
        await self._until(self._outcome.latch, timeout)
        return self.outcome

    def wait_sync(self, timeout: float | None = None) -> OutcomeT:
        """As `wait`, from a thread that runs no event loop."""
        self._until_sync(self._outcome.latch, "receipt.wait()", timeout)
        return self.outcome

    async def _until(self, latch: Latch, timeout: float | None) -> None:
        if not latch.is_set:
            refuse_inside(self._loop, "the receipt")
            async with asyncio.timeout(timeout):
                await latch.wait()

    def _until_sync(self, latch: Latch, instead: str, timeout: float | None) -> None:
        if not latch.is_set:
            refuse_inside(self._loop, "the receipt")
            refuse_in_its_thread(self.event_loop, instead)
            if not latch.wait_sync(timeout):
                raise TimeoutError(f"nothing has come of it within {timeout} s")


class StopReceipt(LoopReceipt[StopOutcome]):
    """`await receipt.wait()`: how the loop ended."""


class PushReceipt(LoopReceipt[PushOutcome]):
    """`accepted`: the loop has the item and accounts for it in its exit state.

    `await receipt.wait()`: whether a turn was preempted, or the item joined. `await receipt.saved()`: the item outlives
    this process. `await receipt.result()`: its result. `receipt.withdraw()` takes it back.
    """

    def __init__(self, loop: object, *, stored: bool) -> None:
        super().__init__(loop)
        # Why the item was refused, unless it was late.
        self.error: BaseException | None = None
        self.on_withdrawn: Callable[[PushReceipt], object] | None = None
        self.wants_to_join = False
        # The number of the item, once the loop has it.
        self.number: int | None = None
        self._saved: _Settled[BaseException | Saved] | None = _Settled() if stored else None
        self._result: _Settled[ItemResult] = _Settled()
        # A turn that consumes the item and a withdrawal each append here; the first entry wins. `list.append` is
        # atomic, so this needs no lock.
        self._claims: list[object] = []

    # -- what became of the item ---------------------------------------------------------------------------------------

    async def result(self, timeout: float | None = None) -> ItemResult:
        """Wait for the result of the turn that handled the item, or for the `ItemOutcome` that explains why none came.

        Raises TimeoutError after `timeout` seconds. Cancellation: only the waiting ends.
        """
        await self._until(self._result.latch, timeout)
        assert self._result.value is not None
        return self._result.value

    def result_sync(self, timeout: float | None = None) -> ItemResult:
        """As `result`, from a thread that runs no event loop."""
        self._until_sync(self._result.latch, "receipt.result()", timeout)
        assert self._result.value is not None
        return self._result.value

    def settle_result(self, result: ItemResult) -> None:
        self._result.settle(result)

    # -- taking it back ------------------------------------------------------------------------------------------------

    def withdraw(self) -> bool:
        """Take the item back. False if a turn has consumed it, or it was never accepted. Safe from any thread."""
        if not self.accepted or not self._claim(ItemOutcome.WITHDRAWN) or self.on_withdrawn is None:
            return False
        self.on_withdrawn(self)
        self.settle_saved(Saved(SavedState.NONE))
        self.settle_result(ItemOutcome.WITHDRAWN)
        return True

    @property
    def is_withdrawn(self) -> bool:
        return self._claims[:1] == [ItemOutcome.WITHDRAWN]

    def consume(self) -> bool:
        """A turn is about to use the item; False if it was withdrawn."""
        return self._claim(object())

    def put_back(self) -> None:
        """The item waits again. Called in the loop's thread, for an item that a turn had."""
        if not self.is_withdrawn:
            self._claims.clear()

    def _claim(self, mine: object) -> bool:
        if self._claims:
            return False
        self._claims.append(mine)
        return self._claims[:1] == [mine]

    # -- the store -----------------------------------------------------------------------------------------------------

    def settle_saved(self, saved: BaseException | Saved | None = None) -> None:
        if self._saved is not None:
            self._saved.settle(Saved(SavedState.SAVED) if saved is None else saved)

    async def saved(self, timeout: float | None = None) -> Saved:
        """Wait until the item is in the loop's store, where it survives the process.

        An item that was refused is not saved, and the answer is `refused`. For an accepted item this raises the error
        that kept it from being stored, and TimeoutError after `timeout` seconds. Cancellation: only the waiting ends.
        """
        latch = self._saved_latch()
        if latch is not None:
            async with asyncio.timeout(timeout):
                await latch.wait()
        return self._as_saved()

    def saved_sync(self, timeout: float | None = None) -> Saved:
        """As `saved`, from a thread that runs no event loop."""
        latch = self._saved_latch()
        if latch is not None and not latch.is_set:
            refuse_in_its_thread(self.event_loop, "receipt.saved()")
            if not latch.wait_sync(timeout):
                raise TimeoutError(f"the item was not saved within {timeout} s")
        return self._as_saved()

    def _saved_latch(self) -> Latch | None:
        if self._saved is None:
            raise UsageError("the loop has no store, so nothing is saved: write TurnLoop(…, store=…, checkpoint_id=…)")
        return self._saved.latch if self.accepted else None

    def _as_saved(self) -> Saved:
        if not self.accepted:
            return Saved(SavedState.REFUSED, self.error or StoreError("the item came after a stop: it is late"))
        assert self._saved is not None
        if isinstance(self._saved.value, BaseException):
            raise self._saved.value
        assert self._saved.value is not None
        return self._saved.value

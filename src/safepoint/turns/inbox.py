"""One list in which every push, stop and answer is recorded, from any thread. Its order decides who came first.

Asking takes no lock: `list.append` is atomic, so a push may come from a thread, a callback or a signal handler that
interrupts another push. The loop takes the entries out in their order, in its own thread. A push is in time if and
only if no entry that closes the door stands before it in the list, and whoever pushes knows that at once:

- before the first closing entry is appended, `_closing` is raised. Who does not see it after appending was in time;
- otherwise the list itself tells, or the loop has already looked and has written its verdict on the entry.
"""

from __future__ import annotations

from typing import Any, Generic, TypeAlias, TypeVar

from safepoint._core.asks import Ask
from safepoint.turns.exit import FailedTurn
from safepoint.turns.preempt import Preempt
from safepoint.turns.receipts import PushReceipt, StopReceipt
from safepoint.turns.turn import Turn

T = TypeVar("T")


class Recorded:
    """An entry. `in_time` is the loop's verdict, written before the entry leaves the list; None until then."""

    __slots__ = ("in_time",)
    closes = False

    def __init__(self) -> None:
        self.in_time: bool | None = None


class Pushed(Recorded, Generic[T]):
    """Somebody pushed. `preempt`: what is asked of the turn that was seen then. `joins`: the turn it is to join."""

    __slots__ = ("joins", "preempt", "receipt", "value")

    def __init__(
        self, value: T, receipt: PushReceipt, preempt: Preempt[T] | None, *, joins: Turn[T] | None = None
    ) -> None:
        super().__init__()
        self.value = value
        self.receipt = receipt
        self.preempt = preempt
        self.joins = joins


class Withdrawn(Recorded):
    """The item of that push was taken back; no turn may have it any more."""

    __slots__ = ("receipt",)

    def __init__(self, receipt: PushReceipt) -> None:
        super().__init__()
        self.receipt = receipt


class Decided(Recorded, Generic[T]):
    """What is to become of a failed turn, or of all of them."""

    __slots__ = ("failed", "requeue")

    def __init__(self, failed: FailedTurn[T] | None, *, requeue: bool) -> None:
        super().__init__()
        self.failed = failed
        self.requeue = requeue


class StopAsked(Recorded):
    """Somebody asked the loop to stop. Only one that waits for idleness leaves the door open.

    `idle_for=0`: as soon as nothing is left to do, as leaving the loop's block asks for.
    """

    __slots__ = ("ask", "cause", "closes", "idle_for", "receipt", "skip_checkpoint")

    def __init__(
        self,
        ask: Ask | None,
        receipt: StopReceipt,
        *,
        idle_for: float | None = None,
        skip_checkpoint: bool = False,
        cause: str | None = None,
    ) -> None:
        super().__init__()
        self.ask = ask
        self.receipt = receipt
        self.idle_for = idle_for
        self.skip_checkpoint = skip_checkpoint
        self.cause = cause
        self.closes = idle_for is None


class Answered(Recorded):
    """A person answered a question of the turn that waits."""

    __slots__ = ("question", "value")

    def __init__(self, question: str, value: Any) -> None:  # Any: whatever the person answered
        super().__init__()
        self.question = question
        self.value: Any = value  # Any: as above


class Closing(Recorded):
    """The loop itself closes the door: it was idle for long enough, or it is about to end."""

    __slots__ = ()
    closes = True


Entry: TypeAlias = "Pushed[T] | StopAsked | Answered | Closing | Withdrawn | Decided[T]"


class Inbox(Generic[T]):
    """The list. `put` and `in_time` from anywhere; `take` and `finish` in the loop's thread."""

    def __init__(self) -> None:
        self._entries: list[Entry[T]] = []
        self._closing = False
        # Set when the loop has taken the entry that closes the door, before that entry leaves the list.
        self._closed = False
        # The loop has ended and takes nothing any more.
        self.finished = False

    @property
    def closed(self) -> bool:
        """Was a closing entry put in, or is one about to be?"""
        return self._closing

    def waiting(self) -> list[Entry[T]]:
        """What the loop has not heard yet, safe in any thread."""
        return self._entries.copy()

    def put(self, entry: Entry[T]) -> None:
        if entry.closes:
            self._closing = True
        if not self.finished:
            self._entries.append(entry)

    def in_time(self, entry: Entry[T]) -> bool:
        """Does the entry precede the closing of the door?"""
        if not self._closing:
            return True
        waiting = self._entries.copy()
        # Read in this order: an entry that is gone from the list, or that stood before the closing entry in it, was
        # given its verdict before `_closed` was set.
        closed, verdict = self._closed, entry.in_time
        if verdict is not None:
            return verdict
        return not closed and not any(other.closes for other in waiting[: waiting.index(entry)])

    def take(self) -> list[Entry[T]]:
        """All entries so far, each with its verdict."""
        taken = self._entries.copy()
        for entry in taken:
            entry.in_time = not self._closed
            if entry.closes:
                self._closed = True
        del self._entries[: len(taken)]  # what was appended meanwhile stays
        return taken

    def finish(self) -> list[Entry[T]]:
        """Nothing is taken from now on. What came too late even for that is returned, and changes nothing."""
        self.finished = True
        return self.take()


class LateItems(Generic[T]):
    """Items that were pushed after the door was closed, until somebody takes the list and seals it."""

    def __init__(self) -> None:
        self._entries: list[Pushed[T] | None] = []
        self._sealing = False

    def add(self, entry: Pushed[T]) -> bool:
        """False if the list is sealed: the item is nowhere."""
        self._entries.append(entry)
        if not self._sealing:
            return True
        entries = self._entries.copy()
        return None not in entries[: entries.index(entry)]

    def take(self) -> list[T]:
        """Seal the list and return it; the same list each time."""
        self._sealing = True
        self._entries.append(None)
        entries = self._entries.copy()
        return [entry.value for entry in entries[: entries.index(None)] if entry is not None]

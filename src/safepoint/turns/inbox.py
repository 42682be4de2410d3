"""One list in which every push, stop and answer is recorded, from any thread. Its order decides which came first.

Asking takes no lock: `list.append` is atomic, so a push may come from a thread, a callback or a signal handler that
interrupts another push. The loop takes the entries out in their order, in its own thread. A push is in time if and
only if no closing entry stands before it in the list, and the caller of `push` knows that at once:

- before the first closing entry is appended, `_closing` is raised. A push that does not see it after appending was in
  time;
- otherwise the list itself decides, or the loop has already read the entry and has written its verdict on it.
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
    """An item was pushed. `preempt`: the ask for the turn that the push saw. `joins`: the turn it is to join."""

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
    """The item of that push was withdrawn; no turn may consume it."""

    __slots__ = ("receipt",)

    def __init__(self, receipt: PushReceipt) -> None:
        super().__init__()
        self.receipt = receipt


class Decided(Recorded, Generic[T]):
    """The user's decision about a failed turn, or about all of them."""

    __slots__ = ("failed", "requeue")

    def __init__(self, failed: FailedTurn[T] | None, *, requeue: bool) -> None:
        super().__init__()
        self.failed = failed
        self.requeue = requeue


class StopAsked(Recorded):
    """The loop was asked to stop. Only a stop that waits for idleness still lets items in.

    `idle_for=0`: stop as soon as nothing is left to do, as leaving the loop's block does.
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

    def __init__(self, question: str, value: Any) -> None:  # Any: the person's answer
        super().__init__()
        self.question = question
        self.value: Any = value


class Closing(Recorded):
    """The loop itself stops taking items: it was idle for long enough, or it is about to end."""

    __slots__ = ()
    closes = True


Entry: TypeAlias = "Pushed[T] | StopAsked | Answered | Closing | Withdrawn | Decided[T]"


class Inbox(Generic[T]):
    """The list. Call `put` and `in_time` from anywhere; `take` and `finish` in the loop's thread."""

    def __init__(self) -> None:
        self._entries: list[Entry[T]] = []
        self._closing = False
        # Set when the loop has taken the closing entry, before that entry leaves the list.
        self._closed = False
        # Whether the loop has ended and takes no more entries.
        self.finished = False

    @property
    def closed(self) -> bool:
        """Whether a closing entry was put in, or is about to be."""
        return self._closing

    def waiting(self) -> list[Entry[T]]:
        """The entries that the loop has not read yet, safe in any thread."""
        return self._entries.copy()

    def put(self, entry: Entry[T]) -> None:
        if entry.closes:
            self._closing = True
        if not self.finished:
            self._entries.append(entry)

    def in_time(self, entry: Entry[T]) -> bool:
        """Whether the entry precedes the closing entry."""
        if not self._closing:
            return True
        waiting = self._entries.copy()
        # Read in this order: an entry that has left the list, or that stood before the closing entry, got its verdict
        # before `_closed` was set.
        closed, verdict = self._closed, entry.in_time
        if verdict is not None:
            return verdict
        return not closed and not any(other.closes for other in waiting[: waiting.index(entry)])

    def take(self) -> list[Entry[T]]:
        """All entries so far, each with its verdict."""
        entries = self._entries.copy()
        for entry in entries:
            entry.in_time = not self._closed
            if entry.closes:
                self._closed = True
        del self._entries[: len(entries)]  # entries appended meanwhile stay
        return entries

    def finish(self) -> list[Entry[T]]:
        """Take no more entries. Entries that arrived too late even for that are returned, and change nothing."""
        self.finished = True
        return self.take()


class LateItems(Generic[T]):
    """Items that were pushed after the loop was closed to items, until a caller takes the list and seals it."""

    def __init__(self) -> None:
        self._entries: list[Pushed[T] | None] = []
        self._sealing = False

    def add(self, entry: Pushed[T]) -> bool:
        """Add a late item; False if the list is sealed and the item was not added."""
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

"""A loop's own events, as one closed union; the events of its runs report what its turns do.

A reader is an async iterator that begins where it was made and ends after `LoopEnded`. A reader cannot hold the
loop: a reader that falls `LIMIT` events behind loses the oldest, and is told how many by `EventsMissed`.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import AsyncIterator
from typing import Generic, TypeAlias, TypeVar

from safepoint._values import Value
from safepoint.errors import UsageError
from safepoint.turns.exit import ExitState
from safepoint.turns.turn import TurnOutcome

T = TypeVar("T")

LIMIT = 10_000


class TurnStarted(Value, Generic[T], frozen=True):
    """The run of a turn has begun."""

    turn: int
    run_id: str
    consumed: tuple[T, ...]


class TurnEnded(Value, Generic[T], frozen=True):
    """A turn is over. Its outcome is the fate of the items in `consumed`."""

    turn: int
    outcome: TurnOutcome
    consumed: tuple[T, ...]


class ItemsDropped(Value, Generic[T], frozen=True):
    """A plan named these items in neither of its lists."""

    turn: int
    items: tuple[T, ...]


class EventsMissed(Value, frozen=True):
    """This reader was too slow: that many events were dropped here."""

    count: int


class LoopEnded(Value, Generic[T], frozen=True):
    """The one last event."""

    exit: ExitState[T]


LoopEvent: TypeAlias = "TurnStarted[T] | TurnEnded[T] | ItemsDropped[T] | EventsMissed | LoopEnded[T]"


class LoopReader(Generic[T]):
    """One reader of a loop's events. Cancellation: no event is lost; this reader can continue."""

    def __init__(self, hub: LoopHub[T]) -> None:
        self._hub = hub
        self._buffer: deque[LoopEvent[T]] = deque()
        self._missed = 0
        self._ended = False
        self._waiter: asyncio.Future[None] | None = None

    def put(self, event: LoopEvent[T]) -> None:
        self._buffer.append(event)
        if len(self._buffer) > LIMIT:
            self._buffer.popleft()
            self._missed += 1
        self._ended = self._ended or isinstance(event, LoopEnded)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def end(self) -> None:
        self._ended = True

    def __aiter__(self) -> AsyncIterator[LoopEvent[T]]:
        return self

    async def __anext__(self) -> LoopEvent[T]:
        """The next event. Cancellation: no event is lost; this reader can continue."""
        if not self._ended:
            self._hub.check_place()
        while not self._buffer:
            if self._ended:
                raise StopAsyncIteration
            if self._waiter is not None:
                raise UsageError("another task waits for the next event here: call loop.events() once for each reader")
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if self._missed:
            missed, self._missed = self._missed, 0
            return EventsMissed(missed)
        return self._buffer.popleft()


class LoopHub(Generic[T]):
    """Passes events to the attached readers, on the event loop where the turns run: `home`, once they began."""

    def __init__(self) -> None:
        self.home: asyncio.AbstractEventLoop | None = None
        self._readers: list[weakref.ref[LoopReader[T]]] = []
        self._ended = False

    def read(self) -> LoopReader[T]:
        reader: LoopReader[T] = LoopReader(self)
        if self._ended:
            reader.end()
        self._readers = [ref for ref in self._readers if ref() is not None]
        self._readers.append(weakref.ref(reader))
        return reader

    def check_place(self) -> None:
        """Refuse to read a live loop on another event loop: events are queued and readers woken at its home."""
        if self.home is not None and asyncio.get_running_loop() is not self.home:
            raise UsageError(
                "the loop lives on another event loop: read its events there, and hand on what others need, for "
                "example with queue.Queue()"
            )

    def emit(self, event: LoopEvent[T]) -> None:
        self._ended = isinstance(event, LoopEnded)
        for ref in self._readers:
            if (reader := ref()) is not None:
                reader.put(event)

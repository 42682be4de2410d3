"""How events reach readers without ever holding the run.

The hub keeps the events that must not be lost (starts, ends, asks, rungs) and passes every event to the attached
readers. Text is not kept twice: a late reader gets the events so far, then one piece with all the text of the reply
under way, then the live events. A reader's buffer is bounded: text pieces that it has not fetched are merged into one,
and beyond the limit they are dropped and counted in a `Lagged` event.

All of this happens on the run's own event loop, without a lock: while the run lives, a reader on another loop or in
another thread is refused. Once the run has ended, its events can be read anywhere.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import TypeAlias

from msgspec.structs import replace

from safepoint._core.pace import MOST_AT_ONCE
from safepoint._core.tree import Node
from safepoint.agent.events import (
    Event,
    Lagged,
    ModelCallEnded,
    ReasoningStreamed,
    RunEnded,
    TextStreamed,
    ToolOutputStreamed,
)
from safepoint.errors import UsageError

MAX_BUFFERED_CHARS = 1_000_000

_log = logging.getLogger("safepoint")

Piece: TypeAlias = TextStreamed | ReasoningStreamed | ToolOutputStreamed
_PIECES = (TextStreamed, ReasoningStreamed, ToolOutputStreamed)


class EventReader:
    """One reader's place in the stream: an async iterator that ends after the terminal event.

    Cancellation: leaving only detaches this reader; the run and its other readers continue.
    """

    def __init__(self, hub: EventHub, backlog: list[Event], *, nested: bool, ended: bool) -> None:
        self._hub = hub
        self._nested = nested
        self._buffer: deque[Event] = deque([each for each in backlog if nested or each.run_id == hub.run_id])
        self._pieces: list[str] = []
        self._chars = 0
        self._missed = 0
        self._lagged_at: Piece | None = None
        self._ended = ended
        self._waiter: asyncio.Future[None] | None = None
        self._fetched = 0

    def speaks(self, event: Event) -> bool:
        """Whether the event is about the run whose words are read here, or about a child that speaks for it."""
        return event.run_id in self._hub.speakers

    def put(self, event: Event) -> None:
        if not (self._nested or event.run_id == self._hub.run_id):
            return
        if isinstance(event, _PIECES):
            self._put_text(event)
        else:
            self._flush()
            self._buffer.append(event)
            if isinstance(event, RunEnded) and event.run_id == self._hub.run_id:
                self._ended = True
        if self._waiter is not None:
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _put_text(self, event: Piece) -> None:
        # A gap lasts until the reader has caught up: later text must not be joined to text from before the gap.
        if self._lagged_at is not None or self._chars + len(event.text) > MAX_BUFFERED_CHARS:
            self._missed += 1
            self._lagged_at = event
            return
        self._chars += len(event.text)
        tail = self._buffer[-1] if self._buffer else None
        if tail is not None and _speaker(tail) == _speaker(event):
            # Joined only when fetched: merging a long text piece by piece would take quadratic time.
            self._pieces.append(event.text)
        else:
            self._flush()
            self._buffer.append(event)

    def _flush(self) -> None:
        if self._pieces:
            tail = self._buffer[-1]
            assert isinstance(tail, _PIECES)
            self._buffer[-1] = replace(tail, text=tail.text + "".join(self._pieces))
            self._pieces.clear()
        at = self._lagged_at
        if at is not None:
            self._buffer.append(Lagged(run_id=at.run_id, path=at.path, seq=at.seq, time=at.time, missed=self._missed))
            self._missed, self._lagged_at = 0, None

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        """The next event. Cancellation: no event is lost; this reader can continue."""
        if not self._ended:
            self._hub.check_place()
        self._fetched += 1
        if self._fetched % MOST_AT_ONCE == 0:  # a long backlog is read without waiting; let other tasks run
            await asyncio.sleep(0)
        while not self._buffer:
            self._flush()
            if self._buffer:
                break
            if self._ended:
                raise StopAsyncIteration
            if self._waiter is not None:
                raise UsageError("another task waits for the next event here: call run.events() once for each reader")
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if len(self._buffer) == 1 and (self._pieces or self._lagged_at is not None):
            self._flush()
        event = self._buffer.popleft()
        if isinstance(event, _PIECES):
            self._chars -= len(event.text)
        return event

    async def aclose(self) -> None:
        """Detach this reader. Never waits. Cancellation: the reader is detached."""
        self.detach()

    def detach(self) -> None:
        self._ended = True
        self._hub.drop(self)
        self._wake()

    def __del__(self) -> None:
        self._hub.drop(self)


def _speaker(event: Event) -> tuple[type[Event], str, str | None]:
    """The source of these words; only words of one source are joined."""
    return type(event), event.run_id, event.call_id if isinstance(event, ToolOutputStreamed) else None


class EventHub:
    """The events of one run and of everything below it."""

    def __init__(self, node: Node, parent: EventHub | None) -> None:
        self.node = node
        self.run_id = node.id
        self._parent = parent
        # The hub that numbers the events; None if it is this one, to avoid a reference cycle.
        self._top: EventHub | None = (parent._top or parent) if parent is not None else None
        self._kept: list[Event] = []
        # By their ids. Adding, dropping and copying are atomic: the garbage collector drops readers at any moment.
        self._readers: dict[int, weakref.ref[EventReader]] = {}
        self._listeners: list[Callable[[Event], object]] = []
        # The text that each streaming run has produced so far, for late readers.
        self._under_way: dict[str, Callable[[], Event | None]] = {}
        self._last = 0
        self._ended = False
        # The runs whose words are this run's answer: this one, or a child that speaks for it.
        self.speakers = {node.id}

    def let_speak(self, run_id: str) -> None:
        """Count the words of that run as this run's own, and so on upwards wherever this run speaks for its parent."""
        hub: EventHub | None = self
        while hub is not None:
            hub.speakers.add(run_id)
            above = hub._parent
            hub = above if above is not None and hub.run_id in above.speakers else None

    @property
    def is_topmost(self) -> bool:
        """Whether no other run receives this run's events."""
        return self._parent is None

    @property
    def is_heard(self) -> bool:
        """Whether a reader or a listener takes these events. Pieces of text are made for them only."""
        hub: EventHub | None = self
        while hub is not None:
            if hub._readers or hub._listeners:
                return True
            hub = hub._parent
        return False

    def number(self) -> int:
        """The next sequence number of the whole tree."""
        top = self._top or self
        top._last += 1
        return top._last

    def emit(self, event: Event) -> None:
        """Pass the event to the readers here and of every run above."""
        keep = not isinstance(event, _PIECES)
        hub: EventHub | None = self
        while hub is not None:
            if keep and not hub._ended:  # an abandoned sub-agent may still emit, but not here
                hub._kept.append(event)
            if hub._readers or hub._listeners:
                hub._tell(event)
            hub = hub._parent
        if isinstance(event, RunEnded):
            self._ended = True

    def _tell(self, event: Event) -> None:
        for ref in () if self._ended else tuple(self._readers.values()):
            reader = ref()
            if reader is not None:
                reader.put(event)
        for listener in self._listeners:
            try:
                listener(event)
            except Exception:
                _log.exception("a listener failed at %s of %s", type(event).__name__, event.path)

    def say_under_way(self, run_id: str, so_far: Callable[[], Event | None]) -> None:
        """That run streams a reply from now on; `so_far` returns its text as one event."""
        hub: EventHub | None = self
        while hub is not None:
            hub._under_way[run_id] = so_far
            hub = hub._parent

    def said(self, run_id: str) -> None:
        """That reply is over; another event carries it whole."""
        hub: EventHub | None = self
        while hub is not None:
            hub._under_way.pop(run_id, None)
            hub = hub._parent

    def listen(self, listener: Callable[[Event], object]) -> None:
        """Call the listener for every event, where it happens: a start event comes in the very task that starts.

        The listener must not wait. Its exceptions are logged and change nothing.
        """
        self._listeners.append(listener)

    def read(self, *, nested: bool) -> EventReader:
        """A new reader, from the first event on: of this run or, with `nested`, also of the runs inside it."""
        backlog = [*self._kept, *(() if self._ended else self._partials())]
        reader = EventReader(self, backlog, nested=nested, ended=self._ended)
        if not self._ended:
            self._readers[id(reader)] = weakref.ref(reader)
        return reader

    def check_place(self) -> None:
        """Refuse to read a live run outside its own loop: there events are queued and readers woken."""
        if self.node.lives_elsewhere():
            raise UsageError(
                f"{self.node.path} lives on another event loop: read its events and text there, and hand on what "
                "others need, for example with queue.Queue(); once it has ended they can be read anywhere"
            )

    def kept(self, *, nested: bool) -> tuple[Event, ...]:
        """All events so far except pieces of text; `nested` as for `read`."""
        return tuple(self._kept) if nested else tuple([each for each in self._kept if each.run_id == self.run_id])

    def drop(self, reader: EventReader) -> None:
        self._readers.pop(id(reader), None)

    def _partials(self) -> list[Event]:
        return [event for say in tuple(self._under_way.values()) if (event := say()) is not None]


class TextReader:
    """An async iterator of pieces of text. A late or slow reader gets the whole text too."""

    def __init__(self, reader: EventReader) -> None:
        self._reader = reader
        self._seen = 0
        # After a gap the rest is taken from the complete reply, in one piece.
        self._gap = False

    def __aiter__(self) -> TextReader:
        return self

    async def aclose(self) -> None:
        """Detach, as `aclosing(run.text())` does. Never waits. Cancellation: the reader is detached."""
        self._reader.detach()

    async def __anext__(self) -> str:
        """The next piece. Cancellation: only the reading ends."""
        while True:
            event = await anext(self._reader)
            if not self._reader.speaks(event):
                continue
            if isinstance(event, Lagged):
                self._gap = True
            if isinstance(event, TextStreamed) and not self._gap:
                self._seen += len(event.text)
                return event.text
            if isinstance(event, ModelCallEnded):
                whole = event.message.text if event.message is not None else ""
                rest, self._seen, self._gap = whole[self._seen :], 0, False
                if rest:
                    return rest

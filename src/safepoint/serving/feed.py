"""The feed of one run: its events in order, read by position and not through queues.

A run appends whole events, which are stored already, and the text of the message that is under way. A viewer is a
position in the feed and nothing else: a slow viewer finds several pieces of text joined into one, or the whole message
in their place. So a viewer costs no memory, cannot hold the run, and coming back later is the same as being slow.

The feed tells its run when the first viewer comes and when the last one leaves, however a viewer leaves.

Frames carry Safepoint's own events. A protocol encodes a frame with `frame.encoded(encoder)`: once for each wire,
however many viewers there are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import TypeAlias

from safepoint._values import Value
from safepoint.serving.events import Failure, FeedEvent, MessageEvent, PartialText, ToolOutput, Turn

# A viewer takes no more text than this at once, however far behind it is.
_MOST_WORDS = 262_144
_MOST_OUTPUT = 262_144
_PIECE_COSTS = 100  # to keep a piece at all, however short it is

Encoder: TypeAlias = Callable[[FeedEvent], str]


class Frame:
    """An event for viewers. `seq`: how many whole events a viewer has seen after it; it can come back from there."""

    __slots__ = ("_encoded", "event", "seq")

    def __init__(self, seq: int, event: FeedEvent) -> None:
        self.seq = seq
        self.event = event
        self._encoded: dict[Encoder, str] = {}

    @property
    def last(self) -> bool:
        """Does it say how the run ended?"""
        return isinstance(self.event, MessageEvent) and self.event.end is not None

    def encoded(self, encode: Encoder) -> str:
        """As `encode` writes it; called once for all viewers. `encode` is a function of a module, not a closure."""
        text = self._encoded.get(encode)
        if text is None:
            text = self._encoded[encode] = encode(self.event)
        return text


class Cursor(Value, frozen=True):
    """Where a viewer is in a feed: how many whole events it has read, how many pieces of output, and how many pieces of
    the text under way. `under_way`: which text that is. It holds for one feed of one process.
    """

    whole: int = 0
    output: int = 0
    under_way: int = 0
    pieces: int = 0


class Feed:
    """The events of one run. `closed`: no more will come; `failure`: why the run failed, if it did.

    `first`: the number before its first event. The feed of a run that another process took over, or that is read from
    the storage, is numbered further up: an event may have been told in two forms, and is stored in one. So a position
    in another feed is recognised, and from there everything is told again, with the same event ids.
    `watched` is called when the first viewer comes (True) and when the last one has left (False).
    """

    def __init__(self, turn: Turn, first: int = 0, watched: Callable[[bool], object] | None = None) -> None:
        self.turn = turn
        self.first = first
        self.whole: list[MessageEvent] = []
        self.closed = False
        self.failure: Failure | None = None
        self.joined: Feed | None = None
        # What viewers are told beside the events, in a comment: what they cannot see at present.
        self.remark: str | None = None
        # Counts the messages under way: text of an earlier one is no part of this one.
        self.under_way = 0
        self._tell_watched = watched
        # By position: the number of the latest form of each event.
        self._numbers: dict[int, int] = {}
        # The number of the event that says how the run ended.
        self.last: int | None = None
        self._words: list[tuple[bool, str]] = []
        self._piece: PartialText | None = None  # the latest piece of the text under way
        self._viewers: set[Viewer] = set()
        # Whole events as frames, for as long as there is a viewer.
        self._frames: dict[int, Frame] = {}
        self._latest: tuple[int, int, int, Frame] | None = None  # read, of how many, up to, and the text
        self.output = OutputBuffer()

    # -- the run's side ------------------------------------------------------------------------------------------------

    def append(self, event: MessageEvent) -> None:
        """A whole event; it may replace an earlier form of itself."""
        if self.closed:
            return
        known, number = self._numbers.get(event.position), len(self.whole)
        if known is not None and self.whole[known] == event:
            return
        self._numbers[event.position] = number
        if event.end is not None:
            self.last = number
        self.whole.append(event)
        self.begin()
        for viewer in self._viewers:
            viewer.wake()

    def begin(self) -> None:
        """A message begins: text that was under way is no part of it."""
        self.under_way += 1
        self._words = []
        self._latest = None

    def append_partial(self, piece: PartialText) -> None:
        """More text of the message under way."""
        if self.closed:
            return
        if self._piece is None or piece.position != self._piece.position:
            self.begin()  # of another message than the text before, which will be told whole
        self._piece = piece
        self._words.append((piece.thought, piece.text))
        self._wake_for_partials()

    def append_output(self, output: ToolOutput) -> None:
        """More output of a running tool."""
        if not self.closed:
            self.output.add(len(self.whole), output)
            self._wake_for_partials()

    def close(self, failure: Failure | None = None) -> None:
        """No more will come."""
        self.failure = failure
        self.closed = True
        if not self._viewers:
            self.output.clear()
        for viewer in self._viewers:
            viewer.wake()

    def say(self, remark: str | None) -> None:
        """What viewers are to be told beside the events; None if nothing is to be told any more."""
        if remark != self.remark:
            self.remark = remark
            for viewer in self._viewers:
                viewer.wake()

    def join(self, other: Feed) -> None:
        """The message has joined another run: viewers read on at the end of that run's feed."""
        self.joined = other
        for viewer in list(self._viewers):
            viewer.follow(other)

    def _wake_for_partials(self) -> None:
        for viewer in self._viewers:
            if viewer.partials:
                viewer.wake()

    # -- the viewers' side ---------------------------------------------------------------------------------------------

    def view(self, after: int = 0, *, partials: bool = True, several: asyncio.Event | None = None) -> Viewer:
        """A viewer that has seen that many whole events. Use it in a `with` block, at whose end it leaves.

        `partials`: whether it wants text before the message is whole. `several`: the event that wakes a reader of
        several feeds; it gets the last event of each feed only when the feed is closed, which is how it learns that
        the run is over.
        """
        if self.joined is not None:
            return self.joined.view(after, partials=partials, several=several)
        viewer = Viewer(self, self.seen_by(after), partials=partials, several=several)
        self.enter(viewer)
        return viewer

    def view_from(self, cursor: Cursor) -> Viewer:
        """A viewer that goes on where another one of this feed has stopped."""
        viewer = Viewer(self, min(cursor.whole, len(self.whole)), partials=True, several=None)
        viewer.go_to(cursor)
        self.enter(viewer)
        return viewer

    def number(self, count: int) -> int:
        """The number of a viewer that has seen the first `count` whole events."""
        return self.first + count

    def seen_by(self, number: int) -> int:
        """How many whole events a viewer has seen that comes back with that number; 0 for one of another feed."""
        seen = number - self.first
        return seen if 0 <= seen <= len(self.whole) else 0

    @property
    def viewers(self) -> int:
        return len(self._viewers)

    def enter(self, viewer: Viewer) -> None:
        self._viewers.add(viewer)
        if len(self._viewers) == 1 and self._tell_watched is not None:
            self._tell_watched(True)

    def leave(self, viewer: Viewer) -> None:
        if viewer not in self._viewers:
            return
        self._viewers.remove(viewer)
        if not self._viewers:
            self._frames, self._latest = {}, None
            if self.closed:
                self.output.clear()
            if self._tell_watched is not None and self.joined is None:
                self._tell_watched(False)

    def frame(self, number: int) -> Frame:
        """A whole event by its number, from 0."""
        frame = self._frames.get(number)
        if frame is None:
            frame = Frame(self.number(number + 1), self.whole[number])
            if self._viewers:
                self._frames[number] = frame
        return frame

    def words(self, heard: int) -> tuple[int, Frame] | None:
        """The text under way after its first `heard` pieces, up to a change of kind; and how many are read then."""
        piece = self._piece
        if heard >= len(self._words) or piece is None:
            return None
        if self._latest is not None and self._latest[:2] == (heard, len(self._words)):
            return self._latest[2:]
        thought, size, end = self._words[heard][0], 0, heard
        while end < len(self._words) and self._words[end][0] == thought and size < _MOST_WORDS:
            size += len(self._words[end][1])
            end += 1
        text = "".join(text for _, text in self._words[heard:end])
        event = PartialText(self.turn, piece.position, piece.at, text, thought, piece.speaker, piece.step)
        frame: Frame = Frame(self.number(len(self.whole)), event)
        self._latest = (heard, len(self._words), end, frame)
        return self._latest[2:]

    def output_frame(self, number: int, after: int) -> tuple[int, Frame] | None:
        """Output from that piece on, as `OutputBuffer.take` finds it; and the number of the next piece."""
        found = self.output.take(number, after)
        if found is None:
            return None
        following, whole, event = found
        return following, Frame(self.number(whole), event)


class Viewer:
    """One reader of a feed, and its position there."""

    def __init__(self, feed: Feed, after: int, *, partials: bool, several: asyncio.Event | None) -> None:
        self.feed = feed
        self.gone = False
        self.partials = partials
        self._next = after
        self._output = feed.output.since(after)
        self._heard = (feed.under_way, 0)
        self._remarked: str | None = None
        self._waits_for_end = several is not None
        self._woken = several or asyncio.Event()

    def __enter__(self) -> Viewer:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def wake(self) -> None:
        self._woken.set()

    @property
    def over(self) -> bool:
        """Has it read everything that will ever come, or left before that?"""
        return self.gone or (self.feed.closed and self._next >= len(self.feed.whole))

    def take(self) -> Frame | None:
        """The next frame, if there is one now."""
        if self.gone:
            return None
        if self.partials and self.feed.output.end > self._output:
            found = self.feed.output_frame(self._output, self._next)
            if found is not None:
                self._output = found[0]
                return found[1]
        if self._next < len(self.feed.whole):
            if self._waits_for_end and self._next == self.feed.last and not self.feed.closed:
                return None
            self._next += 1
            return self.feed.frame(self._next - 1)
        if not self.partials or self.feed.closed:
            return None
        under_way, heard = self._heard
        found = self.feed.words(heard if under_way == self.feed.under_way else 0)
        if found is None:
            return None
        self._heard = (self.feed.under_way, found[0])
        return found[1]

    @property
    def cursor(self) -> Cursor:
        return Cursor(self._next, self._output, *self._heard)

    def go_to(self, cursor: Cursor) -> None:
        self._output, self._heard = cursor.output, (cursor.under_way, cursor.pieces)

    def remark(self) -> str | None:
        """What is to be told beside the events, if it has changed."""
        if self.feed.remark == self._remarked:
            return None
        self._remarked = self.feed.remark
        return self._remarked

    def rest(self) -> list[Frame]:
        """All whole events that it has not seen, each in its last form: an event told again keeps its position."""
        numbers = range(self._next, len(self.feed.whole))
        latest = {self.feed.whole[number].position: number for number in numbers}
        return [self.feed.frame(number) for number in latest.values()]

    async def wait(self) -> None:
        """Until there may be something to take. Cancellation: nothing is lost."""
        await self._woken.wait()
        self._woken.clear()

    async def all(self) -> list[Frame]:
        """As `rest`, once the last event is there. Cancellation: nothing is lost."""
        while not (self.gone or self.feed.closed):
            await self.wait()
        return self.rest()

    def follow(self, feed: Feed) -> None:
        """Read on in that feed, from its present end."""
        self.feed.leave(self)
        self.feed, self._next, self._heard = feed, len(feed.whole), (feed.under_way, 0)
        self._output = feed.output.since(self._next)
        feed.enter(self)
        self.wake()

    def leave(self) -> None:
        """Also called by others, who know that the reader has gone."""
        self.gone = True
        self.feed.leave(self)
        self.wake()


@dataclass(frozen=True, slots=True)
class _Piece:
    """`after`: how many whole events there were before it."""

    after: int
    output: ToolOutput

    @property
    def size(self) -> int:
        return len(self.output.text) + _PIECE_COSTS

    def continues(self, other: _Piece) -> bool:
        one, two = self.output, other.output
        same_call = (one.call_id, one.tool, one.inner_path) == (two.call_id, two.tool, two.inner_path)
        return self.after == other.after and same_call and (one.position, one.speaker) == (two.position, two.speaker)


class OutputBuffer:
    """Output of running tools, kept for the viewers of one run, in pieces that are numbered from 0.

    Output is no part of the conversation: no later event repeats it. So it waits for viewers that are a little behind,
    each piece before the whole event that followed it. The buffer is bounded: the oldest pieces are dropped, so a
    viewer that is far behind gets the end of what a tool told.
    """

    def __init__(self) -> None:
        self._pieces: list[_Piece] = []
        self._dropped = 0
        self._size = 0

    @property
    def end(self) -> int:
        """The number of the next piece."""
        return self._dropped + len(self._pieces)

    def add(self, after: int, output: ToolOutput) -> None:
        self._pieces.append(piece := _Piece(after, output))
        self._size += piece.size
        if self._size > _MOST_OUTPUT and len(self._pieces) > 1:
            self._drop()

    def _drop(self) -> None:
        """Half of it at once: so each piece is moved once, and not with every new piece."""
        count = 0
        while self._size > _MOST_OUTPUT // 2 and count < len(self._pieces) - 1:
            self._size -= self._pieces[count].size
            count += 1
        del self._pieces[:count]
        self._dropped += count

    def clear(self) -> None:
        self._dropped, self._pieces, self._size = self.end, [], 0

    def since(self, after: int) -> int:
        """The number of the first piece that came after so many whole events."""
        return self.end - sum(1 for _ in takewhile(lambda piece: piece.after >= after, reversed(self._pieces)))

    def take(self, number: int, after: int) -> tuple[int, int, ToolOutput] | None:
        """The next pieces of one call as one event, up to those that came after so many whole events.

        With the number of the piece that comes next, and how many whole events there were before these.
        """
        first = max(number - self._dropped, 0)
        if first >= len(self._pieces) or (begin := self._pieces[first]).after > after:
            return None
        pieces = list(takewhile(begin.continues, islice(self._pieces, first, None)))
        one, text = begin.output, "".join(piece.output.text for piece in pieces)
        joined = ToolOutput(one.turn, one.position, one.at, one.call_id, one.tool, text, one.speaker, one.inner_path)
        return self._dropped + first + len(pieces), begin.after, joined

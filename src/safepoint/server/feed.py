"""What one run tells the world, read by position and not through queues.

A run appends whole events, which are stored already, and the words of the one that is under way. A viewer has a place
in that and nothing else: whoever is slow finds the words melted into one piece, or the whole event in their stead. So
no viewer costs memory, none can hold the run, and coming back later is the same as being slow.

The feed knows whether anybody watches, and tells its run when that changes: however a viewer leaves, it is noticed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass

from safepoint.server.tool_output import Told, ToolOutput
from safepoint.server.wire_events import EventContext, Json, partial_event

# No viewer holds more of the words than this at once, however far behind it is.
_MOST_WORDS = 262_144
# `json.dumps` makes an encoder for every call that is not in its usual form.
_compact = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


@dataclass(frozen=True, slots=True)
class Frame:
    """One event for one viewer. `seq`: how many whole events the viewer has after it, from where it can come back.

    `last`: it says how the run ended. `text`: the event as JSON, made once for all viewers.
    """

    seq: int
    event: Json
    text: str
    last: bool = False


class Feed:
    """The events of one run. `closed`: no more will come.

    `first`: the number before its first event. A run that another process picks up, or that is told from what is
    stored, is numbered further up: an event may have been told in two forms, and is stored in one. So a place in
    another story is recognised; from there everything is told again, with the same event ids.
    `watched` is called when the first viewer comes (True) and when the last one has left (False).
    """

    def __init__(
        self, event_context: EventContext, first: int = 0, watched: Callable[[bool], object] | None = None
    ) -> None:
        self.event_context = event_context
        self._first = first
        self.whole: list[Json] = []
        self.closed = False
        self.error: Json | None = None
        self.joined: Feed | None = None
        # Counts the messages under way: words of an earlier one are not those of this one.
        self.under_way = 0
        self._tell_watched = watched
        self._places: dict[int, int] = {}
        # The number of the event that says how the run ended.
        self.last: int | None = None
        self._words: list[tuple[bool, str]] = []
        self._place = 0
        self._at = 0.0
        self._voice: str | None = None
        self._viewers: set[Viewer] = set()
        # As JSON, for as long as anybody watches.
        self._texts: dict[int, str] = {}
        self._latest: tuple[int, int, int, Frame] | None = None  # heard, of how many, up to, and the words
        self.output = ToolOutput()

    # -- telling -------------------------------------------------------------------------------------------------------

    def append(self, place: int, event: Json, *, last: bool = False) -> None:
        """A whole event, also in the place of an earlier form of it. `last`: it says how the run ended."""
        if self.closed:
            return
        known = self._places.get(place)
        if known is not None and self.whole[known] == event:
            self.last = known if last else self.last
            return
        self._places[place] = len(self.whole)
        if last:
            self.last = len(self.whole)
        self.whole.append(event)
        self.begin()
        self._wake()

    def begin(self) -> None:
        """A message begins, and the words of whatever was under way are no part of it."""
        self.under_way += 1
        self._words = []
        self._latest = None

    def append_partial(self, place: int, text: str, at: float, *, thought: bool, voice: str | None = None) -> None:
        """A few more words of the event under way. `voice`: whose, if not the root agent's own."""
        if self.closed:
            return
        if place != self._place:  # of another event than those before, which will be told whole
            self.begin()
        self._place, self._at, self._voice = place, at, voice
        self._words.append((thought, text))
        for viewer in self._viewers:
            if viewer.partials:
                viewer.wake()

    def tell_output(self, told: Told, text: str, at: float) -> None:
        """More of what a running tool tells."""
        if self.closed:
            return
        self.output.add(len(self.whole), told, text, at)
        for viewer in self._viewers:
            if viewer.partials:
                viewer.wake()

    def close(self, error: Json | None = None) -> None:
        """Nothing more will be told. `error`: ADK's last frame after a failure."""
        self.error = error
        self.closed = True
        if not self._viewers:
            self.output.clear()
        self._wake()

    def join(self, other: Feed) -> None:
        """What was to be told here is told there: its viewers go on at the end of the other feed."""
        self.joined = other
        for viewer in list(self._viewers):
            viewer.follow(other)

    def _wake(self) -> None:
        for viewer in self._viewers:
            viewer.wake()

    # -- watching ------------------------------------------------------------------------------------------------------

    def view(self, after: int = 0, *, partials: bool = True, several: asyncio.Event | None = None) -> Viewer:
        """A viewer that has seen that many whole events. `with` it: it leaves at the end of the block.

        `partials`: whether it wants to see words before they are whole. `several`: what wakes one who reads several
        feeds; it is told the last event of each when the feed is closed, as that is all it has to tell an end by.
        """
        if self.joined is not None:
            return self.joined.view(after, partials=partials, several=several)
        seen = after - self._first
        start = seen if 0 <= seen <= len(self.whole) else 0
        viewer = Viewer(self, start, partials=partials, several=several)
        self.enter(viewer)
        return viewer

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
            self._texts, self._latest = {}, None
            if self.closed:
                self.output.clear()
            if self._tell_watched is not None and self.joined is None:
                self._tell_watched(False)

    def frame(self, number: int) -> Frame:
        """A whole event by its number, from 0."""
        event = self.whole[number]
        text = self._texts.get(number)
        if text is None:
            text = self._texts[number] = as_text(event)
        return Frame(self._first + number + 1, event, text, last=number == self.last)

    def words(self, heard: int) -> tuple[int, Frame] | None:
        """The words under way after the first `heard` pieces, up to a change of kind; and how many are heard then."""
        if heard >= len(self._words):
            return None
        if self._latest is not None and self._latest[:2] == (heard, len(self._words)):
            return self._latest[2:]
        thought, size, end = self._words[heard][0], 0, heard
        while end < len(self._words) and self._words[end][0] == thought and size < _MOST_WORDS:
            size += len(self._words[end][1])
            end += 1
        text = "".join(piece for _, piece in self._words[heard:end])
        event = partial_event(self.event_context.spoken_by(self._voice), self._place, text, self._at, thought=thought)
        frame = Frame(self._first + len(self.whole), event, as_text(event))
        self._latest = (heard, len(self._words), end, frame)
        return self._latest[2:]

    def output_frame(self, number: int, after: int) -> tuple[int, Frame] | None:
        """What tools told from that piece on, as `ToolOutput.take` finds it; and the number of the next piece."""
        found = self.output.take(number, after, self.event_context)
        if found is None:
            return None
        following, whole, event = found
        return following, Frame(self._first + whole, event, as_text(event))


class Viewer:
    """One reader of a feed, and its place there."""

    def __init__(self, feed: Feed, after: int, *, partials: bool, several: asyncio.Event | None) -> None:
        self.feed = feed
        self.gone = False
        self.partials = partials
        self._next = after
        self._output = feed.output.since(after)
        self._heard = (feed.under_way, 0)
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
        """Has it seen everything that will ever be told, or gone before that?"""
        return self.gone or (self.feed.closed and self._next >= len(self.feed.whole))

    def take(self) -> Frame | None:
        """The next frame, if there is one now."""
        if self.gone:
            return None
        if self.partials and (told := self.feed.output_frame(self._output, self._next)) is not None:
            self._output = told[0]
            return told[1]
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

    def rest(self) -> list[Json]:
        """All whole events that it has not seen."""
        return self.feed.whole[self._next :]

    async def wait(self) -> None:
        """Until there may be something to take. Cancellation: nothing is lost."""
        await self._woken.wait()
        self._woken.clear()

    async def all(self) -> list[Json]:
        """Every whole event, once the last one is there. Cancellation: nothing is lost."""
        while not (self.gone or self.feed.closed):
            await self.wait()
        return self.feed.whole

    def follow(self, feed: Feed) -> None:
        """Read on there, from where that feed is now."""
        self.feed.leave(self)
        self.feed, self._next, self._heard = feed, len(feed.whole), (feed.under_way, 0)
        self._output = feed.output.since(self._next)
        feed.enter(self)
        self.wake()

    def leave(self) -> None:
        """Also for somebody else to say, who knows that the reader has gone."""
        self.gone = True
        self.feed.leave(self)
        self.wake()


def as_text(event: Json) -> str:
    """Compact JSON. Half a surrogate pair, which a model may well stream, is escaped: no socket could send it."""
    text = _compact(event)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(event, separators=(",", ":"))
    return text

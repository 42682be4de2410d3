"""What one run tells the world, read by position and not through queues.

A run appends whole events, which are stored already, and the words of the one that is under way. A viewer has a place
in that and nothing else: whoever is slow finds the words melted into one piece, or the whole event in their stead. So
no viewer costs memory, none can hold the run, and coming back later is the same as being slow.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

from safepoint.server.wire_events import Json, Scene, partial_event


@dataclass(frozen=True, slots=True)
class Frame:
    """One event for one viewer. `seq`: how many whole events the viewer has after it, from where it can come back."""

    seq: int
    event: Json


class Feed:
    """The events of one run. `closed`: no more will come.

    `first`: the number before its first event. A run that another process picks up is numbered further up, so a place
    in what the first process told is recognised; from there everything is told again, with the same event ids.
    """

    def __init__(self, scene: Scene, first: int = 0) -> None:
        self.scene = scene
        self._first = first
        self.whole: list[Json] = []
        self.closed = False
        self.error: Json | None = None
        self._places: dict[int, int] = {}
        self._words: dict[bool, list[str]] = {False: [], True: []}
        self.place = 0
        self._at = 0.0
        self._voice: str | None = None
        self._viewers: set[Viewer] = set()
        self.joined: Feed | None = None

    def join(self, other: Feed) -> None:
        """What was to be told here is told there: its viewers go on at the end of the other feed."""
        self.joined = other
        for viewer in list(self._viewers):
            viewer.follow(other)

    def say(self, place: int, event: Json) -> None:
        """A whole event, also in the place of an earlier form of it."""
        if self.closed:
            return
        known = self._places.get(place)
        if known is not None and self.whole[known] == event:
            return
        self._places[place] = len(self.whole)
        self.whole.append(event)
        self._words = {False: [], True: []}
        self._wake()

    def whisper(self, place: int, text: str, at: float, *, thought: bool, voice: str | None = None) -> None:
        """A few more words of the event under way. `voice`: whose, if not the root agent's own."""
        if self.closed:
            return
        if place != self.place:  # of another event than those before, which will be told whole
            self._words = {False: [], True: []}
        self.place, self._at, self._voice = place, at, voice
        self._words[thought].append(text)
        self._wake()

    def close(self, error: Json | None = None) -> None:
        """Nothing more will be told. `error`: ADK's last frame after a failure."""
        self.error = error
        self.closed = True
        self._wake()

    def view(self, after: int = 0) -> Viewer:
        """A viewer that has seen that many whole events."""
        if self.joined is not None:
            return self.joined.view(after)
        viewer = Viewer(self, min(max(after - self._first, 0), len(self.whole)))
        self.enter(viewer)
        return viewer

    def seq(self, count: int) -> int:
        """The number of the event that makes it so many."""
        return self._first + count

    @property
    def viewers(self) -> int:
        return len(self._viewers)

    @property
    def watched(self) -> bool:
        return bool(self._viewers)

    def enter(self, viewer: Viewer) -> None:
        self._viewers.add(viewer)

    def leave(self, viewer: Viewer) -> None:
        self._viewers.discard(viewer)

    def words_since(self, seen: dict[bool, int]) -> Frame | None:
        """The words that came since then, and nothing twice."""
        for thought, pieces in self._words.items():
            if len(pieces) > seen[thought]:
                text = "".join(pieces[seen[thought] :])
                seen[thought] = len(pieces)
                scene = self.scene if self._voice is None else replace(self.scene, voice=self._voice)
                event = partial_event(scene, self.place, text, self._at, thought=thought)
                return Frame(self.seq(len(self.whole)), event)
        return None

    def _wake(self) -> None:
        for viewer in self._viewers:
            viewer.wake()


class Viewer:
    """One reader of a feed. `partials`: whether it wants to see words before they are whole."""

    def __init__(self, feed: Feed, after: int) -> None:
        self.feed = feed
        self.partials = True
        self._next = after
        self._seen = {False: 0, True: 0}
        self._place = feed.place
        self._woken = asyncio.Event()

    def wake(self) -> None:
        self._woken.set()

    def take(self) -> Frame | None:
        """The next frame, if there is one now."""
        if self._next < len(self.feed.whole):
            self._next += 1
            self._seen = {False: 0, True: 0}
            return Frame(self.feed.seq(self._next), self.feed.whole[self._next - 1])
        if not self.partials or self.feed.closed:
            return None
        if self._place != self.feed.place:
            self._place, self._seen = self.feed.place, {False: 0, True: 0}
        return self.feed.words_since(self._seen)

    def rest(self) -> list[Json]:
        """All whole events that it has not seen."""
        return self.feed.whole[self._next :]

    async def next(self) -> Frame | None:
        """The next frame; None after the last. Cancellation: nothing is lost."""
        while True:
            self._woken.clear()
            frame = self.take()
            if frame is not None or self.feed.closed:
                return frame
            await self._woken.wait()

    async def all(self) -> list[Json]:
        """Every whole event, once the last one is there. Cancellation: nothing is lost."""
        self.partials = False
        try:
            while await self.next() is not None:
                pass
            return self.feed.whole
        finally:
            self.leave()

    def follow(self, feed: Feed) -> None:
        """Read on there, from where that feed is now."""
        self.feed.leave(self)
        self.feed, self._next, self._seen = feed, len(feed.whole), {False: 0, True: 0}
        feed.enter(self)
        self.wake()

    def leave(self) -> None:
        self.feed.leave(self)

"""What running tools tell, kept for the viewers of one run.

It is no part of the conversation: no later event repeats it, so it waits for viewers that are a little behind, each
piece before the whole event that it was told before. It is bounded: of a tool that tells very much, a viewer that is
far behind gets the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice, takewhile

from safepoint.server.wire_events import EventContext, Json, tool_output_event

_MOST = 262_144
_PIECE_COSTS = 100  # to keep it at all, however short it is


@dataclass(frozen=True, slots=True)
class Told:
    """By one call: `place` is that of the event with its result. `path`: of its run, if that is inside another."""

    place: int
    call_id: str
    name: str
    voice: str | None = None
    path: str | None = None


@dataclass(frozen=True, slots=True)
class _Piece:
    """`after`: how many whole events there were before it."""

    after: int
    told: Told
    text: str
    at: float

    @property
    def size(self) -> int:
        return len(self.text) + _PIECE_COSTS


class ToolOutput:
    """Pieces, numbered from 0; the oldest are dropped when there are too many."""

    def __init__(self) -> None:
        self._pieces: list[_Piece] = []
        self._dropped = 0
        self._size = 0

    @property
    def end(self) -> int:
        """The number of the next piece."""
        return self._dropped + len(self._pieces)

    def add(self, after: int, told: Told, text: str, at: float) -> None:
        self._pieces.append(piece := _Piece(after, told, text, at))
        self._size += piece.size
        if self._size > _MOST and len(self._pieces) > 1:
            self._drop()

    def _drop(self) -> None:
        """Half of it at once: each piece is moved once, and not with every one that comes."""
        count = 0
        while self._size > _MOST // 2 and count < len(self._pieces) - 1:
            self._size -= self._pieces[count].size
            count += 1
        del self._pieces[:count]
        self._dropped += count

    def clear(self) -> None:
        self._dropped, self._pieces, self._size = self.end, [], 0

    def since(self, after: int) -> int:
        """The number of the first piece that came after so many whole events."""
        return self.end - sum(1 for _ in takewhile(lambda piece: piece.after >= after, reversed(self._pieces)))

    def take(self, number: int, after: int, event_context: EventContext) -> tuple[int, int, Json] | None:
        """The next pieces of one call, as one event, up to those that came after so many whole events.

        With the number of the piece that comes next, and how many whole events there were before these.
        """
        first = max(number - self._dropped, 0)
        if first >= len(self._pieces) or (begin := self._pieces[first]).after > after:
            return None
        told, texts = begin.told, list[str]()
        for piece in islice(self._pieces, first, None):
            if (piece.after, piece.told) != (begin.after, told):
                break
            texts.append(piece.text)
        event = tool_output_event(
            event_context.spoken_by(told.voice),
            told.place,
            call=(told.call_id, told.name),
            text="".join(texts),
            at=begin.at,
        )
        if told.path is not None:
            event["nodeInfo"] = {"path": told.path}
        return self._dropped + first + len(texts), begin.after, event

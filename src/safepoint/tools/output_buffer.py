"""What a program prints, without end perhaps, in bounded memory: its beginning, its end, and how much lay between."""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Callable

from safepoint.history.plain_text import clean


class OutputBuffer:
    """Half of the room is for the beginning, half for the end. Each piece is also told, as it comes."""

    def __init__(self, room: int, tell: Callable[[str], object]) -> None:
        self._head_room = room // 2
        self._tail_room = room - self._head_room
        self._tell = tell
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._head: list[str] = []
        self._tail: deque[str] = deque()
        self._tail_chars = 0
        self._left_out = 0

    def take(self, piece: bytes) -> None:
        self._keep(self._decoder.decode(piece))

    def finish(self) -> None:
        """Nothing more comes: what is left of a character that was cut in two is told as broken."""
        self._keep(self._decoder.decode(b"", final=True))

    def _keep(self, text: str) -> None:
        if not text:
            return
        self._tell(text)
        if self._head_room:
            self._head.append(text[: self._head_room])
            text = text[self._head_room :]
            self._head_room -= len(self._head[-1])
        if text:
            self._tail.append(text)
            self._tail_chars += len(text)
        while self._tail_chars > self._tail_room:
            excess = self._tail_chars - self._tail_room
            first = self._tail.popleft()
            if len(first) > excess:
                self._tail.appendleft(first[excess:])
            lost = min(len(first), excess)
            self._tail_chars -= lost
            self._left_out += lost

    @property
    def text(self) -> str:
        gap = f"\n[{self._left_out} characters were left out here]\n" if self._left_out else ""
        return clean("".join(self._head) + gap + "".join(self._tail))

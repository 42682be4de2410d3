"""Whoever reads somebody else's stream lets the loop turn now and then, also if the stream itself never waits.

A stream that was cached or buffered has every chunk at hand: a task that reads it would hold the loop until its end,
and nobody could stop it.
"""

from __future__ import annotations

import asyncio

MOST_AT_ONCE = 256
LONGEST_AT_ONCE = 0.010


class Pace:
    """Counts what a task takes without a pause. Ask `is_due` after every piece; if it is, await `asyncio.sleep(0)`."""

    __slots__ = ("_count", "_loop", "_since", "_turn")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._count = 0
        self._since = 0.0
        # Called when the loop turns, which it does while the task waits for anything at all.
        self._turn: asyncio.Handle | None = None

    def is_due(self, now: float) -> bool:
        """One more piece was taken. Has nobody else had a turn for too long?"""
        if self._turn is None:
            self._since, self._count = now, 0
            self._turn = self._loop.call_soon(self._turned)
        self._count += 1
        return self._count >= MOST_AT_ONCE or now - self._since >= LONGEST_AT_ONCE

    def close(self) -> None:
        """Nothing more is taken."""
        if self._turn is not None:
            self._turn.cancel()

    def _turned(self) -> None:
        self._turn = None

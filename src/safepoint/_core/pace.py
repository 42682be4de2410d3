"""A task that reads a foreign stream lets the loop turn now and then, even if the stream itself never waits.

A cached or buffered stream has every chunk at hand: a task that reads it would hold the loop until the end of the
stream, and no ask could stop it.
"""

from __future__ import annotations

import asyncio

MOST_AT_ONCE = 256
LONGEST_AT_ONCE = 0.010
# Pieces taken before `Pace` checks whether the loop turns: most replies from a cache or a test are shorter, and the
# check costs a callback.
UNWATCHED = 16


class Pace:
    """Counts the pieces a task takes without a pause. Call `is_due` after each; if true, await `asyncio.sleep(0)`."""

    __slots__ = ("_count", "_loop", "_since", "_turn")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._count = 0
        self._since = 0.0
        # The loop calls it when it turns, which it does while the task waits for anything.
        self._turn: asyncio.Handle | None = None

    def is_due(self, now: float) -> bool:
        """Count one more piece. True if other tasks have had no turn for too long."""
        self._count += 1
        if self._count == 1:
            self._since = now
        long = now - self._since >= LONGEST_AT_ONCE
        if self._turn is None and (long or self._count > UNWATCHED):
            self._turn = self._loop.call_soon(self._turned)
        return long or self._count >= MOST_AT_ONCE

    def close(self) -> None:
        """The stream has ended."""
        if self._turn is not None:
            self._turn.cancel()

    def _turned(self) -> None:
        self._turn, self._count = None, 0

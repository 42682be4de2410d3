"""How a driver waits for "something changed": one waiter, and a ring that is never lost."""

from __future__ import annotations

import asyncio


class Wakeup:
    """Call `ring` in the loop's own thread. A ring without a waiter is kept for the next wait."""

    __slots__ = ("_waiter", "is_rung")

    def __init__(self) -> None:
        self.is_rung = False
        self._waiter: asyncio.Future[None] | None = None

    def ring(self) -> None:
        self.is_rung = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def clear(self) -> None:
        """Drop a ring that is kept."""
        self.is_rung = False

    async def wait(self) -> None:
        """Return at the next ring. Cancellation: the ring is kept for the next wait."""
        if not self.is_rung:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        self.is_rung = False

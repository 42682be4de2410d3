"""How a driver waits for "something changed": one waiter, and a ring that is never lost."""

from __future__ import annotations

import asyncio


class Wakeup:
    """`ring` from the loop's own thread; a ring while nobody waits is kept for the next wait."""

    __slots__ = ("_rung", "_waiter")

    def __init__(self) -> None:
        self._rung = False
        self._waiter: asyncio.Future[None] | None = None

    def ring(self) -> None:
        self._rung = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self) -> None:
        """Return at the next ring. Cancellation: the ring is kept for the next wait."""
        if not self._rung:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        self._rung = False

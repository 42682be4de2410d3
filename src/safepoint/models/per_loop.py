"""One client per event loop. Connections belong to the loop that made them; a model may be used on several.

The client is held by an async generator, because that is what a loop ends before it is closed: `asyncio.run`, the
runner and `run_sync` call `shutdown_asyncgens`. So idle connections are closed with their loop, without a call by the
program.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class PerLoop(Generic[T]):
    """`await get()` returns the running loop's client."""

    def __init__(self, make: Callable[[], T], close: Callable[[T], Awaitable[object]]) -> None:
        self._make = make
        self._close = close
        self._kept: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[T, AsyncGenerator[T]]]
        self._kept = weakref.WeakKeyDictionary()

    async def get(self) -> T:
        """This loop's client, made if need be. Cancellation: nothing here waits."""
        loop = asyncio.get_running_loop()
        kept = self._kept.get(loop)
        if kept is None:
            # A client refers to its loop, so the entry of a loop that was closed without shutdown is never collected.
            # Other threads add and remove entries meanwhile: copy the list, and expect an entry to be gone.
            for reference in self._kept.keyrefs():
                if (other := reference()) is not None and other.is_closed():
                    self._kept.pop(other, None)
            keeper = self._keep(loop)
            kept = self._kept[loop] = await anext(keeper), keeper
        return kept[0]

    async def _keep(self, loop: asyncio.AbstractEventLoop) -> AsyncGenerator[T]:
        client = self._make()
        try:
            yield client
        finally:
            self._kept.pop(loop, None)
            await self._close(client)

    async def aclose(self) -> None:
        """Close this loop's client. Cancellation: the closing is cut; the client is dropped."""
        kept = self._kept.get(asyncio.get_running_loop())
        if kept is not None:
            await kept[1].aclose()

"""Whether the server can do its work now, for those who send it requests: not while it drains or its store is gone.

The store is asked by reading from it, at most once at a time and not again for a moment: any number of checks
costs no more than that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from safepoint.serving.run_manager import RunManager

_log = logging.getLogger("safepoint.server")

_PATIENCE = 1.0  # for the store to answer
_KEPT = 0.5
# No run and no session is called that: ids never begin with a blank.
_NOTHING = " ready?"


@dataclass(frozen=True, slots=True)
class State:
    """`draining`: it shuts down. `store`: whether that answers. `is_pushed`: whether that pushes changes."""

    draining: bool
    store: bool
    is_pushed: bool

    @property
    def ready(self) -> bool:
        return self.store and not self.draining


class Readiness:
    """Of one host. `clock`: seconds that only go up."""

    def __init__(self, manager: RunManager, clock: Callable[[], float]) -> None:
        self._manager = manager
        self._clock = clock
        self._asking: asyncio.Task[bool] | None = None
        self._last: tuple[float, bool] | None = None

    async def look(self, within: float = _PATIENCE) -> State:
        """A store that has not answered within that time is out of reach. Cancellation: only the waiting ends."""
        store = await self._reached(within)
        return State(self._manager.draining, store, self._manager.is_pushed)

    async def _reached(self, within: float) -> bool:
        if self._last is not None and self._clock() - self._last[0] < _KEPT:
            return self._last[1]
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask(), name="safepoint: is the store there?")
        done, _ = await asyncio.wait({self._asking}, timeout=within)
        return bool(done) and self._asking.result()

    async def _ask(self) -> bool:
        """Cancellation: nothing has changed."""
        try:
            async with asyncio.timeout(_PATIENCE):
                await self._manager.storage.check()
        except Exception as error:  # a store of the user's own may raise anything
            reached = False
            if self._last is None or self._last[1]:
                _log.error("the store is out of reach: %s", error or type(error).__name__)
        else:
            reached = True
            if self._last is not None and not self._last[1]:
                _log.warning("the store is back")
        self._last = (self._clock(), reached)
        return reached

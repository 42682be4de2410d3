"""What becomes of a run when the last of its viewers leaves, by the policy that it came with."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from safepoint._core.points import SafePoint
from safepoint._core.reasons import Reason, Source
from safepoint.server.requests import OnDisconnect


class DisconnectPolicy:
    """Called with whether anybody watches, each time that changes. `ask` stops the run, if it can still be stopped.

    Who comes back stops the clock, and who leaves after that starts it anew.
    """

    def __init__(self, ask: Callable[[SafePoint, Reason], object]) -> None:
        self.policy: OnDisconnect = "cancel"
        self._ask = ask
        self._clock: asyncio.TimerHandle | None = None
        self._over = False

    def __call__(self, watched: bool) -> None:
        self._stop_clock()
        if watched or self._over or self.policy == "detach":
            return
        reason = Reason("its client went away", Source.DISCONNECT)
        if self.policy == "cancel":
            self._ask(SafePoint.NOW, reason)
        else:
            loop = asyncio.get_running_loop()
            self._clock = loop.call_later(self.policy.cancel_after, self._ask, SafePoint.NOW, reason)

    def end(self) -> None:
        """The run is over: a clock that goes on would only keep it in memory."""
        self._over = True
        self._stop_clock()

    def _stop_clock(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None

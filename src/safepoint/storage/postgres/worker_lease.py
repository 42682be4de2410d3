"""What this worker knows of its own lease.

    held ──2/3 of the lease without a renewal──▶ doubtful ──the whole lease──▶ over
      ▲                                             │                           │
      └──────────────────── a renewal was answered ─┴───────────────────────────┘

The database counts a lease from when it wrote the renewal, this worker from when it sent it: so the worker is always
the first to know that the lease is over. It counts by a clock that goes on while the machine sleeps.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import StrEnum


class LeaseState(StrEnum):
    HELD = "held"
    DOUBTFUL = "doubtful"
    OVER = "over"


def boot_time() -> float:
    """Seconds since the machine was started, those of its sleep among them, where the system tells that."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


class WorkerLease:
    """`seconds`: how long the lease is. A worker that never owned anything has no lease, and it is not over either."""

    def __init__(self, seconds: float, clock: Callable[[], float] = boot_time) -> None:
        self.seconds = seconds
        self.clock = clock
        self.lapses = 0
        """How often it was over before it was renewed: others may have taken what this worker owned."""
        self._sent: float | None = None

    @property
    def renew_every(self) -> float:
        return self.seconds / 3

    @property
    def begun(self) -> bool:
        return self._sent is not None

    def renewed(self, sent: float) -> None:
        """A renewal that was sent at that time was answered. Answers may come in another order."""
        if self._sent is not None and sent >= self._sent + self.seconds:
            self.lapses += 1
        self._sent = sent if self._sent is None else max(self._sent, sent)

    def left(self) -> float:
        """Seconds until it is over; below 0 after that."""
        return self.seconds if self._sent is None else self._sent + self.seconds - self.clock()

    @property
    def state(self) -> LeaseState:
        left = self.left()
        if left <= 0:
            return LeaseState.OVER
        return LeaseState.HELD if left > self.seconds / 3 else LeaseState.DOUBTFUL

"""How many requests may stay open at once: those that wait for a run, and, counted apart, those that stop one."""

from __future__ import annotations

from collections import Counter

from safepoint.server.auth import Head, Refusal
from safepoint.server.config import Limits
from safepoint.server.principal import Principal

VIEWERS = "viewers"


class ConcurrencyLimits:
    """Counts open requests. A cancel has a bucket of its own for each key, so nothing else can crowd it out."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._taken: Counter[str] = Counter()

    def kind(self, head: Head, who: Principal) -> str | None:
        """Which count the request belongs to; None if it is over soon."""
        path = head.path
        if path.endswith(":cancel"):
            return f"cancel/{who.name}"
        if path in ("/run", "/run_sse", "/run_live") or (path.startswith("/runs/") and path.endswith("/events")):
            return VIEWERS
        return None

    def take(self, kind: str) -> Refusal | None:
        """None, or why there is no seat left."""
        limits, wait = self._limits, {"Retry-After": "5"}
        if kind == VIEWERS and self._taken[kind] >= limits.viewers:
            return Refusal(503, f"{limits.viewers} requests wait for runs already, and no more may", wait)
        if kind != VIEWERS and self._taken[kind] >= limits.cancels:
            return Refusal(429, f"{limits.cancels} cancels of this key are open already: send waitSeconds: 0", wait)
        self._taken[kind] += 1
        return None

    def give_back(self, kind: str) -> None:
        self._taken[kind] -= 1
        if not self._taken[kind]:
            del self._taken[kind]

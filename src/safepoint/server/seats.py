"""How many may watch at once: streams and live sockets, of all runs together."""

from __future__ import annotations

from safepoint.errors import SafepointError


class NoSeat(SafepointError):
    """Answered with 429: as many watch as may."""


class Seats:
    def __init__(self, limit: int) -> None:
        self.taken = 0
        self._limit = limit

    def take(self) -> None:
        """Raises `NoSeat`."""
        if self.taken >= self._limit:
            raise NoSeat(f"{self._limit} viewers watch, and no more may: try again later")
        self.taken += 1

    def give_back(self) -> None:
        self.taken -= 1

"""Wrong keys, counted by the address that they come from.

Nobody guesses a key of 256 random bits. What this is for: an operator sees who tries, once and not in every line, and
a client with an old key in its settings is told to wait. A right key is let in all the same: behind a proxy everybody
has one address, and nobody there may shut the others out, least of all from a cancel.
"""

from __future__ import annotations

import logging
import math
from collections import OrderedDict
from collections.abc import Callable

_log = logging.getLogger("safepoint.server")

_MINUTE = 60.0
_KEPT = 1000


class AuthThrottle:
    """So many of one address in a minute. `clock`: seconds that only go up."""

    def __init__(self, limit: int, clock: Callable[[], float]) -> None:
        self._limit = limit
        self._clock = clock
        # When the minute of an address began, and how many came since.
        self._minutes: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def count(self, address: str) -> int:
        """One more. Seconds to wait, if it was one too many; else 0."""
        now = self._clock()
        began, before = self._minutes.pop(address, (now, 0))
        if now - began >= _MINUTE:
            began, before = now, 0
        self._minutes[address] = (began, before + 1)
        if len(self._minutes) > _KEPT:
            self._minutes.popitem(last=False)
        if before < self._limit:
            return 0
        if before == self._limit:
            _log.warning("%s has sent more than %d wrong keys within a minute", address, self._limit)
        return max(1, math.ceil(began + _MINUTE - now))

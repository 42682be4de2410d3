"""Two things measured side by side: turn by turn in one process, so that both meet the same noise."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sample:
    """What was measured, smallest first."""

    values: tuple[float, ...]

    def percentile(self, percent: float) -> float:
        """The smallest value that this share of all values does not exceed."""
        return self.values[max(0, math.ceil(len(self.values) * percent / 100) - 1)]

    @property
    def p50(self) -> float:
        return self.percentile(50)

    @property
    def p99(self) -> float:
        return self.percentile(99)


async def side_by_side(
    ours: Callable[[], Awaitable[float]], bare: Callable[[], Awaitable[float]], *, rounds: int, warm_up: int
) -> tuple[Sample, Sample]:
    """Each is awaited once per round and returns what it measured. Who goes first changes with every round."""
    found: dict[Callable[[], Awaitable[float]], list[float]] = {ours: [], bare: []}
    for number in range(warm_up + rounds):
        for measure in (ours, bare) if number % 2 else (bare, ours):
            value = await measure()
            if number >= warm_up:
                found[measure].append(value)
    return Sample(tuple(sorted(found[ours]))), Sample(tuple(sorted(found[bare])))

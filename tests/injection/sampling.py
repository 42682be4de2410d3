"""`make test` injects into a sample of the points, another one each day; `make test-everywhere` into all of them.

The seed is printed at the end of a run. `SAFEPOINT_SEED=739000 make test` draws the sample of that seed once more.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date

from safepoint.testing.injections import Injection
from safepoint.testing.points import Point

SHARE = 0.15
SEED = int(os.environ.get("SAFEPOINT_SEED") or date.today().toordinal())


@dataclass(frozen=True, slots=True)
class Sampled(Injection):
    """A kind that fits a share of the points that it would fit."""

    chance: random.Random = field(default_factory=random.Random, compare=False)

    def fits(self, point: Point) -> bool:
        return Injection.fits(self, point) and self.chance.random() < SHARE


def sample(kinds: Sequence[Injection], entry: str) -> list[Injection]:
    """Entries draw apart from each other, so that one more point in one of them moves no other."""
    chance = random.Random(f"{SEED} {entry}")
    return [Sampled(each.name, each.fire, each.judge, each.seam, each.cancels, chance) for each in kinds]

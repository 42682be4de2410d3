"""How many live runs one PostgreSQL carries, and what follows: `python -m docs.scripts.capacity --commits 10000`."""

from __future__ import annotations

import argparse
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Load:
    """`steps`, `seconds`: of a run. `commits`: that the primary makes in a second, `durable` as it is set up."""

    steps: int = 8
    seconds: float = 30.0
    commits: float = 10_000.0

    @property
    def per_run(self) -> int:
        """Begin and end, two for a step with tools, of which the last one has none, and fetch and finish of its job."""
        return 2 + 2 * (self.steps - 1) + 2

    @property
    def per_second(self) -> float:
        """Commits of one live run in a second."""
        return self.per_run / self.seconds

    @property
    def live_runs(self) -> int:
        return int(self.commits / self.per_second)

    def lines(self) -> list[str]:
        return [
            f"a run of {self.steps} steps costs {self.per_run} commits",
            f"in {self.seconds:g} s: {self.per_second:.1f} commits in a second for each live run",
            f"{self.commits:,.0f} commits in a second carry {self.live_runs:,} live runs",
        ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=Load.steps)
    parser.add_argument("--seconds", type=float, default=Load.seconds)
    parser.add_argument("--commits", type=float, default=Load.commits)
    print("\n".join(Load(**vars(parser.parse_args())).lines()))

"""What `import safepoint` takes, against importing the two packages it needs. Each import has a fresh process."""

from __future__ import annotations

import asyncio
import sys
from functools import partial

from bench.sample import side_by_side
from bench.table import Table, times

ROUNDS = 15


async def time_import(*modules: str) -> float:
    program = f"from time import perf_counter as now; began = now(); import {', '.join(modules)}; print(now() - began)"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE)
    printed, _ = await process.communicate()
    assert process.returncode == 0
    return float(printed)


def main() -> None:
    ours, bare = asyncio.run(
        side_by_side(
            partial(time_import, "safepoint"), partial(time_import, "anyio", "pydantic"), rounds=ROUNDS, warm_up=2
        )
    )
    table = Table("import", "", "anyio, pydantic", "safepoint", "ratio")
    for label, percent in ("p50", 50), ("p99", 99):
        floor, cost = bare.percentile(percent), ours.percentile(percent)
        table.add("fresh process", label, f"{floor * 1e3:.0f} ms", f"{cost * 1e3:.0f} ms", times(cost / floor))
    table.show()


if __name__ == "__main__":
    main()

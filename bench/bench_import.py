"""What `import safepoint` takes, against importing the two packages it needs. Each import has a fresh process.

`import pydantic` loads little of pydantic; what any program with a typed tool has to load is the second floor. The
compiled files are kept between the rounds, as in any installation, in a directory of their own.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from functools import partial

from bench.sample import side_by_side
from bench.table import Table, times

ROUNDS = 15
OURS = "import safepoint"
FLOORS = {
    "anyio, pydantic": "import anyio, pydantic",
    "anyio, asyncio, pydantic in use": "import anyio, asyncio; from pydantic import TypeAdapter, create_model",
}


async def time_import(program: str, cache: str) -> float:
    timed = f"from time import perf_counter as now; began = now(); {program}; print(now() - began)"
    command = (sys.executable, "-X", f"pycache_prefix={cache}", "-c", timed)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, env=environment)
    printed, _ = await process.communicate()
    assert process.returncode == 0
    return float(printed)


async def measure(table: Table, cache: str) -> None:
    for name, floor in FLOORS.items():
        ours, bare = await side_by_side(
            partial(time_import, OURS, cache), partial(time_import, floor, cache), rounds=ROUNDS, warm_up=2
        )
        row = f"{bare.p50 * 1e3:.0f} ms", f"{ours.p50 * 1e3:.0f} ms", times(ours.p50 / bare.p50)
        table.add(f"against {name}", "p50", *row)


def main() -> None:
    table = Table("import in a fresh process", "", "floor", "safepoint", "ratio")
    with tempfile.TemporaryDirectory() as cache:
        asyncio.run(measure(table, cache))
    table.show()


if __name__ == "__main__":
    main()

"""A worker for `check_engine`: says `ready` once it takes runs, and works until it is killed."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from safepoint.cluster import Worker
from safepoint.storage.postgres.storage import PostgresStorage
from safepoint.testing import engine_agent


async def main(url: str, log: Path) -> None:
    storage = PostgresStorage(url, lease=2.0)
    async with Worker({"check": engine_agent(log)}, storage):
        await storage.check()
        print("ready", flush=True)
        await asyncio.get_running_loop().create_future()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))

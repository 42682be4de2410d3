"""Loops with a backlog: what one turn costs while 10 to 10,000 items wait, and how long the whole queue takes to drain.

Every turn takes one item and leaves the rest alone (`keep_rest=True`); each is stored before and after, in SQLite, in
memory, and without a store. If a turn looked at all that waits, the time of one would grow with the backlog.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter, process_time

from bench.models import InstantModel
from bench.table import Table, micros, times, verdict
from safepoint import Agent, TurnLoop
from safepoint.turns import MemoryTurnStore, Plan, PlanContext, SqliteTurnStore

BACKLOGS = (10, 100, 1_000, 10_000)
AIM_GROWTH = 1.5
"""How much longer a turn may take with the longest backlog than with a hundred items."""


def plan(ctx: PlanContext[str], items: Sequence[str]) -> Plan[str]:
    return Plan(items[0], items[:1], keep_rest=True)


async def drain(waiting: int, store: MemoryTurnStore | SqliteTurnStore | None) -> tuple[float, float]:
    """Seconds and seconds of processor time for one turn, on the average of all."""
    agent = Agent("instant", model=InstantModel())
    options = {} if store is None else {"store": store, "checkpoint_id": f"backlog {waiting}"}
    loop = TurnLoop(agent, plan=plan, **options)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue, reportUnknownVariableType]  # options of one of two kinds
    for number in range(waiting):
        loop.push(f"item {number}")
    begun, cpu = perf_counter(), process_time()
    async with loop:
        pass
    assert (await loop.wait()).unhandled == []
    return (perf_counter() - begun) / waiting, (process_time() - cpu) / waiting


async def curve(name: str, store: MemoryTurnStore | SqliteTurnStore | None) -> None:
    await drain(100, store)  # warm
    found = {waiting: await drain(waiting, store) for waiting in BACKLOGS}
    table = Table(f"one turn of {name}", "time", "processor", "whole queue", "against 100")
    for waiting, (seconds, cpu) in found.items():
        against = cpu / found[100][1]
        table.add(f"{waiting:,} items wait", micros(seconds), micros(cpu), f"{seconds * waiting:.2f} s", times(against))
    table.show()
    growth = found[BACKLOGS[-1]][1] / found[100][1]
    aim = f"aim {times(AIM_GROWTH)}: {verdict(growth, AIM_GROWTH)}"
    print(f"processor time with {BACKLOGS[-1]:,} items against 100: {times(growth)}, {aim}\n")


async def curves() -> None:
    await curve("a loop without a store", None)
    await curve("a loop in memory", MemoryTurnStore())
    with tempfile.TemporaryDirectory() as folder:
        store = SqliteTurnStore(Path(folder) / "loops.db")
        await curve("a loop in SQLite", store)
        await store.aclose()


def main() -> None:
    asyncio.run(curves())


if __name__ == "__main__":
    main()

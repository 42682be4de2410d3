"""Loops of turns: how soon a push becomes a turn, whether a crowd of threads loses any, what an idle loop costs.

The bare floor of the latency is a task that waits for a queue and runs the same agent by hand.
"""

from __future__ import annotations

import asyncio
import gc
import threading
import tracemalloc
from time import perf_counter, process_time

from bench.models import InstantModel
from bench.sample import side_by_side
from bench.table import Table, micros, verdict
from safepoint import Agent, TurnLoop
from safepoint.agent.event_hub import EventReader
from safepoint.turns import Plan, PlanContext, Turn

ROUNDS, WARM_UP = 400, 50
THREADS, PUSHES = 8, 100_000
LOOPS, IDLE_SECONDS = 10_000, 2.0
AIM_LATENCY, AIM_KILOBYTES, AIM_CPU = 0.001, 25.0, 0.02


async def latency() -> None:
    """From `push` to the first event of the turn's run, and the same by hand."""
    agent = Agent("instant", model=InstantModel())
    begun = asyncio.Event()

    async def on_events(turn: Turn[str], events: EventReader) -> None:
        await anext(events)
        begun.set()

    loop = TurnLoop(agent, on_events=on_events, plan=lambda ctx, items: Plan(items[0], items))
    queue: asyncio.Queue[str] = asyncio.Queue()

    async def by_hand() -> None:
        while True:
            async with agent.start(await queue.get()) as run:
                await anext(run.events())
                begun.set()

    async def ours() -> float:
        begun.clear()
        at = perf_counter()
        loop.push("go")
        await begun.wait()
        seconds = perf_counter() - at
        for _ in range(40):  # let the turn end before the next one is measured
            await asyncio.sleep(0)
        return seconds

    async def bare() -> float:
        begun.clear()
        at = perf_counter()
        queue.put_nowait("go")
        await begun.wait()
        seconds = perf_counter() - at
        for _ in range(40):
            await asyncio.sleep(0)
        return seconds

    async with loop:
        worker = asyncio.create_task(by_hand())
        one, other = await side_by_side(ours, bare, rounds=ROUNDS, warm_up=WARM_UP)
        worker.cancel()
    table = Table("push to the first event of its turn", "p50", "p99", "aim p50", "")
    table.add("TurnLoop", micros(one.p50), micros(one.p99), micros(AIM_LATENCY), verdict(one.p50, AIM_LATENCY))
    table.add("a queue and agent.start, by hand", micros(other.p50), micros(other.p99), "", "")
    table.show()


async def crowd() -> None:
    """Many threads push at once; every item is counted."""
    seen: list[int] = []

    def plan(ctx: PlanContext[int], items: list[int]) -> Plan[int]:
        seen.extend(items)
        return Plan("go", items)

    refused: list[int] = []

    def push(first: int) -> None:
        for item in range(first, PUSHES, THREADS):
            if not loop.push(item).accepted:
                refused.append(item)

    loop: TurnLoop[int] = TurnLoop(Agent("instant", model=InstantModel()), plan=plan)
    threads = [threading.Thread(target=push, args=(number,)) for number in range(THREADS)]
    begun = perf_counter()
    async with loop:
        for thread in threads:
            thread.start()
        for thread in threads:
            await asyncio.to_thread(thread.join)
        seconds = perf_counter() - begun
        loop.stop(idle_for=0.05)
    lost = set(range(PUSHES)) - set(seen)
    assert not refused
    assert not lost, f"{len(lost)} items were lost"
    assert len(seen) == PUSHES, f"{len(seen) - PUSHES} items came twice"
    assert all(
        seen_by == sorted(seen_by) for seen_by in ([n for n in seen if n % THREADS == t] for t in range(THREADS))
    )
    table = Table(f"{PUSHES:,} pushes from {THREADS} threads", "seconds", "each", "lost", "")
    table.add("TurnLoop", f"{seconds:.2f}", micros(seconds / PUSHES), str(len(lost)), verdict(len(lost), 0))
    table.show()


async def idle() -> None:
    """What loops weigh that have nothing to do, and what they use of a processor."""
    agent = Agent("instant", model=InstantModel())
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    loops = [TurnLoop(agent) for _ in range(LOOPS)]
    for loop in loops:
        loop.start()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    gc.collect()
    kilobytes = (tracemalloc.get_traced_memory()[0] - before) / LOOPS / 1024
    tracemalloc.stop()
    cpu = process_time()
    await asyncio.sleep(IDLE_SECONDS)
    share = (process_time() - cpu) / IDLE_SECONDS
    begun = perf_counter()
    for loop in loops:
        loop.stop()
    for loop in loops:
        await loop.wait()
    seconds = perf_counter() - begun
    table = Table(f"{LOOPS:,} idle loops", "measured", "aim", "")
    table.add("memory of each", f"{kilobytes:.1f} KB", f"{AIM_KILOBYTES:.0f} KB", verdict(kilobytes, AIM_KILOBYTES))
    table.add("share of one processor", f"{share:.2%}", f"{AIM_CPU:.0%}", verdict(share, AIM_CPU))
    table.add("time to stop them all", f"{seconds:.2f} s", "", "")
    table.show()


def main() -> None:
    for part in (latency, crowd, idle):
        asyncio.run(part())
        print()


if __name__ == "__main__":
    main()

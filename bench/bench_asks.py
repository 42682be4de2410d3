"""What many asks cost, from 1 to 10,000: the whole price of each, and how long a bystander on the same loop is held.

`asked`: the time for the asks themselves, for each of them. `ended`: from the last ask until the run has ended. `held`:
the longest time for which another task on the loop did not get its turn after the asks. All are processor time: what
neighbours take does not count. The cycles of Python's collector are left out, as they depend on what else is in memory.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from time import thread_time

from bench.table import Table, micros, millis, times, verdict
from safepoint import Agent, CancelToken, Receipt, Run, SafePoint, tool
from safepoint.testing import ScriptedModel, call, say

NUMBERS = (1, 10, 100, 1_000, 10_000)
MOST_TIMES = 12.0  # ten times as many asks
LONGEST_HOLD = 0.010


class Held:
    """A task that asks for its turn again and again, and notes for how long it had to wait."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._task = asyncio.ensure_future(self._watch())

    async def _watch(self) -> None:
        while True:
            before = thread_time()
            await asyncio.sleep(0)
            self.longest = max(self.longest, thread_time() - before)

    async def end(self) -> float:
        self._task.cancel()
        await asyncio.wait([self._task])
        return self.longest


class Workplace:
    """A run whose tool waits; `deep`: a sub-agent's."""

    def __init__(self, *, deep: bool) -> None:
        self.started = asyncio.Event()
        self.gate = asyncio.Event()

        @tool
        async def slow() -> str:
            """Wait."""
            self.started.set()
            await self.gate.wait()
            return "done"

        worker = Agent("worker", model=ScriptedModel(call("slow"), say("done")), tools=[slow])
        boss = Agent("boss", model=ScriptedModel(call("worker", input="go"), say("fine")), tools=[worker.as_tool()])
        self.agent = boss if deep else worker


async def at_once(run: Run, number: int, at: SafePoint) -> float:
    """All in one step of a task."""
    before = thread_time()
    for _ in range(number):
        run.cancel(at, recursive=True)
    return thread_time() - before


async def one_by_one(run: Run, number: int, at: SafePoint) -> float:
    """The loop turns after each, and looks at it."""
    before = thread_time()
    for _ in range(number):
        run.cancel(at, recursive=True)
        await asyncio.sleep(0)
    return thread_time() - before


async def elsewhere(run: Run, number: int, at: SafePoint) -> float:
    """Each for a point of its own, which nothing comes to."""
    before = thread_time()
    for each in range(number):
        run.cancel(SafePoint.named(f"page {each}"), recursive=True)
    run.cancel(at)
    return thread_time() - before


async def from_a_thread(run: Run, number: int, at: SafePoint) -> float:
    def ask() -> float:
        before = thread_time()
        for _ in range(number):
            run.cancel(at, recursive=True)
        return thread_time() - before

    return await asyncio.to_thread(ask)


async def taken_back(run: Run, number: int, at: SafePoint) -> float:
    """Each is made, and taken back when all are made."""
    before = thread_time()
    receipts: list[Receipt] = [run.cancel(at, recursive=True) for _ in range(number)]
    for receipt in receipts:
        receipt.withdraw()
    return thread_time() - before


async def of_a_token(run: Run, number: int, at: SafePoint) -> float:
    token = run_tokens[run.id]
    before = thread_time()
    for _ in range(number):
        token.cancel(at, recursive=True)
    return thread_time() - before


run_tokens: dict[str, CancelToken] = {}
Way = Callable[[Run, int, SafePoint], Awaitable[float]]
WAYS: tuple[tuple[str, Way, SafePoint, bool], ...] = (
    ("NOW, one tool under way", at_once, SafePoint.NOW, False),
    ("NOW, a sub-agent under way", at_once, SafePoint.NOW, True),
    ("AFTER_TOOLS, one tool", at_once, SafePoint.AFTER_TOOLS, False),
    ("AFTER_TOOLS, a sub-agent", at_once, SafePoint.AFTER_TOOLS, True),
    ("a turn of the loop after each", one_by_one, SafePoint.AFTER_TOOLS, True),
    ("each for a point of its own", elsewhere, SafePoint.AFTER_TOOLS, True),
    ("from a thread", from_a_thread, SafePoint.AFTER_TOOLS, True),
    ("through a token", of_a_token, SafePoint.AFTER_TOOLS, True),
    ("and all taken back", taken_back, SafePoint.AFTER_TOOLS, True),
)


async def measure(number: int, way: Way, at: SafePoint, *, deep: bool) -> tuple[float, float, float]:
    """What the asks took, what came after them, and the longest hold of that."""
    place, token = Workplace(deep=deep), CancelToken()
    async with place.agent.start("go", token=token) as run:
        run_tokens[run.id] = token
        await place.started.wait()
        asked = await way(run, number, at)
        held, before = Held(), thread_time()
        await asyncio.sleep(0)
        place.gate.set()
        await run.wait()
        ended = thread_time() - before
    return asked, ended, await held.end()


async def best_of(number: int, way: Way, at: SafePoint, *, deep: bool) -> tuple[float, float, float]:
    """Each column's smallest of three: what the work itself takes."""
    rounds = [await measure(number, way, at, deep=deep) for _ in range(3)]
    asked, ended, held = (min(column) for column in zip(*rounds, strict=True))
    return asked, ended, held


async def curves() -> None:
    for name, way, at, deep in WAYS:
        table = Table(name, "asked, each", "ended", "all", "× before", "held", "aim")
        before = 0.0
        for number in NUMBERS:
            gc.collect()
            asked, ended, held = await best_of(number, way, at, deep=deep)
            total = asked + ended
            ratio = total / before if before else 1.0
            aims = {verdict(ratio, MOST_TIMES), verdict(held, LONGEST_HOLD)}
            met = "met" if aims == {"met"} else "MISSED"
            growth = times(ratio) if before else ""
            table.add(f"{number:,}", micros(asked / number), millis(ended), millis(total), growth, millis(held), met)
            before = total
        table.show()
        print()


def main() -> None:
    gc.disable()
    asyncio.run(curves())


if __name__ == "__main__":
    main()

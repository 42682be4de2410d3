"""What a live run weighs, and how long it takes to stop ten thousand of them with one ask.

All runs wait on a silent stream, each awaited by a task of its own; the bare agent (`bench/bare.py`) runs in that task.
The process whose resident memory is read does not trace, because tracing weighs something itself.
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import tracemalloc
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, process_time

from bench.bare import STOPPED, BareAgent
from bench.models import SilentModel
from bench.table import Table, verdict
from safepoint import Agent, StopReason

RUNS = 10_000
AIM_KILOBYTES = 25.0
AIM_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Weighed:
    """The memory of each, how long it took to stop them all, and what of that was this process's own CPU time."""

    kilobytes: float
    seconds: float
    cpu_seconds: float


def resident() -> int:
    """Bytes of this process that are in memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def traced() -> int:
    """Bytes that Python holds and has allocated since tracing began."""
    return tracemalloc.get_traced_memory()[0]


class Crowd(ABC):
    """Ten thousand tasks, each waiting at the same silent model in its own way."""

    def __init__(self) -> None:
        self.model = SilentModel(self._arrive)
        self._all_there = asyncio.Event()
        self._there = 0

    def _arrive(self) -> None:
        self._there += 1
        if self._there == RUNS:
            self._all_there.set()

    @abstractmethod
    async def wait(self) -> None: ...

    @abstractmethod
    def cancel(self, owners: list[asyncio.Task[None]]) -> None: ...

    async def weigh(self, memory: Callable[[], int]) -> Weighed:
        gc.collect()
        before = memory()
        owners = [asyncio.create_task(self.wait()) for _ in range(RUNS)]
        await self._all_there.wait()
        gc.collect()
        weight = memory() - before
        began, cpu_began = perf_counter(), process_time()
        self.cancel(owners)
        await asyncio.wait(owners)
        return Weighed(weight / RUNS / 1000, perf_counter() - began, process_time() - cpu_began)


class Runs(Crowd):
    def __init__(self) -> None:
        super().__init__()
        self._agent = Agent("silent", model=self.model)

    async def wait(self) -> None:
        result = await self._agent.run("go")
        assert result.stop_reason is StopReason.CANCELLED

    def cancel(self, owners: list[asyncio.Task[None]]) -> None:
        self._agent.cancel()


class BareTasks(Crowd):
    def __init__(self) -> None:
        super().__init__()
        self._agent = BareAgent(self.model)

    async def wait(self) -> None:
        messages = await self._agent.run("go")
        assert messages[-1].parts[-1] is STOPPED

    def cancel(self, owners: list[asyncio.Task[None]]) -> None:
        for owner in owners:
            owner.cancel()


def weigh(crowd: type[Crowd], memory: Callable[[], int]) -> Weighed:
    async def weigh_one() -> Weighed:
        return await crowd().weigh(memory)

    if memory is traced:
        tracemalloc.start()
    return asyncio.run(weigh_one())


def in_own_process(crowd: type[Crowd], memory: Callable[[], int]) -> Weighed:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(weigh, (crowd, memory))


def main() -> None:
    table = Table(f"{RUNS} live runs", "bare asyncio", "safepoint", "aim", "verdict")
    bare, ours = in_own_process(BareTasks, resident), in_own_process(Runs, resident)
    add_weight(table, "resident memory of each", bare, ours)
    add_weight(table, "traced memory of each", in_own_process(BareTasks, traced), in_own_process(Runs, traced))
    aim, met = f"≤ {AIM_SECONDS:g} s", verdict(ours.seconds, AIM_SECONDS)
    table.add("one ask stops them all", f"{bare.seconds:.2f} s", f"{ours.seconds:.2f} s", aim, met)
    table.add("its CPU time", f"{bare.cpu_seconds:.2f} s", f"{ours.cpu_seconds:.2f} s", "", "")
    table.show()


def add_weight(table: Table, label: str, bare: Weighed, ours: Weighed) -> None:
    aim, met = f"≤ {AIM_KILOBYTES:g} kB", verdict(ours.kilobytes, AIM_KILOBYTES)
    table.add(label, f"{bare.kilobytes:.1f} kB", f"{ours.kilobytes:.1f} kB", aim, met)


if __name__ == "__main__":
    main()

"""From the ask to the outcome: `run.cancel()` until the owner, who awaits the run, has its result.

Each shape is measured against bare asyncio of the same shape: a task per agent and per tool call, doing the same
awaits on the same model, stopped with `task.cancel()` and awaited. The bare one closes no history, keeps no text and
records nothing; the ratio is the price of all that. The last rows are CPU time, which a busy machine changes less.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from time import perf_counter, thread_time

from bench.models import FlowingModel, InstantModel, SilentModel
from bench.sample import side_by_side
from bench.table import Table, micros, times, verdict
from safepoint import Agent, StopReason, tool
from safepoint.agent.model import Model, ModelRequest
from safepoint.history.parts import user_message

AIM_P50 = 3.0
AIM_P99 = 10.0


class Asker:
    """Asks in the measuring task itself. `asked_at` is taken right before the ask."""

    where = "same thread"
    clock = staticmethod(perf_counter)

    def __init__(self) -> None:
        self.asked_at = 0.0

    def ask(self, cancel: Callable[[], object]) -> None:
        self.asked_at = self.clock()
        cancel()

    def cancel_task(self, task: asyncio.Task[None]) -> None:
        self.ask(task.cancel)

    def close(self) -> None:
        pass


class CpuAsker(Asker):
    """The same, by the CPU time of the thread."""

    where = "CPU time"
    clock = staticmethod(thread_time)


class ThreadAsker(Asker):
    """Asks from another thread, which has been waiting for its turn."""

    where = "another thread"

    def __init__(self) -> None:
        super().__init__()
        self._wishes: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while (cancel := self._wishes.get()) is not None:
            super().ask(cancel)

    def ask(self, cancel: Callable[[], object]) -> None:
        self._wishes.put(cancel)

    def cancel_task(self, task: asyncio.Task[None]) -> None:
        loop = asyncio.get_running_loop()
        self.ask(lambda: loop.call_soon_threadsafe(task.cancel))

    def close(self) -> None:
        self._wishes.put(None)
        self._thread.join()


class Shape(ABC):
    """One agent under way, and the same thing in bare asyncio. `ready` is set when there is something to cancel."""

    name: str
    rounds = 1000

    def __init__(self) -> None:
        self.ready = asyncio.Event()
        self.agent: Agent = self.make_agent()

    @abstractmethod
    def make_agent(self) -> Agent: ...

    @abstractmethod
    async def bare(self) -> None:
        """The same awaits by hand."""

    async def measure_ours(self, asker: Asker) -> float:
        self.ready.clear()
        async with self.agent.start("go") as run:
            await self.ready.wait()
            asker.ask(run.cancel)
            result = await run.wait()
            ended = asker.clock()
        assert result.stop_reason is StopReason.CANCELLED
        return ended - asker.asked_at

    async def measure_bare(self, asker: Asker) -> float:
        self.ready.clear()
        task = asyncio.create_task(self.bare())
        await self.ready.wait()
        asker.cancel_task(task)
        with suppress(asyncio.CancelledError):
            await task
        ended = asker.clock()
        assert task.cancelled()
        return ended - asker.asked_at


REQUEST = ModelRequest((user_message("go"),))


async def read(model: Model) -> None:
    async with model.stream(REQUEST) as chunks:
        async for _ in chunks:
            pass


class SilentStream(Shape):
    name = "silent stream"

    def make_agent(self) -> Agent:
        self.model = SilentModel(self.ready.set)
        return Agent("silent", model=self.model)

    async def bare(self) -> None:
        await read(self.model)


class FlowingStream(Shape):
    name = "flowing stream"

    def make_agent(self) -> Agent:
        self.model = FlowingModel(self.ready.set)
        return Agent("flowing", model=self.model)

    async def bare(self) -> None:
        await read(self.model)


class AsyncTool(Shape):
    name = "async tool"
    width = 1

    def make_agent(self) -> Agent:
        @tool
        async def slow() -> None:
            """Take a minute."""
            await self.sleep()

        self.running = 0
        self.model = InstantModel(*["slow"] * self.width)
        return Agent("tools", model=self.model, tools=[slow])

    async def sleep(self) -> None:
        self.running += 1
        if self.running == self.width:
            self.running = 0
            self.ready.set()
        await asyncio.sleep(60)

    async def bare(self) -> None:
        await read(self.model)
        async with asyncio.TaskGroup() as group:
            for _ in range(self.width):
                group.create_task(self.sleep())


class ParallelTools(AsyncTool):
    name = "100 parallel tools"
    width = 100
    rounds = 200


class NestedAgents(Shape):
    """Each agent is a tool of the one above; the innermost waits on a silent stream."""

    name = "3 nested agents"

    def make_agent(self) -> Agent:
        task = '{"input": "go"}'
        self.outer, self.middle = InstantModel("middle", arguments=task), InstantModel("inner", arguments=task)
        self.inner = SilentModel(self.ready.set)
        inner = Agent("inner", model=self.inner)
        middle = Agent("middle", model=self.middle, tools=[inner.as_tool()])
        return Agent("outer", model=self.outer, tools=[middle.as_tool()])

    async def bare(self) -> None:
        await self._level(self.outer, lambda: self._level(self.middle, lambda: read(self.inner)))

    async def _level(self, model: Model, inside: Callable[[], Coroutine[object, object, None]]) -> None:
        await read(model)
        async with asyncio.TaskGroup() as group:
            group.create_task(inside())


SHAPES: tuple[type[Shape], ...] = (SilentStream, FlowingStream, AsyncTool, NestedAgents, ParallelTools)


async def measure(asker: Asker, table: Table) -> None:
    for make in SHAPES:
        shape = make()
        ours, bare = await side_by_side(
            partial(shape.measure_ours, asker), partial(shape.measure_bare, asker), rounds=shape.rounds, warm_up=50
        )
        for label, percent, aim in (("p50", 50, AIM_P50), ("p99", 99, AIM_P99)):
            floor, cost = bare.percentile(percent), ours.percentile(percent)
            ratio = cost / floor
            table.add(
                f"{shape.name}, {asker.where}",
                label,
                micros(floor),
                micros(cost),
                times(ratio),
                f"≤ {aim:g}×",
                verdict(ratio, aim),
            )


def main() -> None:
    table = Table("ask → outcome", "", "bare asyncio", "safepoint", "ratio", "aim", "verdict")
    for asker in (Asker(), ThreadAsker(), CpuAsker()):
        try:
            asyncio.run(measure(asker, table))
        finally:
            asker.close()
    table.show()


if __name__ == "__main__":
    main()

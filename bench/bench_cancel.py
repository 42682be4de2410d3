"""From the ask to the outcome: `run.cancel()` until the owner, who awaits `run.wait()`, has its result.

Each shape is measured against bare asyncio of the same shape, `bench/bare.py`: from `task.cancel()` until the owner,
who awaits that task, has the conversation. The last rows are CPU time, which a busy machine changes less.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from time import perf_counter, thread_time

from bench.bare import STOPPED, BareAgent
from bench.models import FlowingModel, InstantModel, SilentModel
from bench.sample import side_by_side
from bench.table import Table, micros, times, verdict
from safepoint import Agent, StopReason, tool
from safepoint.history.parts import Message

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

    def cancel_task(self, task: asyncio.Task[list[Message]]) -> None:
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

    def cancel_task(self, task: asyncio.Task[list[Message]]) -> None:
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
        self.agent, self.bare = self.make_agents()

    @abstractmethod
    def make_agents(self) -> tuple[Agent, BareAgent]: ...

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
        task = asyncio.create_task(self.bare.run("go"))
        await self.ready.wait()
        asker.cancel_task(task)
        messages = await task
        ended = asker.clock()
        assert messages[-1].parts[-1] is STOPPED
        return ended - asker.asked_at


class SilentStream(Shape):
    name = "silent stream"

    def make_agents(self) -> tuple[Agent, BareAgent]:
        model = SilentModel(self.ready.set)
        return Agent("silent", model=model), BareAgent(model)


class FlowingStream(Shape):
    name = "flowing stream"

    def make_agents(self) -> tuple[Agent, BareAgent]:
        model = FlowingModel(self.ready.set)
        return Agent("flowing", model=model), BareAgent(model)


class AsyncTool(Shape):
    name = "async tool"
    width = 1

    def make_agents(self) -> tuple[Agent, BareAgent]:
        @tool
        async def slow() -> str:
            """Take a minute."""
            return await self.sleep()

        self.running = 0
        model = InstantModel(*["slow"] * self.width)
        return Agent("tools", model=model, tools=[slow]), BareAgent(model, {"slow": self.sleep})

    async def sleep(self) -> str:
        self.running += 1
        if self.running == self.width:
            self.running = 0
            self.ready.set()
        await asyncio.sleep(60)
        return "done"


class ParallelTools(AsyncTool):
    name = "100 parallel tools"
    width = 100
    rounds = 200


class NestedAgents(Shape):
    """Each agent is a tool of the one above; the innermost waits on a silent stream."""

    name = "3 nested agents"

    def make_agents(self) -> tuple[Agent, BareAgent]:
        task = '{"input": "go"}'
        last = SilentModel(self.ready.set)
        first, second = InstantModel("middle", arguments=task), InstantModel("inner", arguments=task)
        inner, bare_inner = Agent("inner", model=last), BareAgent(last)
        middle = Agent("middle", model=second, tools=[inner.as_tool()])
        bare_middle = BareAgent(second, {"inner": bare_inner.as_tool})
        outer = Agent("outer", model=first, tools=[middle.as_tool()])
        return outer, BareAgent(first, {"middle": bare_middle.as_tool})


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

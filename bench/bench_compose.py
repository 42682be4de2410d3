"""NOW in every shape of composite, four deep, with models that are silent: against a single agent's.

Depth 4 is three composites around the agents. Every model says two words and then nothing. What is measured is
`run.cancel()` until the owner, who awaits the run, has its result: all histories closed, all checkpoints made. A shape
in which several agents are silent is measured against as many single agents, stopped together with one token.

The collector's turn comes after so many allocations, and a bench allocates the same in every round: it would fall into
every second stop of one shape and into none of another, and always charge one side for both. So the young objects are
collected before each stop; a stop allocates too little to bring the next turn about.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from time import perf_counter, thread_time
from typing import Any

from bench.models import InstantModel, SilentModel
from bench.sample import side_by_side
from bench.table import Table, micros, times, verdict
from safepoint import Agent, BaseAgent, CancelToken, Handoff, Loop, Parallel, Sequential, StopReason
from safepoint.agent.model import Chunk, ModelRequest

AIM = 3.0
ROUNDS = 400
Shape = BaseAgent[None, Any]  # Any: outputs of every type


class Measured:
    """One agent or composite under way. `silent`: how many models are silent when there is something to cancel."""

    def __init__(self, make: Callable[[Callable[[], Agent]], Shape], silent: int) -> None:
        self._ready = asyncio.Event()
        self._silent = silent
        self._reached = 0
        self._made = 0
        self._agent = make(self._make_silent)

    def _make_silent(self) -> Agent:
        self._made += 1
        return Agent(f"silent{self._made}", model=SilentModel(self._falls_silent))

    def _falls_silent(self) -> None:
        self._reached += 1
        if self._reached == self._silent:
            self._ready.set()

    async def measure(self, clock: Callable[[], float]) -> float:
        self._ready.clear()
        self._reached = 0
        async with self._agent.start("go") as run:
            await self._ready.wait()
            gc.collect(1)
            asked = clock()
            run.cancel()
            result = await run.wait()
            ended = clock()
        assert result.stop_reason is StopReason.CANCELLED
        return ended - asked


class Single(Measured):
    """As many agents without any composite, under one token."""

    def __init__(self, number: int) -> None:
        super().__init__(lambda make: make(), number)
        self._agents = [self._make_silent() for _ in range(number)]

    async def measure(self, clock: Callable[[], float]) -> float:
        self._ready.clear()
        self._reached = 0
        token = CancelToken()
        async with AsyncExitStack() as stack:
            runs = [await stack.enter_async_context(agent.start("go", token=token)) for agent in self._agents]
            await self._ready.wait()
            gc.collect(1)
            asked = clock()
            token.cancel()
            for run in runs:
                await run.wait()
            ended = clock()
        return ended - asked


class Transferring(InstantModel):
    """Hands the conversation on, whoever spoke last."""

    @asynccontextmanager
    async def stream(self, request: ModelRequest, /) -> AsyncGenerator[AsyncIterator[Chunk]]:
        yield self._calls()


def _quick(number: int) -> Agent:
    return Agent(f"quick{number}", model=InstantModel())


def sequential(silent: Callable[[], Agent]) -> Shape:
    shape: Shape = silent()
    for depth in range(3):
        shape = Sequential(f"sequence{depth}", _quick(depth)).then(shape)
    return shape


def parallel(silent: Callable[[], Agent]) -> Shape:
    shape: Shape = silent()
    for depth in range(3):
        shape = Parallel(f"parallel{depth}", [shape])
    return shape


def wide_parallel(silent: Callable[[], Agent]) -> Shape:
    shape: Shape = silent()
    for depth in range(3):
        shape = Parallel(f"parallel{depth}", [shape, silent()])
    return shape


def loop(silent: Callable[[], Agent]) -> Shape:
    shape: Shape = silent()
    for depth in range(3):
        shape = Loop(f"loop{depth}", shape, max_rounds=2)
    return shape


def handoff(silent: Callable[[], Agent]) -> Shape:
    shape: Shape = silent()
    for depth in range(3):
        clerk = Agent(f"clerk{depth}", model=Transferring(f"transfer_to_{shape.name}"))
        shape = Handoff(f"desk{depth}", clerk, to={clerk: [shape]})
    return shape


def mixed(silent: Callable[[], Agent]) -> Shape:
    inner = Sequential("sequence", _quick(0)).then(silent())
    return Loop("loop", Parallel("parallel", [inner]), max_rounds=2)


SHAPES: tuple[tuple[str, Callable[[Callable[[], Agent]], Shape], int], ...] = (
    ("Sequential", sequential, 1),
    ("Parallel", parallel, 1),
    ("Loop", loop, 1),
    ("Handoff", handoff, 1),
    ("Loop of a Parallel of a Sequential", mixed, 1),
    ("Parallel, 4 silent agents in all", wide_parallel, 4),
)


async def measure(table: Table) -> None:
    for label, clock in (("wall", perf_counter), ("CPU", thread_time)):
        for name, make, silent in SHAPES:
            ours, alone = Measured(make, silent), Single(silent)
            composed, one = await side_by_side(
                partial(ours.measure, clock), partial(alone.measure, clock), rounds=ROUNDS, warm_up=50
            )
            ratio = composed.p50 / one.p50
            cells = (micros(one.p50), micros(composed.p50), times(ratio), f"≤ {AIM:g}×", verdict(ratio, AIM))
            table.add(f"{name}, {label}", *cells)


def main() -> None:
    table = Table("NOW at depth 4, p50", "without", "composite", "ratio", "aim", "verdict")
    asyncio.run(measure(table))
    table.show()


if __name__ == "__main__":
    main()

"""What it costs to keep a conversation: each step of a run made durable, and one more run after many.

The runs are the same ones, of an instant model and an instant tool; what differs is where they are kept. A session is
loaded once and then used, as a server does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from bench.models import SteppingModel
from bench.sample import side_by_side
from bench.table import Table, micros, times, verdict
from safepoint import Agent, Budget, Checkpoint, Message, RunResult, Text, tool
from safepoint.agent.journal import Said
from safepoint.history.parts import Role
from safepoint.sessions import MemoryStore, Session, SqliteStore, Store

STEPS = 20
ROUNDS = 40
SHORT, LONG = 100, 10_000
AIM = 1.3


@tool
async def nothing() -> None:
    """Do nothing."""


def agent(steps: int) -> Agent:
    return Agent("instant", model=SteppingModel("nothing", steps), tools=[nothing])


async def timed(run: Callable[[], Awaitable[RunResult[str]]]) -> float:
    began = perf_counter()
    result = await run()
    ended = perf_counter()
    assert result.text == "done"
    return ended - began


async def fresh(store: Store, agent: Agent) -> float:
    """A run in a session of its own; making that is not measured."""
    session = await Session.create(store)
    return await timed(partial(agent.run, "go", session=session))


async def measure_steps(table: Table, folder: Path) -> None:
    worker = agent(STEPS)
    sqlite = SqliteStore(folder / "steps.db")
    for name, store in ("memory", MemoryStore()), ("sqlite", sqlite):
        kept, bare = await side_by_side(
            partial(fresh, store, worker), partial(timed, partial(worker.run, "go")), rounds=ROUNDS, warm_up=5
        )
        steps = STEPS + 1  # the answer is one too
        ratio = times(kept.p50 / bare.p50)
        table.add(f"a step of a run, kept in {name}", micros(bare.p50 / steps), micros(kept.p50 / steps), ratio, "", "")
    await sqlite.aclose()


async def measure_checkpoint(table: Table) -> None:
    """What a stop after so many steps costs on top: the checkpoint, and its bytes written and read."""
    worker = agent(STEPS)

    async def stopped() -> float:
        began = perf_counter()
        result = await worker.run("go", budget=Budget(steps=STEPS))
        made = perf_counter()
        assert result.checkpoint is not None
        Checkpoint.from_bytes(result.checkpoint.to_bytes())
        written.append((perf_counter() - made) / STEPS)
        return made - began

    written: list[float] = []
    kept, bare = await side_by_side(stopped, partial(timed, partial(worker.run, "go")), rounds=ROUNDS, warm_up=5)
    each = (bare.p50 / (STEPS + 1), kept.p50 / STEPS)
    table.add("a step of a run, stopped with a checkpoint", *map(micros, each), times(each[1] / each[0]), "", "")
    table.add("its bytes, written and read, for each step", "", micros(sorted(written)[len(written) // 2]), "", "", "")


async def long_session(store: Store, length: int) -> Session:
    session = await Session.create(store, f"of {length}")
    epoch = await store.claim(session.id, "bench")
    roles: tuple[Role, Role] = ("user", "assistant")
    words = "some words of an ordinary remark, as people and models make them all day long; "
    talk = [Said(place, Message(roles[place % 2], (Text(f"{place}: {words}"),))) for place in range(length)]
    await store.append(session.id, epoch, talk)
    await store.release(session.id, "bench")
    return await Session.load(store, session.id)


async def one_more(session: Session, worker: Agent) -> float:
    """One more run; then its turn is taken back, which is not measured, so that the next finds the same."""
    cost = await timed(partial(worker.run, "go", session=session))
    await session.rewind()
    return cost


async def measure_length(table: Table, folder: Path) -> None:
    store = SqliteStore(folder / "length.db")
    short, long = [await long_session(store, length) for length in (SHORT, LONG)]
    for steps in 0, 1:
        worker = agent(steps)
        ours, bare = await side_by_side(
            partial(one_more, long, worker), partial(one_more, short, worker), rounds=ROUNDS, warm_up=5
        )
        ratio = ours.p50 / bare.p50
        name = f"one more run, {steps} tools, after {SHORT} and {LONG:,} messages"
        table.add(name, micros(bare.p50), micros(ours.p50), times(ratio), times(AIM), verdict(ratio, AIM))
    await store.aclose()


async def measure(table: Table) -> None:
    with TemporaryDirectory() as name:
        await measure_steps(table, Path(name))
        await measure_checkpoint(table)
        await measure_length(table, Path(name))


def main() -> None:
    table = Table("keeping it (p50)", "without", "with", "ratio", "aim", "")
    asyncio.run(measure(table))
    table.show()


if __name__ == "__main__":
    main()

"""A preview and what really happens then, compared over random trees of agents and tools on the virtual clock."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from safepoint import Agent, Checkpoint, Ladder, SafePoint, ToolContext, tool
from safepoint.agent.ledger import LedgerEntry
from safepoint.agent.preview import Fate, Preview
from safepoint.testing import ScriptedModel, call, pass_time, say
from safepoint.testing.clock import run_virtual
from safepoint.tools.base import BaseTool
from safepoint.tools.options import Effect
from tests.core.piece import for_ever

SEED = int(os.environ.get("SAFEPOINT_SEED", "739938"))
HAIR = 0.001  # ends a hair before its time is up
LADDER = Ladder(task=1.0, thread=0.25, term=2.0, kill=1.0, undo=2.0, cap=10.0)
LONGEST_RUNG = 3.0
# What the ledger says of a call with each fate, once the run has stopped.
STATES = {
    Fate.FINISHES: "finished",
    Fate.CONTINUES: "stopped",
    Fate.RUNS_AGAIN: "cut",
    Fate.IN_DOUBT: "cut",
    Fate.UNDONE: "compensated",
    Fate.NEVER_STARTS: "not_started",
}


@dataclass
class Grown:
    """A random tree. `greedy`: everything in it uses all the time it is given, less a hair."""

    dice: random.Random
    greedy: bool
    names: Iterator[int] = field(default_factory=lambda: iter(range(10_000)))

    def part(self, most: float) -> float:
        return most - HAIR if self.greedy else self.dice.choice([0.0, most / 2, most - HAIR])

    def agent(self, depth: int) -> Agent[None]:
        tools = [self.tool(depth) for _ in range(self.dice.randint(1, 3))]
        name = f"agent{next(self.names)}"
        arguments = [{"input": "go"} if each.stop_policy.kind == "child" else {} for each in tools]
        model = ScriptedModel(
            [call(each.name, given) for each, given in zip(tools, arguments, strict=True)], say("done")
        )
        room = self.dice.choice([None, None, 1, 2])
        return Agent(name, model=model, tools=tools, max_parallel_tools=room, ladder=LADDER)

    def tool(self, depth: int) -> BaseTool:
        if depth and self.dice.random() < 0.4:
            return self.agent(depth - 1).as_tool()
        return self.dice.choice([self.plain, self.plain, self.finishing, self.shielding])()

    def plain(self) -> BaseTool:
        grace = self.dice.choice([0.5, 1.0, 3.0])
        tidy, undoing = self.part(grace), self.part(LADDER.undo)

        async def work() -> None:
            try:
                await for_ever()
            finally:
                await pass_time(tidy)

        async def undo() -> None:
            await pass_time(undoing)

        made = tool(name=f"plain{next(self.names)}", grace=grace, effect=self.dice.choice(list(Effect)))
        if self.dice.random() < 0.4:
            made = tool(name=f"undone{next(self.names)}", grace=grace, effect=Effect.EFFECTFUL, undo=undo)
        return made(work)

    def finishing(self) -> BaseTool:
        grace = self.dice.choice([1.0, 3.0])
        lasts = 1.0 + HAIR / 2 + self.part(grace)  # the stop comes after one second

        async def work() -> str:
            await pass_time(lasts)
            return "finished"

        return tool(name=f"finishing{next(self.names)}", grace=grace, on_cancel="finish")(work)

    def shielding(self) -> BaseTool:
        seconds = self.dice.choice([2.0, 4.0])
        inside, tidy = 1.0 + self.part(seconds - 1.0), self.part(1.0)

        async def work(ctx: ToolContext) -> None:
            async with ctx.shield(seconds):
                await pass_time(inside)
            try:
                await for_ever()
            finally:
                await pass_time(tidy)

        return tool(name=f"shielding{next(self.names)}", grace=1.0)(work)


def states(checkpoint: Checkpoint, path: str) -> Iterator[tuple[str, LedgerEntry]]:
    """Each entry of a stopped run's ledger and of those inside it, by its path."""
    for entry in checkpoint.ledger:
        where = f"{path}/{entry.name}:{entry.call_id}"
        yield where, entry
        inside = checkpoint.calls[entry.call_id].child if entry.call_id in checkpoint.calls else None
        if inside is not None:
            yield from states(inside, f"{where}/{entry.name}")


async def stop_and_compare(seed: int, *, greedy: bool) -> None:
    dice = random.Random(seed)
    grown = Grown(dice, greedy)
    agent = grown.agent(depth=2)
    at = dice.choice([SafePoint.NOW, SafePoint.NOW, SafePoint.FORCE])
    async with agent.start("go") as run:
        await pass_time(1.0)
        told = run.preview_cancel(at)
        asked = run.node.clock.now()
        await run.cancel(at).wait()
        took = run.node.clock.now() - asked
    assert told.seconds is not None
    assert took <= told.seconds + HAIR, (seed, took, told)
    if greedy and at is SafePoint.NOW:
        assert told.seconds - took <= LONGEST_RUNG, (seed, took, told)
    assert run.result.checkpoint is not None
    compare_fates(seed, told, run.result.checkpoint, agent.name)
    await pass_time(60)  # what was abandoned has ended, too


def compare_fates(seed: int, told: Preview, left: Checkpoint, path: str) -> None:
    fates = {each.path: each for each in told.calls}
    for where, entry in states(left, path):
        if entry.state == "cut" and entry.still_running:
            continue  # it was abandoned with the time of FORCE, whatever it would have done
        assert where in fates or entry.state == "finished", (seed, where, entry)
        if where in fates:
            assert STATES[fates[where].fate] == entry.state, (seed, where, fates[where], entry)


def compare(seeds: range) -> None:
    for seed in seeds:
        greedy = seed % 2 == 0

        async def body(seed: int = seed, greedy: bool = greedy) -> None:
            await stop_and_compare(seed, greedy=greedy)

        run_virtual(body)


def test_no_stop_takes_longer_than_its_preview_says_and_every_call_meets_its_fate() -> None:
    compare(range(SEED, SEED + 150))


@pytest.mark.proof
@pytest.mark.timeout(1800)
def test_ten_thousand_previews_come_true() -> None:
    compare(range(SEED, SEED + 10_000))

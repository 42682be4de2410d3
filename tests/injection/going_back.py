"""Runs that go back to an earlier step and go on from there: what was done since is undone first."""

from __future__ import annotations

import asyncio

from safepoint import Agent, Checkpoint, SafePoint, tool
from safepoint.testing import call, say
from tests.injection.parts import A_MOMENT, A_WHILE, agent, look


async def _give_back() -> None:
    await asyncio.sleep(A_MOMENT)


async def _cannot_give_back() -> None:
    await asyncio.sleep(A_MOMENT)
    raise ConnectionError("gone")


@tool(undo=_give_back)
async def book() -> str:
    """Has an effect that can be undone."""
    await asyncio.sleep(A_MOMENT)
    return "booked"


@tool(undo=_cannot_give_back)
async def pay() -> str:
    """Has an effect whose undo fails."""
    await asyncio.sleep(A_MOMENT)
    return "paid"


def _traveller() -> Agent:
    return agent(call("look"), [call("book"), call("look")], call("pay"), say("done"), tools=[look, book, pay])


async def _stopped(one: Agent) -> Checkpoint | None:
    """Where the run stands after its calls."""
    async with one.start("go") as run:
        await run.cancel(SafePoint.after_step(3)).wait()
    return run.result.checkpoint


async def taken_back_and_continued() -> None:
    one = _traveller()
    checkpoint = await _stopped(one)
    if checkpoint is not None and checkpoint.step == 3:
        checkpoint = checkpoint.at(1)
    while checkpoint is not None:
        checkpoint = (await one.resume(checkpoint)).checkpoint


async def taken_back_and_stopped_while_it_undoes() -> None:
    """What the stop leaves over is undone by the next run."""
    one = _traveller()
    checkpoint = await _stopped(one)
    if checkpoint is None or checkpoint.step < 3:
        return
    async with one.start(None, checkpoint=checkpoint.at(1)) as run:
        await asyncio.sleep(A_MOMENT / 2)
        run.cancel(SafePoint.NOW)
        await asyncio.sleep(A_WHILE)
    checkpoint = run.result.checkpoint
    while checkpoint is not None:
        checkpoint = (await one.resume(Checkpoint.from_bytes(checkpoint.to_bytes()))).checkpoint

"""A queue worker that drains on SIGTERM: the running job stops at a safe point, and the next worker continues it."""

import asyncio
import os
import signal
import tempfile
from pathlib import Path

from pydantic import BaseModel

from safepoint import Agent, SafePoint, TurnLoop, tool
from safepoint.testing import RuleModel, call, say
from safepoint.turns import ItemCodec, Plan, PlanContext, SqliteTurnStore


class Job(BaseModel):
    number: int


done: list[int] = []


@tool
async def resize(width: int = 100) -> str:
    """Resize a picture."""
    done.append(width)
    if len(done) == 1:
        os.kill(os.getpid(), signal.SIGTERM)  # the deploy comes in the middle of the first job
    await asyncio.sleep(0.05)
    return "resized"


def plan(ctx: PlanContext[Job], jobs: list[Job]) -> Plan[Job]:
    """One job at a time; the others wait."""
    return Plan(f"Do job {jobs[0].number}.", jobs[:1], jobs[1:])


async def worker(folder: Path, *jobs: Job) -> tuple[list[Job], list[Job]]:
    store = SqliteTurnStore(folder / "worker.db")
    model = RuleModel({f"Do job {n}.": call("resize") for n in range(1, 4)}, otherwise=say("Done."))
    loop = TurnLoop(
        Agent("worker", model=model, tools=[resize]),
        plan=plan,
        store=store,
        checkpoint_id="worker",
        codec=ItemCodec.of(Job),
    )
    handle = asyncio.get_running_loop().add_signal_handler
    handle(signal.SIGTERM, lambda: loop.stop(SafePoint.ANY, within=5, cause="SIGTERM"))
    receipts = [loop.push(job) for job in jobs]
    async with loop:
        for receipt in receipts:
            await receipt.saved()  # now the broker may forget it
        loop.stop(idle_for=0.2)
    await store.aclose()
    exit = await loop.wait()
    print(f"{exit.reason}: {exit.interrupted} was cut, {exit.unhandled} wait, record {exit.checkpoint.state}")
    return exit.interrupted, exit.unhandled


with tempfile.TemporaryDirectory() as folder:
    first, second, third = (Job(number=number) for number in (1, 2, 3))
    assert asyncio.run(worker(Path(folder), first, second, third)) == ([first], [second, third])
    assert asyncio.run(worker(Path(folder))) == ([], [])  # a new process: it goes on behind the call of the first job
    assert len(done) == 3

"""A research pipeline with a critic loop: stopped in the middle of a round, it resumes there and not from the start."""

import asyncio
from dataclasses import dataclass

from pydantic import BaseModel

from safepoint import Agent, Checkpoint, Finished, Loop, Sequential
from safepoint.testing import ScriptedModel, say, stall


class Review(BaseModel):
    good: bool
    notes: str


@dataclass(frozen=True)
class Draft:
    text: str
    review: Review


def judged(draft: Finished[str], review: Finished[Review]) -> Draft:
    return Draft(draft.output, review.output)


writing = asyncio.Event()
researcher = Agent("researcher", model=ScriptedModel(say("Tea came to Europe by ship.")))
writer = Agent(
    "writer",
    model=ScriptedModel(say("Tea is old."), stall(on_reached=writing.set), say("Tea came to Europe by ship, late.")),
)
critic = Agent(
    "critic",
    model=ScriptedModel(say('{"good": false, "notes": "say how it came"}'), say('{"good": true, "notes": ""}')),
    output=Review,
)

one_round = Sequential("round", writer).then(critic, combine=judged)
improve = Loop(
    "improve",
    one_round,
    until=lambda done: done.output.review.good,
    again=lambda done: f"{done.output.text}\nThe critic says: {done.output.review.notes}",
    max_rounds=5,
)
pipeline = Sequential("pipeline", researcher).then(improve, input=lambda found: f"{found.prompt}\n{found.output}")


async def main() -> None:
    async with pipeline.start("Write a sentence about tea.") as run:
        await writing.wait()
        print("live:", [node.path for node in run.tree.walk()][-1])
        run.cancel(reason="lunch")
    print("stopped:", {entry.call_id: str(entry.state) for entry in run.result.ledger})

    assert run.result.checkpoint is not None
    kept = run.result.checkpoint.to_bytes()  # a file, a database, another machine
    result = await pipeline.resume(Checkpoint.from_bytes(kept))
    print("rounds:", [child.name for child in result.children[1].result.children])
    print("answer:", result.output.text)


asyncio.run(main())

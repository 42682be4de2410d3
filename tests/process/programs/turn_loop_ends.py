"""A program with a loop that simply ends, many times: nobody stops the loop, and nobody waits for it.

Arguments: the folder, and how often.
"""

from __future__ import annotations

import asyncio
import random
import sys
from pathlib import Path

from safepoint import Agent, TurnLoop, tool
from safepoint.testing import ScriptedModel, call
from safepoint.turns import SqliteTurnStore
from tests.process.programs.telling import tell


@tool
async def work() -> str:
    """Work for a while."""
    await asyncio.sleep(0.01)
    return "done"


async def main(folder: Path, number: int) -> None:
    store = SqliteTurnStore(folder / "loops.db")
    agent = Agent("worker", model=ScriptedModel(call("work"), repeat=True), tools=[work])
    loop = TurnLoop(agent, store=store, checkpoint_id=str(number))
    loop.start()
    await loop.push("item").saved()
    await asyncio.sleep(random.Random(number).random() * 0.03)


async def left(folder: Path, times: int) -> list[list[str]]:
    """What each loop has left behind."""
    store, found = SqliteTurnStore(folder / "loops.db"), list[list[str]]()
    for number in range(times):
        loop = TurnLoop(Agent("worker", model=ScriptedModel()), store=store, checkpoint_id=str(number))
        loop.stop()
        loop.start()
        exit = await loop.wait()
        found.append([*exit.interrupted, *exit.unhandled])
    await store.aclose()
    return found


if __name__ == "__main__":
    for number in range(int(sys.argv[2])):
        asyncio.run(main(Path(sys.argv[1]), number))
    tell("LEFT", items=asyncio.run(left(Path(sys.argv[1]), int(sys.argv[2]))))

"""A process that works on one SQLite session until it is done, or killed: start it again and it goes on.

Each effect is one line in a file, so that what reached the world outlives every kind of death.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from safepoint import Agent, check_history, tool
from safepoint.agent.model import CallDelta, Chunk, Finish, ModelRequest, TextDelta
from safepoint.errors import SessionExists
from safepoint.sessions import Session, SqliteStore

STEPS = 12


class Counting:
    """Asks for two effects in each step; which ones depends on the conversation alone."""

    name = "counting"

    def stream(self, request: ModelRequest, /) -> AbstractAsyncContextManager[AsyncIterator[Chunk]]:
        asked = sum(len(message.tool_calls) for message in request.messages)
        return self._playing(asked)

    @asynccontextmanager
    async def _playing(self, asked: int) -> AsyncGenerator[AsyncIterator[Chunk]]:
        yield self._chunks(asked)

    async def _chunks(self, asked: int) -> AsyncGenerator[Chunk]:
        yield TextDelta(f"after {asked} effects")
        await asyncio.sleep(0.002)
        if asked < 2 * STEPS:
            for index in range(2):
                yield CallDelta(index, f"call_{asked + index}", "act", f'{{"x": {asked + index}}}')
        yield Finish("tool_calls" if asked < 2 * STEPS else "end_turn", 1, 1)


async def main(folder: Path) -> None:
    @tool
    async def act(x: int) -> str:
        """Change the world."""
        await asyncio.sleep(0.003)
        with (folder / "effects").open("a") as file:
            file.write(f"{x}\n")
        await asyncio.sleep(0.003)
        return f"did {x}"

    store = SqliteStore(folder / "session.db")
    agent = Agent("worker", model=Counting(), tools=[act])
    try:
        session = await Session.create(store, "s")
    except SessionExists:
        session = await Session.load(store, "s")
    check_history(session.messages)
    (folder / "ready").write_text(str(os.getpid()))
    if session.checkpoint is not None:
        result = await agent.resume(session.checkpoint, session=session)
    elif not session.messages:
        result = await agent.run("go", session=session)
    else:
        return
    assert result.stop_reason == "end_turn", result
    await store.aclose()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))

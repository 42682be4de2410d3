"""An app for the bench of hand-overs: it logs, with the time, each effect and each call of its model."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

from safepoint import Agent, tool
from safepoint.models import CallDelta, Chunk, Finish, ModelRequest, TextDelta

STEPS = 3


def log(what: str, name: str) -> None:
    """A single write, so that processes can share the file."""
    with open(os.environ["TOOL_LOG"], "a", encoding="utf-8") as file:
        file.write(f"{what} {name} {os.getpid()} {time.time()}\n")


@tool(effect="irreversible")
async def work(name: str, seconds: float) -> str:
    """Take some time, and then do something that must be done once."""
    await asyncio.sleep(seconds)
    log("did", name)
    return "done"


class Steps:
    """Calls the tool, step by step, as often as the app does; the message is NAME SECONDS."""

    name = "steps"

    @asynccontextmanager
    async def stream(self, request: ModelRequest, /) -> AsyncGenerator[AsyncIterator[Chunk]]:
        """Cancellation: the stream is closed."""
        name, _, seconds = request.messages[0].text.partition(" ")
        step = sum(message.role == "assistant" for message in request.messages)
        log("asked", name)
        chunks = self._chunks(f"{name}.{step}", seconds, step)
        try:
            yield chunks
        finally:
            await chunks.aclose()

    async def _chunks(self, effect: str, seconds: str, step: int) -> AsyncGenerator[Chunk]:
        if step < STEPS:
            yield CallDelta(0, f"call_{effect}", "work", f'{{"name": "{effect}", "seconds": {seconds}}}')
        else:
            yield TextDelta("done")
        yield Finish("tool_calls" if step < STEPS else "end_turn")


agent = Agent("mover", model=Steps(), tools=[work])

"""`chain NAME SECONDS`: three effects, one after the other, each with a line in a file; then `done`.

An effect that was cut, so that its outcome is unknown, is not tried again: the next one follows.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic

from safepoint import Agent, tool
from safepoint.models import CallDelta, Chunk, Finish, ModelRequest, TextDelta

STEPS = 3


def did(what: str) -> None:
    """One line in each of two files, the second with who and when. A single write: processes share the files."""
    for path, line in ((os.environ["TOOL_LOG"], what), (os.environ["TIME_LOG"], f"{what} {os.getpid()} {monotonic()}")):
        with open(path, "a", encoding="utf-8") as log:
            log.write(f"{line}\n")


@tool
async def effect(name: str, step: int, seconds: float) -> str:
    """Do it, and then take so long."""
    did(f"{name} {step}")
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        did(f"{name} cut")
        raise
    return f"{name} {step} is done"


class Chain:
    """The next effect, until there were three."""

    name = "chain"

    @asynccontextmanager
    async def stream(self, request: ModelRequest, /) -> AsyncGenerator[AsyncIterator[Chunk]]:
        """Cancellation: the stream is closed."""
        chunks = self._chunks(request)
        try:
            yield chunks
        finally:
            await chunks.aclose()

    async def _chunks(self, request: ModelRequest) -> AsyncGenerator[Chunk]:
        asked = next(message for message in reversed(request.messages) if message.role == "user")
        _, name, seconds = asked.text.split(" ")
        calls = sum(len(message.tool_calls) for message in request.messages)
        await asyncio.sleep(0.01)
        if calls < STEPS:
            arguments = {"name": name, "step": calls, "seconds": float(seconds)}
            yield CallDelta(0, f"call_{name}_{calls}", "effect", json.dumps(arguments))
            yield Finish("tool_calls")
        else:
            yield TextDelta("done")
            yield Finish("end_turn")


agent = Agent("chain", model=Chain(), tools=[effect])

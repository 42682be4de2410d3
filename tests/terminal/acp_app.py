"""The agent in the recording of an ACP client: it talks at the pace of a model, and runs a command that takes long."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager

from safepoint import Agent
from safepoint.models import CallDelta, Chunk, Finish, ModelRequest, TextDelta
from safepoint.tools import shell

PACE = 0.07  # seconds for a word
COMMAND = "echo test 1 of 900; sleep 3600"
TALE = (
    "The first lighthouses were fires on hills. Pharos, at Alexandria, was built about 280 BC and stood for more than "
    "fifteen centuries. Its light was said to be seen from thirty miles away, and its name became the word for a "
    "lighthouse in many languages. Mirrors came next, then lenses, then clockwork."
)


class Paced:
    """Answers by what the last message of the person says."""

    name = "paced"

    @asynccontextmanager
    async def stream(self, request: ModelRequest, /) -> AsyncGenerator[AsyncIterator[Chunk]]:
        async with aclosing(self._chunks(request)) as chunks:
            yield chunks

    async def _chunks(self, request: ModelRequest) -> AsyncGenerator[Chunk]:
        asked = [message.text for message in request.messages if message.role == "user"][-1]
        if "tests" in asked:
            yield CallDelta(0, id="call-1", name="shell", arguments=json.dumps({"command": COMMAND}))
            yield Finish("tool_calls")
            return
        told = "The command was cut while it ran; what came of it is unknown. The story before it was cut, too."
        for word in (TALE if "lighthouses" in asked else told).split():
            await asyncio.sleep(PACE)
            yield TextDelta(f"{word} ")
        yield Finish("end_turn")


agent = Agent("assistant", model=Paced(), tools=[shell()])

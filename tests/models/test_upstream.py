"""A model call over a connection that does not end by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import count

from safepoint.agent.model import Finish, ModelRequest, TextDelta
from safepoint.history.parts import Message, Text
from safepoint.models.openai_wire import Reader
from safepoint.models.upstream import TAIL, Events, Upstream
from safepoint.testing import pass_time
from tests.models.openai_stream import USAGE, completion
from tests.virtual import virtual


class Chatty:
    """A response whose reply is complete, and which goes on to send token counts, twice a second."""

    def __init__(self) -> None:
        self.closed = False

    async def __aiter__(self) -> AsyncIterator[object]:
        yield completion({"content": "Hello."}, "stop")
        for _ in count():
            await pass_time(0.5)
            yield USAGE

    async def close(self) -> None:
        self.closed = True


class ChattyModel(Upstream):
    def __init__(self) -> None:
        self.events = Chatty()

    @property
    def name(self) -> str:
        return "chatty"

    async def _open(self, request: ModelRequest) -> tuple[Events, Reader]:
        return self.events, Reader()

    def _failure(self, error: Exception) -> Exception:
        return error


@virtual
async def test_a_reply_that_is_complete_ends_although_its_provider_goes_on() -> None:
    model, loop = ChattyModel(), asyncio.get_running_loop()
    begun = loop.time()
    async with asyncio.timeout(1000), model.stream(ModelRequest((Message("user", (Text("hi"),)),))) as chunks:
        received = [chunk async for chunk in chunks]
    assert received == [TextDelta("Hello."), Finish("end_turn", 100, 20, 64, 5, "chatcmpl-1", "m")]
    assert loop.time() - begun == TAIL
    assert model.events.closed

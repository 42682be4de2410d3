"""Models for benchmarks. They keep nothing of what they are asked, so that what is measured is the runtime."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager

from safepoint.agent.model import CallDelta, Chunk, Finish, ModelRequest, TextDelta

FLOWS = 20


class SilentModel:
    """Says two words and then nothing, for ever. `on_silence` is called when it has come to that."""

    name = "silent"

    def __init__(self, on_silence: Callable[[], object]) -> None:
        self._on_silence = on_silence

    @asynccontextmanager
    async def stream(self, _request: ModelRequest, /) -> AsyncGenerator[AsyncIterator[Chunk]]:
        yield self._chunks()

    async def _chunks(self) -> AsyncGenerator[Chunk]:
        yield TextDelta("one moment")
        self._on_silence()
        await asyncio.get_running_loop().create_future()


class FlowingModel:
    """A word in every turn of the loop, for ever. `on_flow` is called after the first few."""

    name = "flowing"

    def __init__(self, on_flow: Callable[[], object]) -> None:
        self._on_flow = on_flow

    @asynccontextmanager
    async def stream(self, _request: ModelRequest, /) -> AsyncGenerator[AsyncIterator[Chunk]]:
        yield self._chunks()

    async def _chunks(self) -> AsyncGenerator[Chunk]:
        said = 0
        while True:
            yield TextDelta("word ")
            said += 1
            if said == FLOWS:
                self._on_flow()
            await asyncio.sleep(0)


class InstantModel:
    """Answers without waiting for anything: first with a call of each of these tools, if any, then with a word."""

    name = "instant"

    def __init__(self, *tools: str, arguments: str = "{}") -> None:
        self._tools = tools
        self._arguments = arguments

    @asynccontextmanager
    async def stream(self, request: ModelRequest, /) -> AsyncGenerator[AsyncIterator[Chunk]]:
        asked_by_user = request.messages[-1].role == "user"
        yield self._calls() if self._tools and asked_by_user else self._answer()

    async def _calls(self) -> AsyncGenerator[Chunk]:
        for place, name in enumerate(self._tools):
            yield CallDelta(place, f"call_{place}", name, self._arguments)
        yield Finish("tool_calls", input_tokens=10, output_tokens=10)

    async def _answer(self) -> AsyncGenerator[Chunk]:
        yield TextDelta("done")
        yield Finish("end_turn", input_tokens=10, output_tokens=1)


class SteppingModel:
    """Calls one tool in each of so many steps of a turn, without waiting for anything, then answers with a word."""

    name = "stepping"

    def __init__(self, tool: str, steps: int) -> None:
        self._tool = tool
        self._steps = steps

    @asynccontextmanager
    async def stream(self, request: ModelRequest, /) -> AsyncGenerator[AsyncIterator[Chunk]]:
        made = 0
        while request.messages[-1 - 2 * made].role == "tool":
            made += 1
        yield self._chunks(made)

    async def _chunks(self, made: int) -> AsyncGenerator[Chunk]:
        if made < self._steps:
            yield CallDelta(0, None, self._tool, "{}")
            yield Finish("tool_calls", input_tokens=10, output_tokens=10)
        else:
            yield TextDelta("done")
            yield Finish("end_turn", input_tokens=10, output_tokens=1)

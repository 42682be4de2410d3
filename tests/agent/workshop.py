"""Models and tools that wait until a test lets them go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

from safepoint import Tool, tool
from safepoint.agent.model import Chunk, ModelRequest
from safepoint.testing import ScriptedModel
from safepoint.testing.models import Reply
from safepoint.tools.options import EffectLike


class HeldModel(ScriptedModel):
    """Plays its script, but holds its nth reply after the first chunk until it is let go."""

    def __init__(self, *replies: Reply, hold: int = 1, name: str = "held") -> None:
        super().__init__(*replies, name=name)
        self.reached = asyncio.Event()
        self.gate = asyncio.Event()
        self._hold = hold

    @asynccontextmanager
    async def stream(self, request: ModelRequest, /) -> AsyncGenerator[AsyncIterator[Chunk]]:
        async with super().stream(request) as chunks:
            yield self._held(chunks) if self.calls == self._hold else chunks

    async def _held(self, chunks: AsyncIterator[Chunk]) -> AsyncGenerator[Chunk]:
        yield await anext(chunks)
        self.reached.set()
        await self.gate.wait()
        async for chunk in chunks:
            yield chunk


class Gate:
    """A tool that says when it has started, and then waits until it is let go."""

    def __init__(self, name: str, effect: EffectLike = "effectful", *, open: bool = False) -> None:
        self.name = name
        self.started = asyncio.Event()
        self.gate = asyncio.Event()
        self.runs = 0
        self.cancels = 0
        if open:
            self.gate.set()

        async def body() -> str:
            return await self._body()

        self.tool: Tool[[], object] = tool(name=name, effect=effect)(body)

    async def _body(self) -> str:
        self.runs += 1
        self.started.set()
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancels += 1
            raise
        return f"{self.name} is done"

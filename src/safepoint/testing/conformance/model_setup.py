"""What the rules for models need: a model whose provider behaves as told, and a count of open connections.

The author of the model knows what its provider sends. So the factory gets a `Situation` and returns a model that is
connected to a stand-in that plays it: a canned transport, or a small server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from safepoint.agent.model import Chunk, Finish, Model, ModelRequest, TextDelta
from safepoint.history.parts import Message, Text
from safepoint.tools.base import ToolSpec

_PLACE = {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}
REQUEST = ModelRequest(
    (Message("user", (Text("What is in the attic?"),)),), "Be brief.", (ToolSpec("look", "Look somewhere.", _PLACE),)
)
# How often, and how long each time, a connection that should be closed is checked again: a server needs time to notice.
_LOOKS = 20
_BETWEEN = 0.05


class Situation(StrEnum):
    """How the provider behaves, each time it is asked."""

    ANSWER = "answer"
    """It answers in words, in two pieces or more."""
    TOOL_CALL = "tool_call"
    """It calls the tool `look`, which the request offers, with some `place`."""
    SILENT = "silent"
    """It takes the request and never says a word."""
    STALLS = "stalls"
    """It says a few words, and then nothing, for ever."""
    BUSY = "busy"
    """It refuses before the first word, and may be asked again: 429, 503, no connection."""
    BREAKS = "breaks"
    """It says a few words, and then the connection is lost."""
    ENDS_EARLY = "ends_early"
    """It says a few words, and then its stream ends as if all were well, but without the provider's own end mark."""


@dataclass(frozen=True, slots=True)
class ModelSetup:
    """A model, and how many connections to its provider are open right now."""

    model: Model
    open_connections: Callable[[], int]

    async def read(self) -> list[Chunk]:
        """A whole reply. Cancellation: lands in the model's own code."""
        chunks: list[Chunk] = []
        async with self.model.stream(REQUEST) as stream:
            async for chunk in stream:
                chunks.append(chunk)
        return chunks

    async def read_until(self, wanted: type[Chunk]) -> list[Chunk]:
        """Leave the block with the first chunk of that type. Cancellation: as in `read`."""
        chunks: list[Chunk] = []
        async with self.model.stream(REQUEST) as stream:
            async for chunk in stream:
                chunks.append(chunk)
                if isinstance(chunk, wanted):
                    break
        return chunks

    async def check_closed(self, after: str) -> None:
        """Check that no connection is open. Cancellation: only the check ends."""
        for _ in range(_LOOKS):
            if self.open_connections() == 0:
                return
            await asyncio.sleep(_BETWEEN)
        raise AssertionError(f"{after}, {self.open_connections()} connections are still open")


MakeModel: TypeAlias = Callable[[Situation], AbstractAsyncContextManager[ModelSetup]]


def text_of(chunks: list[Chunk]) -> str:
    return "".join(chunk.text for chunk in chunks if isinstance(chunk, TextDelta))


def finish_of(chunks: list[Chunk]) -> Finish:
    found = [chunk for chunk in chunks if isinstance(chunk, Finish)]
    assert found, f"the reply has no Finish: {chunks!r}"
    return found[-1]

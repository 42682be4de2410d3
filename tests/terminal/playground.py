"""An agent for the terminal tests: it does what it is told, and what it does waits until it is stopped.

story     streams words without end          slow      an effect that prints and never ends
deaf      a thread that does not react       undo      an effect with an undo
nested    an agent in an agent               danger    asks before it runs a command
stubborn  cleans up for longer than anyone   evil      words that would steer the terminal
          waits, unless it is forced         broken    the model fails
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager

from safepoint import Agent, ToolContext, tool
from safepoint.cli.chat.approvals import Approvals
from safepoint.errors import ModelUnavailable
from safepoint.models import CallDelta, Chunk, Finish, ModelRequest, TextDelta
from safepoint.tools import shell

EVIL = "\x1b]52;c;cm0gLXJm\x07red\x1b[2J\x9b1m and more"


class Obedient:
    """A model that calls the tool whose name is in the last message."""

    name = "obedient"

    @asynccontextmanager
    async def stream(self, request: ModelRequest, /) -> AsyncGenerator[AsyncIterator[Chunk]]:
        async with aclosing(self._chunks(request)) as chunks:
            yield chunks

    async def _chunks(self, request: ModelRequest) -> AsyncGenerator[Chunk]:
        last = request.messages[-1]
        words = last.text.split() if last.role == "user" else []
        word = words[0] if words else ""
        if word == "story":
            for number in range(100_000):
                yield TextDelta(f"word{number} ")
                await asyncio.sleep(0.02)
        elif word == "evil":
            yield TextDelta(EVIL)
        elif word == "broken":
            raise ModelUnavailable("gone\x1b[8m away")
        elif word in ("slow", "deaf", "undo", "nested", "quick", "stubborn"):
            yield CallDelta(0, None, word, json.dumps({"input" if word == "nested" else "text": " ".join(words[1:])}))
            yield Finish("tool_calls")
            return
        elif word == "danger":
            yield CallDelta(0, None, "shell", json.dumps({"command": " ".join(words[1:])}))
            yield Finish("tool_calls")
            return
        elif last.role == "user":
            yield TextDelta(f"# Heard\n\nYou said **{last.text}**.\n\n```python\nprint('code')\n```\n")
        else:
            results = [part.content for part in last.parts if part.kind == "tool_result"]
            yield TextDelta(f"The tool said: {results[-1]}")
        yield Finish("end_turn")


@tool
async def slow(text: str, ctx: ToolContext[None]) -> str:
    """Print lines until it is stopped; a file named `go` ends it."""
    for number in range(100_000):
        ctx.tell(f"line {number} {text}\n")
        await asyncio.sleep(0.05)
        if os.path.exists("go"):  # noqa: ASYNC240  # a look at a name, for a test
            break
    return "went through"


@tool(effect="pure")
async def quick(text: str) -> str:
    """Answer at once."""
    return f"quick {text}"


@tool
def deaf(text: str) -> str:
    """Block a thread."""
    time.sleep(60)
    return "woke"


@tool(grace=10)
async def stubborn(text: str) -> str:
    """Go on when cancelled: only FORCE ends the wait for it before its ten seconds are up."""
    for _ in range(100):
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            continue
    return "gave in"


async def give_back(text: str) -> None:
    """Undo it."""


@tool(undo=give_back)
async def undo(text: str) -> str:
    """An effect that can be undone."""
    await asyncio.sleep(3600)
    return "kept"


inner = Agent("researcher", model=Obedient(), tools=[slow])
agent = Agent(
    "playground",
    model=Obedient(),
    tools=[slow, quick, deaf, stubborn, undo, shell(), inner.as_tool(name="nested")],
    hooks=[Approvals("here")],
    retries=0,
)

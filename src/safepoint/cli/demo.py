"""The app that is served if no other is named: made to be stopped, and able to do no harm.

It counts, naps, climbs stairs and blocks a thread, slowly, so that there is time to stop it; it asks a person, so that
there is something to answer. It has no tool that runs a command, writes a file or fetches a page.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Annotated

from pydantic import Field

from safepoint import Agent, ToolContext, tool
from safepoint.agent.model import CallDelta, Chunk, Finish, Model, ModelRequest, TextDelta

NAME = "demo"
PACE = 0.25  # seconds for a word, or a stair
LANDING = 10
INSTRUCTIONS = "You show how an agent is stopped. Nap, climb, block or ask when you are told to, and say little."
HELP = (
    "I am a script, not a language model. Tell me to count 100, nap 60, climb 50, block 10 or ask, and stop me while "
    "I am at it. Then write again: I shall know."
)
STOPPED = "You stopped me, and I can see it in our conversation."


@tool(effect="pure")
async def nap(seconds: Annotated[float, Field(gt=0, le=3600)]) -> str:
    """Sleep. A stop ends it at once."""
    await asyncio.sleep(seconds)
    return f"slept for {seconds:g} s"


@tool(effect="pure")
async def climb(stairs: Annotated[int, Field(ge=1, le=3600)], ctx: ToolContext[None]) -> str:
    """Climb stairs, slowly. Every tenth is a landing, where `point:landing` stops it."""
    for stair in range(1, stairs + 1):
        await asyncio.sleep(PACE)
        ctx.tell(f"{stair} ")
        if stair % LANDING == 0:
            await ctx.safe_point("landing")
    return f"climbed {stairs} stairs"


@tool(effect="pure")
def block(seconds: Annotated[float, Field(gt=0, le=60)]) -> str:
    """Block a thread, deaf to everything. A stop leaves it behind; meanwhile `safepoint why` names it."""
    time.sleep(seconds)
    return f"blocked a thread for {seconds:g} s"


@tool
async def ask(question: str, ctx: ToolContext[None]) -> str:
    """Ask a person, and wait for the answer."""
    return f"they said {await ctx.interrupt({'question': question})}"


@dataclass(frozen=True, slots=True)
class Reply:
    """What a message asks the script for: something to say, and perhaps a call."""

    words: str
    tool: str | None = None
    arguments: str = "{}"


def reply_to(text: str) -> Reply:
    """The first word of the text that the script knows, with the number after it."""
    found = re.search(r"\b(count|nap|climb|block|ask)\b(?:\D*?(\d{1,4}))?", text.lower())
    verb, number = found.groups() if found is not None else (None, None)
    match verb:
        case "count":
            return Reply(" ".join(map(str, range(1, int(number or 100) + 1))))
        case "nap":
            return _call("nap", seconds=min(max(int(number or 60), 1), 3600))
        case "climb":
            return _call("climb", stairs=min(max(int(number or 50), 1), 3600))
        case "block":
            return _call("block", seconds=min(max(int(number or 10), 1), 60))
        case "ask":
            return _call("ask", question="Shall I go on?")
        case _:
            return Reply(HELP)


def _call(tool: str, **arguments: object) -> Reply:
    return Reply("As you wish.", tool, json.dumps(arguments))


class Script:
    """A `Model` that does what the last message says, a word at a time. `pause` is awaited after each word."""

    name = "script"

    def __init__(self, pause: Callable[[], Awaitable[object]]) -> None:
        self._pause = pause

    @asynccontextmanager
    async def stream(self, request: ModelRequest, /) -> AsyncGenerator[AsyncIterator[Chunk]]:
        """Open the stream of one reply. Cancellation: closes it; the words so far have been received."""
        async with aclosing(self._chunks(request)) as chunks:
            yield chunks

    async def _chunks(self, request: ModelRequest) -> AsyncGenerator[Chunk]:
        *earlier, last = request.messages
        reply = reply_to(last.text) if last.role == "user" else Reply("Done.")
        stopped = bool(earlier) and any(part.kind == "notice" for part in earlier[-1].parts)
        for word in [*(STOPPED.split() if stopped else ()), *reply.words.split()]:
            yield TextDelta(f"{word} ")
            await self._pause()
        if reply.tool is not None:
            yield CallDelta(0, None, reply.tool, reply.arguments)
        yield Finish("tool_calls" if reply.tool is not None else "end_turn")


def demo_agent(model: Model | None = None) -> Agent:
    """The agent of the demo; without a model a script plays its part."""
    chosen = model if model is not None else Script(partial(asyncio.sleep, PACE))
    return Agent(NAME, model=chosen, tools=[nap, climb, block, ask], instructions=INSTRUCTIONS)

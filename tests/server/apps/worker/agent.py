"""An app that does what the message says, and leaves a line in a file for everything that it really did.

A message is commands with `;` between them: `say WORDS`, `pour PIECES` (of 100,000 letters), `drip WORDS` (so many, ten
in a second), `think WORDS`, `stall`, `fail WORDS`, and the tools below, as in `note a; nap 0.2`. All tools of one
message are called at once; after their results the model says `done`.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any
from uuid import uuid4

from safepoint import Agent, AskFirst, Hooks, Run, ToolCall, ToolContext, tool
from safepoint.history.json_codec import encode_message
from safepoint.models import CallDelta, Chunk, Finish, ModelRequest, ReasoningDelta, TextDelta

TOOLS = {
    "nap": "seconds",
    "block": "seconds",
    "stubborn": "seconds",
    "note": "text",
    "tell": "text",
    "ask": "question",
    "sign": "text",
    "break": "text",
}


def did(what: str) -> None:
    """One line in the file that TOOL_LOG names; a single write, so that processes can share it."""
    with open(os.environ["TOOL_LOG"], "a", encoding="utf-8") as log:
        log.write(f"{what}\n")


def asked(request: ModelRequest) -> None:
    """One line in the file that PROMPT_LOG names, if it names one: what the model sees."""
    if "PROMPT_LOG" in os.environ:
        prompt = [encode_message(message) for message in request.messages]
        with open(os.environ["PROMPT_LOG"], "a", encoding="utf-8") as log:
            log.write(json.dumps(prompt) + "\n")


@tool
async def nap(seconds: float) -> str:
    """Sleep without blocking."""
    did("nap begins")
    await asyncio.sleep(seconds)
    did("nap ends")
    return "rested"


@tool
def block(seconds: float) -> str:
    """Sleep in a thread."""
    did("block begins")
    time.sleep(seconds)
    did("block ends")
    return "blocked"


@tool
async def stubborn(seconds: float) -> str:
    """Sleep, whatever anybody says."""
    did("stubborn begins")
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(left)
    did("stubborn ends")
    return "done as I please"


@tool
async def note(text: str) -> str:
    """Write something down, at once."""
    did(f"note {text}")
    return f"noted {text}"


@tool
async def tell(text: str, ctx: ToolContext[None]) -> str:
    """Show each word, and then nap if the last of them is a number of seconds."""
    *words, last = str(text).split(" ")
    for word in words:
        ctx.tell(f"{word} ")
    did("tell")
    await asyncio.sleep(float(last))
    return "told"


@tool
async def ask(question: str, ctx: ToolContext[None]) -> str:
    """Ask a person."""
    answer = await ctx.interrupt({"question": question})
    did(f"answer {answer}")
    return f"they said {answer}"


@tool(effect="irreversible")
async def sign(text: str) -> str:
    """Sign something, if a person allows it."""
    did(f"sign {text}")
    return f"signed {text}"


class Allowed(Hooks):
    def before_tool(self, run: Run[Any, Any], call: ToolCall) -> AskFirst | None:
        return AskFirst(f"Sign {call.args['text']}?") if call.name == "sign" else None


@tool(name="break")
async def broken(text: str) -> str:
    """Fail."""
    did(f"break {text}")
    raise RuntimeError(text)


class Obedient:
    """Does what the last message says. Keeps nothing, so that it can be asked for ever."""

    name = "obedient"

    @asynccontextmanager
    async def stream(self, request: ModelRequest, /) -> AsyncGenerator[AsyncIterator[Chunk]]:
        """Cancellation: the stream is closed, and that is written down."""
        asked(request)
        chunks = self._chunks(request)
        try:
            yield chunks
        finally:
            await chunks.aclose()

    async def _chunks(self, request: ModelRequest) -> AsyncGenerator[Chunk]:
        last = request.messages[-1]
        commands = last.text.split(";") if last.role == "user" else ["say done"]
        calls = 0
        for command in map(str.strip, commands):
            verb, _, words = command.partition(" ")
            match verb:
                case "say":
                    for word in words.split(" "):
                        yield TextDelta(f"{word} ")
                        await asyncio.sleep(0)
                case "pour":
                    for _ in range(int(words)):
                        yield TextDelta("x" * 99_999 + "\n")
                        await asyncio.sleep(0)
                case "drip":
                    for _ in range(int(words)):
                        yield TextDelta("drop ")
                        await asyncio.sleep(0.1)
                case "think":
                    yield ReasoningDelta(words)
                case "stall":
                    did("stall")
                    await asyncio.get_running_loop().create_future()
                case "fail":
                    raise RuntimeError(words)
                case name if name in TOOLS:
                    yield CallDelta(calls, f"call_{uuid4().hex[:12]}", name, json.dumps({TOOLS[name]: _value(words)}))
                    calls += 1
                case _:
                    yield TextDelta("hello")
        yield Finish("tool_calls" if calls else "end_turn")


def _value(words: str) -> Any:  # Any: JSON
    try:
        return float(words)
    except ValueError:
        return words


agent = Agent(
    "worker", model=Obedient(), tools=[nap, block, stubborn, note, tell, ask, sign, broken], hooks=[Allowed()]
)

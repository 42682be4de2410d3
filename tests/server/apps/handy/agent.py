"""As `worker`, with what tests of the wire need besides.

`pause S`: the model takes its time. `hang WORDS`: it says these and then nothing more, and writes down when its stream
is closed. `flood N`: it says 10 kB, N times. The tool `remember NAME=VALUE` writes into the session's state, `recall
NAME` reads there.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from uuid import uuid4

from safepoint import Agent, ToolContext, tool
from safepoint.models import CallDelta, Chunk, Finish, ModelRequest, TextDelta
from safepoint.sessions import Session
from tests.server.apps.worker.agent import Obedient, ask, block, did, nap, note, stubborn


@tool
async def remember(text: str, ctx: ToolContext[None]) -> str:
    """Write into the session's state."""
    name, _, value = text.partition("=")
    assert isinstance(ctx.session, Session)
    ctx.session.state[name] = value
    return "remembered"


@tool
async def recall(text: str, ctx: ToolContext[None]) -> str:
    """Read from the session's state."""
    assert isinstance(ctx.session, Session)
    value = ctx.session.state.get(text)
    did(f"recall {text} {value}")
    return str(value)


class Handy(Obedient):
    """Knows a few words more."""

    async def _chunks(self, request: ModelRequest) -> AsyncGenerator[Chunk]:
        text = request.messages[-1].text if request.messages[-1].role == "user" else ""
        verb, _, words = text.partition(" ")
        match verb:
            case "pause":
                seconds, _, rest = words.partition("; ")
                did(f"pause {rest}")
                await asyncio.sleep(float(seconds))
                yield _call(*rest.split(" ", 1))
                yield Finish("tool_calls")
            case "hang":
                yield TextDelta(words)
                did("hang")
                try:
                    await asyncio.get_running_loop().create_future()
                finally:
                    did("hang closed")
            case "flood":
                for _ in range(int(words)):
                    yield TextDelta("x" * 10_000)
                    await asyncio.sleep(0)
                did("flooded")
                yield Finish("end_turn")
            case "remember" | "recall":
                yield _call(verb, words)
                yield Finish("tool_calls")
            case _:
                async for chunk in super()._chunks(request):
                    yield chunk


def _call(name: str, words: str) -> CallDelta:
    return CallDelta(0, f"call_{uuid4().hex[:12]}", name, json.dumps({"text": words}))


agent = Agent("handy", model=Handy(), tools=[nap, block, stubborn, note, ask, remember, recall])

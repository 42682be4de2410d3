"""An agent that does what the first word of a message says: what an editor could ask for, and more."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any
from uuid import uuid4

from safepoint import Agent, AskFirst, Budget, Deny, Hooks, Replace, Run, ToolCall, ToolContext, tool
from safepoint.models import CallDelta, Chunk, Finish, ModelRequest, ReasoningDelta, TextDelta
from safepoint.sessions import Session

print("an import that prints")  # where frames go, this would be no frame


@tool
async def nap(ctx: ToolContext[None]) -> str:
    """Wait until it is stopped."""
    print("a tool that prints")
    ctx.tell("napping")
    await asyncio.Event().wait()
    return "never"


@tool
def block(ctx: ToolContext[None]) -> str:
    """Hold a thread, deaf to everything."""
    ctx.tell("blocking")
    threading.Event().wait()
    return "never"


@tool
async def folder(ctx: ToolContext[None]) -> str:
    """Say where the editor is."""
    assert isinstance(ctx.session, Session)
    facts: Mapping[str, Any] = ctx.session.state["acp"]  # Any: JSON
    return str(facts["cwd"])


@tool(effect="irreversible")
async def delete() -> str:
    """Delete it, if a person allows that."""
    return "deleted"


@tool
async def ask(ctx: ToolContext[None]) -> str:
    """Ask for words."""
    return f"they said {await ctx.interrupt({'question': 'Which colour?'})}"


@tool
async def pick(ctx: ToolContext[None]) -> str:
    """Ask for one of two."""
    return f"they picked {await ctx.interrupt({'question': 'Which?', 'options': ['red', 'blue']})}"


class Approvals(Hooks):
    async def before_tool(self, run: Run[Any, Any], call: ToolCall) -> Deny | Replace | AskFirst | None:  # Any: any run
        return AskFirst("Delete it?") if call.name == "delete" else None


class Obedient:
    """The first word: `say`, `silence`, `think`, `long`, `refuse`, `fail`, `loop`, `use` a tool; or the name of one."""

    name = "obedient"

    @asynccontextmanager
    async def stream(self, request: ModelRequest, /) -> AsyncGenerator[AsyncIterator[Chunk]]:
        async with aclosing(self._chunks(request)) as chunks:
            yield chunks

    async def _chunks(self, request: ModelRequest) -> AsyncGenerator[Chunk]:
        last = request.messages[-1]
        asked = next(message.text for message in reversed(request.messages) if message.role == "user")
        verb, _, rest = asked.partition(" ")
        if last.role == "tool" and verb != "loop":
            results = [part.content for part in last.parts if part.kind == "tool_result"]
            yield TextDelta("; ".join(results))
            yield Finish("end_turn")
            return
        match verb:
            case "silence":
                yield TextDelta("I begin and ")
                await asyncio.Event().wait()
            case "think":
                yield ReasoningDelta("hm, ")
                yield ReasoningDelta("well")
                yield TextDelta("so ")
                yield TextDelta(f"be it: {rest}")
                yield Finish("end_turn")
            case "long":
                yield TextDelta("too long")
                yield Finish("max_tokens")
            case "refuse":
                yield TextDelta("no")
                yield Finish("refused")
            case "fail":
                raise ValueError("the model is broken")
            case "use":
                yield CallDelta(0, f"call_{uuid4().hex[:8]}", rest, json.dumps({}))
                yield Finish("tool_calls")
            case "nap" | "block" | "delete" | "ask" | "pick" | "folder" | "loop":
                name = "folder" if verb == "loop" else verb
                yield TextDelta("As you wish. ")
                yield CallDelta(0, f"call_{uuid4().hex[:8]}", name, json.dumps({}))
                yield Finish("tool_calls")
            case _:
                yield TextDelta("you ")
                yield TextDelta(f"said {rest}")
                yield Finish("end_turn")


agent = Agent(
    "editor-app",
    model=Obedient(),
    tools=[nap, block, folder, delete, ask, pick],
    hooks=[Approvals()],
    budget=Budget(steps=5),
)

"""Writes tests/resume/data: one checkpoint for each kind of stop, as this version encodes it.

    python -m tests.resume.write_data

Files that are there already are left alone: they stand for the version that wrote them, and must stay readable.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from safepoint import Agent, Budget, Hooks, Resume, RunResult, SafePoint, ToolContext, tool
from safepoint.agent.model import Finish, TextDelta
from safepoint.errors import ModelError
from safepoint.testing import ScriptedModel, call, fail, run_virtual, say, stall, think
from safepoint.testing.models import Reply, raw

DATA = Path(__file__).parent / "data"


@tool
async def ask(context: ToolContext) -> str:
    """Ask."""
    await context.once("looked", lambda: {"at": [1, 2.5, None, b"bytes"]})
    answer: str = await context.interrupt({"question": "may I?", "again": b"\x00"})
    return answer


@tool
async def hang() -> str:
    """Hang."""
    await asyncio.get_running_loop().create_future()
    return "never"


@tool(effect="pure")
async def look(x: int) -> str:
    """Look."""
    return f"saw {x}"


@tool
async def pages(context: ToolContext) -> str:
    """Stop between two pages."""
    await context.safe_point("page", save={"page": 3, "$key": "ü"})
    return "read"


def agent(*replies: Reply) -> Agent:
    return Agent("writer", model=ScriptedModel(*replies), tools=[ask, hang, look, pages])


async def ended(agent: Agent, budget: Budget | None = None) -> RunResult[str]:
    async with agent.start("write it down", budget=budget) as run:
        pass
    return run.result


async def cut_model() -> RunResult[str]:
    reached = asyncio.Event()
    async with agent([think("hm", signature="s"), say("Once upon"), stall(reached.set)]).start("tell me") as run:
        await reached.wait()
        run.cancel(reason="enough")
    return run.result


async def cut_tools() -> RunResult[str]:
    async with agent([say("I look"), call("look", x=1), call("hang")]).start("look") as run:
        while not [event for event in run.kept_events() if type(event).__name__ == "ToolCallEnded"]:  # noqa: ASYNC110  # a state without an event of its own
            await asyncio.sleep(0)
        run.cancel(reason="enough")
    return run.result


async def stopped() -> RunResult[str]:
    async with agent(call("pages")).start("read") as run:
        run.cancel(SafePoint.named("page"), reason="at the page")
    return run.result


async def nested() -> RunResult[str]:
    middle = Agent("middle", model=ScriptedModel(call("writer", input="go")), tools=[agent(call("ask")).as_tool()])
    return await ended(Agent("root", model=ScriptedModel(call("middle", input="go")), tools=[middle.as_tool()]))


async def amended() -> RunResult[str]:
    first = await cut_tools()
    assert first.checkpoint is not None
    async with agent().start(checkpoint=Resume(first.checkpoint, message="and hurry")) as run:
        run.cancel(reason="again")
    return run.result


async def hook_asked() -> RunResult[str]:
    class Asks(Hooks):
        async def before_model(self, run: object, request: object) -> None:
            await self.ctx.once("looked", lambda: [1, b"bytes"])
            await self.ctx.interrupt("may it?")

    return await ended(Agent("writer", model=ScriptedModel(), hooks=[Asks()]))


KINDS: dict[str, Callable[[], Coroutine[Any, Any, RunResult[str]]]] = {  # Any: what a coroutine yields
    "cancelled-model": cut_model,
    "cancelled-tools": cut_tools,
    "cancelled-safe-point": stopped,
    "cancelled-amended": amended,
    "interrupted": lambda: ended(agent(call("ask"))),
    "interrupted-nested": nested,
    "interrupted-hook": hook_asked,
    "max_steps": lambda: ended(agent(call("look", x=1)), Budget(steps=1)),
    "budget": lambda: ended(agent(call("look", x=1), call("look", x=1)), Budget(repeats=1)),
    "max_tokens": lambda: ended(agent(raw(TextDelta("Once"), Finish("max_tokens")))),
    "refused": lambda: ended(agent(raw(Finish("refused")))),
    "error": lambda: ended(agent(fail(ModelError("no luck")))),
}


def main() -> None:
    for name, make in KINDS.items():
        path = DATA / f"{name}.checkpoint"
        if path.exists():
            continue
        checkpoint = run_virtual(make).checkpoint
        assert checkpoint is not None, name
        path.write_bytes(checkpoint.to_bytes())
        seen = {
            "stop_reason": str(checkpoint.stop_reason),
            "states": [str(entry.state) for entry in checkpoint.ledger],
            "questions": [question.id for question in checkpoint.questions],
            "texts": [message.text for message in checkpoint.messages],
            "open": len(checkpoint.open_messages),
        }
        path.with_suffix(".json").write_text(json.dumps(seen, indent=1) + "\n")


if __name__ == "__main__":
    main()

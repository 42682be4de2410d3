"""Writes tests/resume/data: one checkpoint for each kind of stop, as this version encodes it.

    python -m tests.resume.write_data

Files that are there already are left alone: they stand for the version that wrote them, and must stay readable. Those
of composites must also go on: `COMPOSITES` are the agents that continue them, with "yes" for every question.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from safepoint import (
    Agent,
    BaseAgent,
    Budget,
    File,
    Handoff,
    Hooks,
    Image,
    Loop,
    Parallel,
    Resume,
    RunResult,
    SafePoint,
    Sequential,
    ToolContext,
    tool,
)
from safepoint.agent.model import Finish, TextDelta
from safepoint.errors import ModelError
from safepoint.testing import ScriptedModel, call, fail, run_virtual, say, stall, think
from safepoint.testing.models import Reply, raw
from tests.injection.parts import StepModel

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
async def photo() -> list[str | Image | File]:
    """Take a photo."""
    return ["Here:", Image(data=b"\x89PNG"), File(data=b"%PDF", media_type="application/pdf", name="bill.pdf")]


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
    return Agent("writer", model=ScriptedModel(*replies), tools=[ask, hang, look, pages, photo])


async def ended(agent: BaseAgent[None, Any], budget: Budget | None = None) -> RunResult[Any]:  # Any: every type
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


async def photographed() -> RunResult[str]:
    run = agent([say("I look"), call("photo")]).start("look")
    run.cancel(SafePoint.AFTER_TOOLS, reason="enough")
    async with run:
        return await run.wait()


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


# -- composites: each agent answers by its own conversation, so it can stop here and go on years later ----------------


class Notes(BaseModel):
    topic: str


def by_step(name: str, *replies: Reply) -> Agent:
    return Agent(name, model=StepModel(*replies), tools=[ask, look, pages])


def notes() -> Agent[None, Notes]:
    return Agent("notes", model=StepModel(say('{"topic": "tea"}')), output=Notes)


def asker(name: str = "asker") -> Agent:
    return by_step(name, [say("I ask"), call("look", x=1), call("ask")], say(f"{name} is done"))


def branches() -> Parallel[None, dict[str, Any]]:  # Any: outputs of every type
    return Parallel("branches", [notes(), asker(), by_step("reader", call("pages"), say("read"))])


def rounds() -> Loop[None, str]:
    return Loop("rounds", asker(), max_rounds=2, again=lambda _: "once more")


def desk() -> Handoff[None, str]:
    triage = by_step("triage", call("transfer_to_billing"))
    billing = by_step("billing", say("never"), [say("I ask"), call("ask")], say("billed"))  # it goes on with step 2
    return Handoff("desk", triage, to={triage: [billing]})


def boss() -> Agent:
    return Agent("boss", model=StepModel(call("branches", input="go"), say("all done")), tools=[branches().as_tool()])


COMPOSITES: dict[str, Callable[[], BaseAgent[None, Any]]] = {  # Any: outputs of every type
    "interrupted-sequential": lambda: Sequential("pipeline", notes()).then(asker()).then(by_step("last", say("end"))),
    "interrupted-parallel": branches,
    "cancelled-parallel": branches,
    "interrupted-loop": rounds,
    "interrupted-handoff": desk,
    "interrupted-composite-tool": boss,
}


async def _ended_by(name: str) -> RunResult[Any]:  # Any: as above
    return await ended(COMPOSITES[name]())


async def stopped_branches() -> RunResult[Any]:  # Any: as above
    async with branches().start("read and ask") as run:
        run.cancel(SafePoint.named("page"), recursive=True, reason="at the page")
    return run.result


async def second_round() -> RunResult[Any]:  # Any: as above
    first = await ended(rounds())
    assert first.checkpoint is not None
    return await rounds().resume(first.checkpoint, answers={question.id: "yes" for question in first.questions})


KINDS: dict[str, Callable[[], Coroutine[Any, Any, RunResult[Any]]]] = {  # Any: what a coroutine yields, every type
    "cancelled-model": cut_model,
    "cancelled-tools": cut_tools,
    "cancelled-parts": photographed,
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
    **{name: partial(_ended_by, name) for name in COMPOSITES},
    "cancelled-parallel": stopped_branches,
    "interrupted-loop": second_round,
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

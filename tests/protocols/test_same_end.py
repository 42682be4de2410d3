"""The same run through every protocol: each ends it in its own words, and all of them store the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from safepoint import Agent, Budget, Hooks, Run, ToolCall, ToolContext, tool
from safepoint._core.points import SafePoint
from safepoint._core.reasons import Reason, Source
from safepoint.history.check import check_history
from safepoint.history.json_codec import encode_message
from safepoint.models import Finish, TextDelta
from safepoint.protocols.endings import ACP, AG_UI, UI_STREAM, Ending
from safepoint.testing import ScriptedModel, call, fail, raw, say, stall, think
from tests.protocols.doors import DOORS, NEVER, AnyAgent, Door

PATIENCE = 30.0
Reached = Callable[[], object]


@tool
async def note() -> str:
    """Write something down."""
    return "noted"


@tool
async def ask(ctx: ToolContext[None]) -> str:
    """Ask a person."""
    return f"they said {await ctx.interrupt({'question': 'Which?'})}"


def napping(reached: Reached) -> Any:  # Any: a tool of a local function
    @tool
    async def nap(ctx: ToolContext[None]) -> str:
        """Sleep until it is cut."""
        ctx.tell("zzz")
        reached()
        await asyncio.Event().wait()
        return "rested"

    return nap


class Waiting(Hooks):
    """A hook that does not come back."""

    def __init__(self, reached: Reached) -> None:
        self._reached = reached

    async def before_tool(self, run: Run[Any, Any], call: ToolCall) -> None:
        self._reached()
        await asyncio.Event().wait()


# -- the table of endings ----------------------------------------------------------------------------------------------

MCP = {
    Ending.END_TURN: (False, "end_turn"),
    Ending.CANCELLED_BY_CLIENT: NEVER,
    Ending.CANCELLED_OTHERWISE: (True, "cancelled"),
    Ending.INTERRUPTED: (False, "interrupted"),
    Ending.MAX_STEPS: (True, "max_steps"),
    Ending.BUDGET: (True, "budget"),
    Ending.MAX_TOKENS: (False, "max_tokens"),
    Ending.REFUSED: (False, "refused"),
    Ending.ERROR: (True, "error"),
}
ADK = {
    Ending.END_TURN: "answered",
    Ending.CANCELLED_BY_CLIENT: "INVOCATION_ABORTED",
    Ending.CANCELLED_OTHERWISE: "INVOCATION_ABORTED",
    Ending.INTERRUPTED: "waits",
    Ending.MAX_STEPS: "MAX_STEPS",
    Ending.BUDGET: "BUDGET",
    Ending.MAX_TOKENS: "MAX_TOKENS",
    Ending.REFUSED: "REFUSED",
    Ending.ERROR: "ValueError",
}
TABLE: dict[str, Any] = {"acp": ACP, "adk": ADK, "ag_ui": AG_UI, "mcp": MCP, "ui_stream": UI_STREAM}  # Any: words


def ends(ending: Ending, reached: Reached) -> AnyAgent:
    """An agent whose run ends that way; one that is to be stopped says when."""
    match ending:
        case Ending.END_TURN:
            return Agent("app", model=ScriptedModel(say("done")))
        case Ending.CANCELLED_BY_CLIENT | Ending.CANCELLED_OTHERWISE:
            return Agent("app", model=ScriptedModel(call("nap")), tools=[napping(reached)])
        case Ending.INTERRUPTED:
            return Agent("app", model=ScriptedModel(call("ask")), tools=[ask])
        case Ending.MAX_STEPS:
            return Agent("app", model=ScriptedModel(call("note"), repeat=True), tools=[note], budget=Budget(steps=2))
        case Ending.BUDGET:
            limit = Budget(tool_calls=1)
            return Agent("app", model=ScriptedModel(call("note"), repeat=True), tools=[note], budget=limit)
        case Ending.MAX_TOKENS:
            return Agent("app", model=ScriptedModel(raw(TextDelta("too lo"), Finish("max_tokens"))))
        case Ending.REFUSED:
            return Agent("app", model=ScriptedModel(raw(TextDelta("no"), Finish("refused"))))
        case Ending.ERROR:
            return Agent("app", model=ScriptedModel(fail(ValueError("broken"))))


async def ended(name: str, ending: Ending) -> object:
    reached = asyncio.Event()
    async with asyncio.timeout(PATIENCE), DOORS[name](ends(ending, reached.set)) as door:
        begun = asyncio.ensure_future(door.begin())
        if ending is Ending.CANCELLED_BY_CLIENT:
            await reached.wait()
            await door.stop("lunch")
        elif ending is Ending.CANCELLED_OTHERWISE:
            await reached.wait()
            door.run.ask(SafePoint.NOW, Reason("out of hours", Source.POLICY))
        return await begun


@pytest.mark.parametrize("ending", Ending)
@pytest.mark.parametrize("door", DOORS)
def test_each_cell_of_the_table_of_endings(door: str, ending: Ending) -> None:
    assert asyncio.run(ended(door, ending)) == TABLE[door][ending]


# -- the same stop -----------------------------------------------------------------------------------------------------


def scripted(*replies: Any) -> Callable[[Reached], AnyAgent]:  # Any: of a scripted model
    """`stall` in a reply, and the tool `nap`, are where the run stands when it is stopped."""

    def make(reached: Reached) -> AnyAgent:
        acts = [[stall(reached) if act is stall else act for act in _listed(reply)] for reply in replies]
        return Agent("app", model=ScriptedModel(*acts), tools=[note, napping(reached)])

    return make


def _listed(reply: Any) -> list[Any]:  # Any: as above
    return [*reply] if isinstance(reply, list) else [reply]  # pyright: ignore[reportUnknownVariableType]  # of any kind


def in_a_hook(reached: Reached) -> AnyAgent:
    return Agent("app", model=ScriptedModel(call("note")), tools=[note], hooks=[Waiting(reached)])


MOMENTS: dict[str, Callable[[Reached], AnyAgent]] = {
    "before the first word": scripted(stall),
    "in a thought": scripted([think("hm"), stall]),
    "after a thought and a word": scripted([think("hm"), say("one "), stall]),
    "in the middle of a text": scripted([say("one two three ", pieces=3), stall]),
    "after a call that is not made yet": scripted([say("so "), call("note"), stall]),
    "in a tool": scripted(call("nap")),
    "in a tool after words": scripted([say("wait "), call("nap")]),
    "in a tool beside one that has finished": scripted([call("note"), call("nap")]),
    "before the second reply": scripted(call("note"), stall),
    "in the second reply": scripted(call("note"), [say("and then "), stall]),
    "in a tool of the second step": scripted([say("a "), call("note")], [say("b "), call("nap")]),
    "in a hook before a tool": in_a_hook,
}


async def stopped(name: str, make: Callable[[Reached], AnyAgent], reason: str) -> tuple[object, Reason]:
    """What is stored: the conversation, the ledger, the record's outcome; and why."""
    reached = asyncio.Event()
    async with asyncio.timeout(PATIENCE), DOORS[name](make(reached.set)) as door:
        begun = asyncio.ensure_future(door.begin())
        await reached.wait()
        await door.stop(reason)
        await begun
        return await _stored(door)


async def _stored(door: Door) -> tuple[object, Reason]:
    run = door.run
    session = await door.manager.view(run.key)
    record = await door.manager.storage.runs.get(run.id)
    assert record is not None
    assert run.reason is not None
    check_history(session.messages)
    ledger = [(each.call_id, each.name, str(each.state), str(each.effect)) for each in session.runs[-1].ledger]
    said = [encode_message(message) for message in session.messages]
    return (said, ledger, record.outcome, str(record.state)), run.reason


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_stop_at_the_same_moment_stores_the_same_through_every_protocol(moment: str) -> None:
    # An editor can't give a reason, so the others give the words that stand for it there.
    first, why = asyncio.run(stopped("acp", MOMENTS[moment], ""))
    assert why.source is Source.USER
    for name in DOORS:
        if name != "acp":
            found, reason = asyncio.run(stopped(name, MOMENTS[moment], why.text))
            assert found == first, name
            assert (reason.text, reason.source) == (why.text, why.source), name

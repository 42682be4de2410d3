"""What a running tool tells: to whoever reads the events, from any thread, joined by call; never to the model."""

from __future__ import annotations

import asyncio

import pytest

from safepoint import Agent, LedgerEntry, Run, ToolContext, tool
from safepoint.agent.events import ToolCallEnded, ToolOutputStreamed
from safepoint.errors import CutShort
from safepoint.testing import ScriptedModel, call, say
from tests.virtual import passes, virtual


@tool(effect="pure")
async def counts(upto: int, ctx: ToolContext) -> str:
    """Say each number."""
    for number in range(upto):
        ctx.tell(f"{number} ")
        await passes(1)
    return "counted"


@tool(effect="pure")
def counts_in_a_thread(ctx: ToolContext) -> str:
    """Say something from another thread."""
    ctx.tell("from a thread")
    return "counted"


def pieces(run: Run[None]) -> list[tuple[str, str]]:
    return [(event.call_id, event.text) for event in run.kept_events() if isinstance(event, ToolOutputStreamed)]


@virtual
async def test_a_reader_hears_each_piece_while_the_tool_runs() -> None:
    model = ScriptedModel([call("counts", upto=2), call("counts_in_a_thread")], say("done"))
    heard: dict[str, str] = {}
    async with Agent("a", model=model, tools=[counts, counts_in_a_thread]).start("go") as run:
        async for event in run.events():
            if isinstance(event, ToolOutputStreamed):
                heard[event.call_id] = heard.get(event.call_id, "") + event.text
            elif isinstance(event, ToolCallEnded):
                assert heard[event.entry.call_id], "it is told before the end"
    assert heard == {"call_1_1": "0 1 ", "call_1_2": "from a thread"}
    assert pieces(run) == [], "pieces of output are not kept"
    assert all("0 1" not in str(request.messages) for request in model.requests)


@virtual
async def test_a_slow_reader_gets_one_piece_for_each_call_that_spoke_in_turn() -> None:
    model = ScriptedModel([call("counts", upto=4), call("counts", upto=1)], say("done"))
    async with Agent("a", model=model, tools=[counts]).start("go") as run:
        reader = run.events()
        await run.wait()
        told = [(event.call_id, event.text) async for event in reader if isinstance(event, ToolOutputStreamed)]
    # At 1 s the second call ends, and that is told in between.
    assert told == [("call_1_1", "0 "), ("call_1_2", "0 "), ("call_1_1", "1 "), ("call_1_1", "2 3 ")]


@virtual
async def test_a_call_that_has_ended_tells_nothing_more() -> None:
    kept: list[ToolContext] = []

    @tool
    async def leaks(ctx: ToolContext) -> str:
        """Hand its context out."""
        kept.append(ctx)
        return "done"

    async with Agent("a", model=ScriptedModel(call("leaks"), say("done")), tools=[leaks]).start("go") as run:
        reader = run.events()
        await run.wait()
        kept[0].tell("too late")
        assert not any([isinstance(event, ToolOutputStreamed) async for event in reader])


async def cut_short(output: str) -> LedgerEntry:
    begun = asyncio.Event()

    @tool
    async def half() -> str:
        """Have something when it is cut."""
        try:
            begun.set()
            await asyncio.get_running_loop().create_future()
        finally:
            raise CutShort(output)

    async with Agent("a", model=ScriptedModel(call("half"), say("done")), tools=[half]).start("go") as run:
        await begun.wait()
        run.cancel()
    return run.result.ledger[0]


@virtual
@pytest.mark.parametrize(("output", "content"), [("half of it", "half of it"), ("", None)])
async def test_a_tool_that_is_cut_short_says_what_it_had(output: str, content: str | None) -> None:
    entry = await cut_short(output)
    assert (entry.state, entry.content, entry.error) == ("cut", content, None)


@virtual
async def test_a_tool_that_says_so_when_nobody_stopped_it_has_failed() -> None:
    @tool
    async def wrong() -> str:
        """Claim to have been cut."""
        raise CutShort("half")

    result = await Agent("a", model=ScriptedModel(call("wrong"), say("done")), tools=[wrong]).run("go")
    assert (result.ledger[0].state, result.ledger[0].error) == ("failed", "CutShort: half")

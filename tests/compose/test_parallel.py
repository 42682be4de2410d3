"""Branches side by side: how they are joined, limited, stopped alone, and what happens when one fails."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from safepoint import (
    Agent,
    Branch,
    Checkpoint,
    Finished,
    Parallel,
    RunFailed,
    RunResult,
    SafePoint,
    Sequential,
    StopReason,
    ToolContext,
    tool,
)
from safepoint.agent.journal import Called
from safepoint.sessions import MemoryStore, Session
from safepoint.sessions.store import Change
from safepoint.testing import ScriptedModel, call, fail, say, stall
from tests.compose.world import A_MOMENT, A_SECOND, HALF_A_SECOND, TWO_SECONDS
from tests.sessions.stores import Wrapped
from tests.virtual import virtual


def scripted(name: str, *replies: Any, **options: Any) -> Agent[None, str]:  # Any: as Agent takes them
    return Agent(name, model=ScriptedModel(*replies), **options)


@tool(effect="pure")
async def look() -> str:
    """Look for a second."""
    await asyncio.sleep(A_SECOND)
    return "seen"


def states(result: RunResult[Any]) -> dict[str, str]:  # Any: outputs of every type
    return {entry.call_id: str(entry.state) for entry in result.ledger}


class SlowToRecord(Wrapped):
    """Takes its time to note that the second branch begins."""

    async def append(self, session_id: str, epoch: int, changes: Sequence[Change]) -> None:
        if any(isinstance(each, Called) and each.entry.call_id == "other" for each in changes):
            await asyncio.sleep(A_SECOND)
        await self.inner.append(session_id, epoch, changes)


@virtual
async def test_a_branch_that_is_about_to_begin_when_another_fails_never_begins() -> None:
    session = await Session.create(SlowToRecord(MemoryStore()), "s")
    bad, other = scripted("bad", fail(RuntimeError("broken"))), scripted("other", say("never"))
    async with Parallel("both", [bad, other]).start("go", session=session) as run:
        result = await run.wait()
    assert states(result) == {"bad": "failed", "other": "not_started"}
    assert [child.name for child in result.children] == ["bad"]


@virtual
async def test_every_branch_gets_the_prompt_or_its_own_and_the_output_is_by_name() -> None:
    web, papers = scripted("web", say("w")), scripted("papers", say("p"))
    search = Parallel("search", [web, Branch(papers, name="science", input=lambda prompt: f"papers on {prompt}")])
    result = await search.run("tea")
    assert result.output == {"web": "w", "science": "p"}
    assert [child.result.messages[0].text for child in result.children] == ["tea", "papers on tea"]
    assert [child.path for child in result.children] == ["search/web", "search/science"]
    assert result.text == "web:\nw\n\nscience:\np"


@virtual
async def test_join_makes_the_output_and_makes_it_again_after_a_resume() -> None:
    def count(found: Mapping[str, RunResult[str]]) -> int:
        return sum(len(each.output) for each in found.values())

    search = Parallel("search", [scripted("a", say("xx")), scripted("b", say("yyy"))], join=count)
    pipeline = Sequential("pipeline", search).then(
        scripted("last", stall(), say("done")), input=lambda found: f"{found.output + 1} letters and one"
    )
    async with pipeline.start("go") as run:
        await asyncio.sleep(A_SECOND)
        run.cancel()
    assert run.result.checkpoint is not None
    result = await pipeline.resume(Checkpoint.from_bytes(run.result.checkpoint.to_bytes()))
    assert result.children[0].result.output == 5
    assert result.children[1].result.messages[0].text == "6 letters and one"


@virtual
async def test_no_more_run_at_once_than_the_limit_says() -> None:
    running, most = 0, 0

    @tool
    async def work() -> str:
        """Work."""
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(A_SECOND)
        running -= 1
        return "done"

    branches = [scripted(f"b{number}", call("work"), say("ok"), tools=[work]) for number in range(5)]
    result = await Parallel("search", branches, limit=2).run("go")
    assert (most, len(result.output)) == (2, 5)


@virtual
async def test_one_branch_is_stopped_by_its_node_and_the_others_go_on() -> None:
    search = Parallel("search", [scripted("slow", stall()), scripted("fast", call("look"), say("f"), tools=[look])])
    async with search.start("go") as run:
        await asyncio.sleep(HALF_A_SECOND)
        node = next(node for node in run.tree.walk() if node.name == "slow")
        assert await node.cancel(reason="too slow").wait() == "stopped"
    result = run.result
    assert (result.stop_reason, result.output) == (StopReason.END_TURN, {"fast": "f"})
    assert states(result) == {"slow": "stopped", "fast": "finished"}


@virtual
async def test_when_every_branch_was_stopped_alone_there_is_nothing_to_answer_with() -> None:
    search = Parallel("search", [scripted("one", stall()), scripted("two", stall())])
    async with search.start("go") as run:
        await asyncio.sleep(A_SECOND)
        for node in list(run.tree.walk())[1:]:
            node.cancel()
    assert run.result.stop_reason is StopReason.CANCELLED
    assert run.result.checkpoint is not None


@virtual
async def test_when_one_fails_the_others_stop_at_a_safe_point_and_waiting_ones_never_start() -> None:
    bad = scripted("bad", fail(ConnectionError("gone")), say("good"))
    busy = scripted("busy", call("look"), say("b"), tools=[look])
    search = Parallel("search", [bad, busy, scripted("queued", say("q"))], limit=2)
    with pytest.raises(RunFailed, match="gone") as failed:
        await search.run("go")
    result = failed.value.result
    assert states(result) == {"bad": "failed", "busy": "stopped", "queued": "not_started"}
    inside = result.children[1].result
    assert [str(entry.state) for entry in inside.ledger] == ["finished"]
    assert inside.cancellation is not None
    assert inside.cancellation.reason.text == "the branch 'bad' has failed"
    resumed = await search.resume(Checkpoint.from_bytes(result.checkpoint.to_bytes()))
    assert resumed.output == {"bad": "good", "busy": "b", "queued": "q"}


@virtual
async def test_when_one_fails_the_others_may_finish() -> None:
    busy = scripted("busy", call("look"), say("b"), tools=[look])
    search = Parallel("search", [scripted("bad", fail(ConnectionError("gone"))), busy], on_failure="finish")
    with pytest.raises(RunFailed) as failed:
        await search.run("go")
    assert states(failed.value.result) == {"bad": "failed", "busy": "finished"}


@virtual
async def test_a_message_is_for_every_branch() -> None:
    branches = [scripted(name, call("look"), say(name), tools=[look]) for name in ("a", "b")]
    async with Parallel("search", branches).start("go") as run:
        await asyncio.sleep(HALF_A_SECOND)
        receipt = run.steer("be brief")
    assert await receipt.wait() == "joined"
    assert ["be brief" in child.result.messages[-2].text for child in run.result.children] == [True, True]
    assert run.result.messages[0].text == "gobe brief"


@virtual
async def test_questions_of_several_branches_are_answered_together() -> None:
    @tool
    async def may(ctx: ToolContext) -> str:
        """Ask."""
        return str(await ctx.interrupt("may I?"))

    branches = [scripted(name, call("may"), say(name), tools=[may]) for name in ("a", "b")]
    search = Parallel("search", branches)
    result = await search.run("go")
    assert result.stop_reason is StopReason.INTERRUPTED
    assert result.checkpoint is not None
    answers = {question.id: "yes" for question in result.questions}
    assert len(answers) == 2
    assert (await search.resume(result.checkpoint, answers=answers)).output == {"a": "a", "b": "b"}


@virtual
async def test_recursive_turned_on_late_reaches_the_branches_that_run() -> None:
    branches = [scripted(name, call("look"), say(name), tools=[look]) for name in ("a", "b")]
    async with Parallel("search", branches).start("go") as run:
        await asyncio.sleep(HALF_A_SECOND)
        run.cancel(SafePoint.AFTER_TOOLS)
        await asyncio.sleep(A_MOMENT)
        run.cancel(SafePoint.AFTER_TOOLS, recursive=True)
    assert states(run.result) == {"a": "stopped", "b": "stopped"}


@virtual
async def test_preview_and_why_not_stopped_see_through_a_composite() -> None:
    @tool(on_cancel="finish", grace=3)
    async def pay() -> str:
        """Pay."""
        await asyncio.sleep(TWO_SECONDS)
        return "paid"

    branches = [scripted("a", call("pay"), say("a"), tools=[pay]), scripted("b", say("b"))]
    async with Parallel("search", branches).start("go") as run:
        await asyncio.sleep(HALF_A_SECOND)
        assert run.preview_cancel().finish == ("pay:call_1_1",)
        assert run.preview_cancel(SafePoint.ANY).finish == ("a",)
        run.cancel()
        await asyncio.sleep(HALF_A_SECOND)
        assert {(each.name, str(each.rung)) for each in run.why_not_stopped()} == {("a", "ask"), ("pay", "finish")}


def test_options_are_honoured_or_refused() -> None:
    one = scripted("one")
    with pytest.raises(ValueError, match="at least one branch"):
        Parallel("search", [])
    with pytest.raises(ValueError, match="limit=0"):
        Parallel("search", [one], limit=0)
    with pytest.raises(ValueError, match="write 'stop' or 'finish'"):
        Parallel("search", [one], on_failure="ignore")  # type: ignore[call-overload]  # the mistake


@virtual
async def test_why_a_branch_was_stopped_is_known_again_after_a_resume() -> None:
    slow = Agent("slow", model=ScriptedModel(stall(), repeat=True))
    fast = Agent("fast", model=ScriptedModel(say("fast"), repeat=True))
    search = Parallel("search", [slow, fast], join=lambda found: [str(each.cancellation) for each in found.values()])
    writer = Agent("writer", model=ScriptedModel(stall(), say("done")))
    seen: list[list[str]] = []

    def shown(found: Finished[list[str]]) -> str:
        seen.append(found.output)
        return "write"

    pipeline = Sequential("pipeline", search).then(writer, input=shown)
    async with pipeline.start("go") as run:
        await asyncio.sleep(A_SECOND)
        [node] = [node for node in run.tree.walk() if node.name == "slow"]
        node.cancel(reason="too slow")
        await asyncio.sleep(A_SECOND)
        run.cancel()
    assert run.result.checkpoint is not None
    result = await pipeline.resume(Checkpoint.from_bytes(run.result.checkpoint.to_bytes()))
    assert result.output == "done"
    assert len(seen) == 2
    assert seen[0] == seen[1]
    assert "too slow" in seen[0][0]


@virtual
async def test_answers_find_branches_whose_names_begin_alike() -> None:
    @tool
    async def asks(ctx: ToolContext) -> str:
        """Ask."""
        return str(await ctx.interrupt("may I?"))

    def asking(name: str) -> Branch[None, str]:
        return Branch(Agent("a", model=ScriptedModel(call("asks"), say(f"{name} is done")), tools=[asks]), name=name)

    both = Parallel("both", [asking("a"), asking("a/b")])
    paused = await both.run("go")
    assert paused.checkpoint is not None
    answers = {question.id: f"to {question.id}" for question in paused.questions}
    result = await both.resume(paused.checkpoint, answers=answers)
    told = [child.result.ledger[0].content for child in result.children]
    assert told == ["to a/call_1_1:1", "to a/b/call_1_1:1"]

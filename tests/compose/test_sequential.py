"""A sequence, and with it what is true of every composite: it is an agent like any other."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel

from safepoint import (
    Agent,
    Budget,
    CancelToken,
    Checkpoint,
    Hooks,
    Ladder,
    Notice,
    RunFailed,
    SafePoint,
    Sequential,
    StopReason,
    ToolContext,
    ToolResult,
    check_history,
    tool,
)
from safepoint.agent.steering import SteerOutcome
from safepoint.errors import CheckpointError
from safepoint.events import RunEnded, RunStarted
from safepoint.history.parts import user_message
from safepoint.sessions import MemoryStore, Session
from safepoint.sessions.sealing import sealed
from safepoint.testing import ScriptedModel, call, fail, say, stall
from tests.compose.world import A_SECOND, HALF_A_SECOND
from tests.virtual import virtual


class Notes(BaseModel):
    topic: str
    facts: list[str]


def scripted(name: str, *replies: Any, **options: Any) -> Agent[None, str]:  # Any: as Agent takes them
    return Agent(name, model=ScriptedModel(*replies), **options)


def two(*last: Any) -> Sequential[None, str]:  # Any: replies
    return Sequential("pipeline", scripted("first", say("found"))).then(scripted("last", *last))


@virtual
async def test_the_text_of_one_is_the_prompt_of_the_next_unless_a_function_says_otherwise() -> None:
    first = Agent("first", model=ScriptedModel(say('{"topic": "tea", "facts": ["hot"]}')), output=Notes)
    pipeline = (
        Sequential("pipeline", first)
        .then(scripted("writer", say("a text")), input=lambda notes: f"{notes.prompt}: {notes.output.facts[0]}")
        .then(scripted("editor", say("a better text")))
    )
    result = await pipeline.run("tea?")
    assert result.output == "a better text"
    assert [child.result.messages[0].text for child in result.children] == ["tea?", "tea?: hot", "a text"]
    assert [child.path for child in result.children] == ["pipeline/first", "pipeline/writer", "pipeline/editor"]
    assert [message.text for message in result.messages] == ["tea?", "a better text"]
    assert result.usage.model_calls == 3


@virtual
async def test_what_two_stages_found_can_be_combined_and_is_made_again_after_a_resume() -> None:
    notes = Agent("notes", model=ScriptedModel(say('{"topic": "tea", "facts": []}')), output=Notes)
    inner = Sequential("inner", scripted("draft", say("short"))).then(
        notes, combine=lambda draft, notes: (draft.output, notes.output.topic)
    )
    pipeline = Sequential("outer", inner).then(
        scripted("last", stall(), say("done")), input=lambda both: f"{both.output[0]} {both.output[1]}"
    )
    async with pipeline.start("go") as run:
        await asyncio.sleep(A_SECOND)
        run.cancel()
    assert run.result.checkpoint is not None
    result = await pipeline.resume(Checkpoint.from_bytes(run.result.checkpoint.to_bytes()))
    assert result.children[0].result.output == ("short", "tea")
    assert result.children[1].result.messages[0].text == "short tea"


@virtual
async def test_the_words_of_the_last_stage_are_the_words_of_the_sequence() -> None:
    async with two(say("one two three", pieces=3)).start("go") as run:
        words = [piece async for piece in run.text()]
    assert "".join(words) == "one two three"


@virtual
async def test_events_of_children_carry_their_paths_and_each_run_ends_once() -> None:
    async with two(say("done")).start("go") as run:
        events = [event async for event in run.events(nested=True)]
    started = [event.path for event in events if isinstance(event, RunStarted)]
    ended = [event.path for event in events if isinstance(event, RunEnded)]
    assert started == ["pipeline", "pipeline/first", "pipeline/last"]
    assert ended == ["pipeline/first", "pipeline/last", "pipeline"]


@virtual
async def test_a_child_that_fails_fails_the_sequence_and_what_was_done_is_kept() -> None:
    pipeline = two(fail(ConnectionError("gone")), say("after all"))
    with pytest.raises(RunFailed, match="gone") as failed:
        await pipeline.run("go")
    result = failed.value.result
    check_history(result.messages)
    assert [(entry.call_id, str(entry.state)) for entry in result.ledger] == [("first", "finished"), ("last", "failed")]
    assert [child.result.stop_reason for child in result.children] == ["end_turn", "error"]
    resumed = await pipeline.resume(result.checkpoint)
    assert resumed.output == "after all"


@virtual
async def test_a_function_of_the_user_that_raises_fails_the_run() -> None:
    def broken(_: object) -> str:
        raise LookupError("no such key")

    pipeline = Sequential("pipeline", scripted("first", say("found"))).then(scripted("last", say("x")), input=broken)
    with pytest.raises(RunFailed, match="no such key") as failed:
        await pipeline.run("go")
    assert [str(entry.state) for entry in failed.value.result.ledger] == ["finished", "not_started"]


@virtual
async def test_a_child_that_runs_out_of_steps_ends_the_sequence_in_the_same_way() -> None:
    @tool(effect="pure")
    async def look() -> str:
        """Look."""
        return "seen"

    first = scripted("first", call("look"), say("found"), tools=[look], budget=Budget(steps=1))
    pipeline = Sequential("pipeline", first).then(scripted("last", say("done")))
    result = await pipeline.run("go")
    assert result.stop_reason is StopReason.MAX_STEPS
    assert [str(entry.state) for entry in result.ledger] == ["stopped", "not_started"]


@virtual
async def test_a_stage_that_is_stopped_alone_stops_the_sequence_for_the_same_reason() -> None:
    pipeline = two(stall(), say("done"))
    async with pipeline.start("go") as run:
        await asyncio.sleep(A_SECOND)
        node = next(node for node in run.tree.walk() if node.name == "last")
        receipt = node.cancel(reason="not this one")
    assert await receipt.wait() == "stopped"
    assert run.result.cancellation is not None
    assert run.result.cancellation.reason.text == "its child 'last' was stopped: not this one"
    assert run.result.checkpoint is not None
    assert (await pipeline.resume(run.result.checkpoint)).output == "done"


@virtual
async def test_a_child_that_a_resumed_run_did_not_come_to_is_what_it_was() -> None:
    pipeline = two(stall(), say("done"))
    async with pipeline.start("go") as run:
        await asyncio.sleep(A_SECOND)
        run.cancel()
    assert run.result.checkpoint is not None
    async with pipeline.start(checkpoint=run.result.checkpoint) as again:
        again.cancel()
    assert [str(entry.state) for entry in again.result.ledger] == ["finished", "stopped"]
    assert 'Begun, not finished: "last".' in str(again.result.messages[-1].parts)
    assert again.result.checkpoint is not None
    assert (await pipeline.resume(again.result.checkpoint)).output == "done"


@virtual
async def test_a_checkpoint_that_changed_children_cannot_continue_is_still_there_for_others() -> None:
    first = Agent("first", model=ScriptedModel(say('{"topic": "tea", "facts": []}')), output=Notes)
    last = scripted("last", stall(), say("done"))
    async with Sequential("pipeline", first).then(last).start("go") as run:
        await asyncio.sleep(A_SECOND)
        run.cancel()
    checkpoint = run.result.checkpoint
    assert checkpoint is not None
    changed = Agent("first", model=ScriptedModel(), output=int)
    for _ in range(2):
        with pytest.raises(CheckpointError, match="what the checkpoint keeps of 'first' can't be read"):
            await Sequential("pipeline", changed).then(last).resume(checkpoint)
    assert (await Sequential("pipeline", first).then(last).resume(checkpoint)).output == "done"
    with pytest.raises(CheckpointError, match="continued already"):
        await Sequential("pipeline", first).then(last).resume(checkpoint)


@virtual
async def test_a_question_inside_a_child_ends_the_sequence_and_its_answer_finds_the_way_back() -> None:
    @tool
    async def asks(ctx: ToolContext) -> str:
        """Ask."""
        return str(await ctx.interrupt("may I?"))

    first = scripted("first", call("asks"), say("asked"), tools=[asks])
    pipeline = Sequential("outer", Sequential("inner", first)).then(scripted("last", say("done")))
    result = await pipeline.run("go")
    assert result.stop_reason is StopReason.INTERRUPTED
    (question,) = result.questions
    assert question.payload == "may I?"
    assert result.checkpoint is not None
    resumed = await pipeline.resume(
        Checkpoint.from_bytes(result.checkpoint.to_bytes()), answers={question.id: "you may"}
    )
    assert resumed.output == "done"
    inside = resumed.children[0].result.children[0].result
    assert [entry.content for entry in inside.ledger] == ["you may"]


@virtual
async def test_a_message_joins_the_running_child_and_is_part_of_the_conversation() -> None:
    @tool(effect="pure")
    async def look() -> str:
        """Look."""
        await asyncio.sleep(A_SECOND)
        return "seen"

    pipeline = Sequential("pipeline", scripted("first", call("look"), say("found"), tools=[look])).then(
        scripted("last", say("done"))
    )
    async with pipeline.start("go") as run:
        await asyncio.sleep(HALF_A_SECOND)
        receipt = run.steer("and be brief")
    assert await receipt.wait() is SteerOutcome.JOINED
    assert "and be brief" in run.result.children[0].result.messages[-2].text
    assert run.result.messages[0].text == "goand be brief"
    late = run.steer("more")
    assert await late.wait() is SteerOutcome.TOO_LATE


@virtual
async def test_a_message_that_comes_between_two_children_joins_the_next_one() -> None:
    class Adds(Hooks):
        def after_run(self, run: object, text: str) -> None:
            handle.steer("wait, also this")

    pipeline = Sequential("pipeline", scripted("first", say("found"), hooks=[Adds()])).then(scripted("last", say("x")))
    async with pipeline.start("go") as handle:
        pass
    assert handle.result.children[1].result.messages[0].text == "foundwait, also this"


@virtual
async def test_a_resumed_sequence_can_be_given_a_message() -> None:
    pipeline = two(stall(), say("done"))
    async with pipeline.start("go") as run:
        await asyncio.sleep(A_SECOND)
        run.cancel()
    assert run.result.checkpoint is not None
    result = await pipeline.resume(run.result.checkpoint, message="hurry")
    assert "hurry" in result.children[1].result.messages[0].text


@virtual
async def test_a_budget_counts_what_all_children_do_and_bounds_their_steps() -> None:
    pipeline = Sequential("pipeline", scripted("first", say("a")), budget=Budget(steps=1)).then(
        scripted("last", say("b"))
    )
    result = await pipeline.run("go")
    assert result.stop_reason is StopReason.MAX_STEPS
    assert [str(entry.state) for entry in result.ledger] == ["finished", "stopped"]
    resumed = pipeline.start(checkpoint=result.checkpoint)
    async with resumed:
        pass
    assert resumed.result.stop_reason is StopReason.MAX_STEPS


@virtual
async def test_a_budget_of_tokens_stops_a_child_in_the_middle() -> None:
    words = "word " * 200
    pipeline = Sequential("pipeline", scripted("first", say(words, pieces=50)), budget=Budget(tokens=100))
    result = await pipeline.run("go")
    assert result.stop_reason is StopReason.BUDGET
    assert result.cancellation is not None
    assert "100 tokens" in result.cancellation.reason.text


@virtual
async def test_hooks_of_the_sequence_hear_of_its_own_run_alone() -> None:
    heard: list[str] = []

    class Hears(Hooks):
        def before_run(self, run: object) -> None:
            heard.append("before")

        def after_run(self, run: object, text: str) -> None:
            heard.append(text)

        def on_stopped(self, run: object, result: object) -> None:
            heard.append("stopped")

    pipeline = Sequential("pipeline", scripted("first", say("a")), hooks=[Hears()]).then(scripted("last", say("b")))
    await pipeline.run("go")
    assert heard == ["before", "b"]


@dataclass
class Deps:
    name: str


@virtual
async def test_dependencies_and_tokens_reach_the_children() -> None:
    seen: list[str] = []

    @tool
    async def who(ctx: ToolContext[Deps]) -> str:
        """Who?"""
        seen.append(ctx.deps.name)
        return ctx.deps.name

    first = Agent[Deps, str]("first", model=ScriptedModel(call("who"), stall()), tools=[who])
    token = CancelToken()
    async with Sequential("pipeline", first).start("go", deps=Deps("ada"), token=token) as run:
        await asyncio.sleep(A_SECOND)
        token.cancel()
    assert seen == ["ada"]
    assert run.result.stop_reason is StopReason.CANCELLED


@virtual
async def test_a_session_keeps_prompt_and_answer_and_the_first_child_sees_the_conversation() -> None:
    session = await Session.create(MemoryStore())
    first = ScriptedModel(say("one"), say("two"))
    pipeline = Sequential("pipeline", Agent("first", model=first)).then(scripted("last", say("A"), say("B")))
    await pipeline.run("hello", session=session)
    result = await pipeline.run("again", session=session)
    assert [message.text for message in session.messages] == ["hello", "A", "again", "B"]
    assert [message.text for message in result.children[0].result.messages] == ["hello", "A", "again", "two"]


@virtual
async def test_a_sequence_whose_process_died_goes_on_after_its_finished_child() -> None:
    store = MemoryStore()
    session = await Session.create(store, "s")
    pipeline = two(stall())
    async with pipeline.start("go", session=session) as run:
        await asyncio.sleep(A_SECOND)
        stored = await store.load("s")
        run.cancel()
    # What the store had while the last child ran is what a crash would have left.
    ended = sealed(stored, stored.runs[-1])
    assert ended.checkpoint is not None
    again = two(say("done"))
    async with again.start(checkpoint=Checkpoint.from_bytes(ended.checkpoint.to_bytes())) as resumed:
        pass
    assert resumed.result.output == "done"
    assert [str(entry.state) for entry in resumed.result.ledger] == ["finished", "finished"]
    assert resumed.result.children[1].result.messages[0].text == "found"  # it goes on, and nothing is in doubt


@virtual
async def test_a_resumed_sequence_whose_process_died_still_knows_its_finished_child() -> None:
    store = MemoryStore()
    session = await Session.create(store, "s")
    pipeline = two(stall(), stall())
    async with pipeline.start("go", session=session) as run:
        await asyncio.sleep(A_SECOND)
        run.cancel()
    async with pipeline.start(checkpoint=session.checkpoint, session=session) as again:
        await asyncio.sleep(A_SECOND)
        stored = await store.load("s")
        again.cancel()
    left = sealed(stored, stored.runs[-1]).checkpoint
    assert left is not None
    result = await two(say("done")).resume(left)
    assert [(child.name, child.result.text) for child in result.children] == [("first", "found"), ("last", "done")]


@virtual
async def test_a_sequence_is_a_tool_of_an_agent_and_stops_with_it() -> None:
    pipeline = two(stall(), say("done"))
    boss = scripted("boss", call("pipeline", input="sub"), say("all done"), tools=[pipeline.as_tool()])
    async with boss.start("go") as run:
        await asyncio.sleep(A_SECOND)
        paths = [node.path for node in run.tree.walk()]
        await run.cancel().wait()
    assert paths[-1] == "boss/pipeline:call_1_1/pipeline/last"
    assert [str(entry.state) for entry in run.result.ledger] == ["stopped"]
    assert run.result.checkpoint is not None
    result = await boss.resume(Checkpoint.from_bytes(run.result.checkpoint.to_bytes()))
    assert result.output == "all done"
    assert [part.content for part in result.messages[2].parts if isinstance(part, ToolResult)] == ["done"]


@virtual
async def test_a_child_that_does_not_stop_is_abandoned_and_on_resume_the_next_one_is_told() -> None:
    release = asyncio.Event()

    @tool(grace=9)
    async def stubborn() -> str:
        """Never stop."""
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        return "late"

    slow = scripted("first", call("stubborn"), say("found"), tools=[stubborn])
    pipeline = Sequential("pipeline", slow, ladder=Ladder(task=1, thread=0.2, kill=1, undo=1, cap=2))
    async with pipeline.start("go") as run:
        await asyncio.sleep(A_SECOND)
        began = asyncio.get_running_loop().time()
        run.cancel()
        result = await run.wait()
        assert asyncio.get_running_loop().time() - began == pytest.approx(2), "the ladder's cap, and not twice that"
    came_back = asyncio.Event()
    result.orphans[0].when_late(lambda _: came_back.set())
    release.set()
    await came_back.wait()
    assert [(str(entry.state), entry.still_running) for entry in result.ledger] == [("cut", True)]
    assert [orphan.name for orphan in result.orphans] == ["first"]
    check_history(result.messages)
    again = Sequential("pipeline", scripted("first", say("found again")))
    assert result.checkpoint is not None
    resumed = await again.resume(result.checkpoint, fork=True)
    assert "outcome unknown" in resumed.children[0].result.messages[0].text
    asked = await again.resume(result.checkpoint, fork=True, on_unknown="ask")
    assert asked.stop_reason is StopReason.INTERRUPTED
    assert [question.kind for question in asked.questions] == ["unknown"]


def test_what_is_no_agent_is_refused() -> None:
    with pytest.raises(ValueError, match="is not an agent"):
        Sequential("pipeline", "researcher")  # type: ignore[arg-type]  # the mistake
    with pytest.raises(ValueError, match=r"Sequential\(''\): an agent needs a name, as in Sequential"):
        Sequential("", scripted("first"))


@virtual
async def test_a_checkpoint_of_a_stage_that_is_gone_is_refused_before_anything_is_claimed() -> None:
    pipeline = two(stall(), say("done"))
    async with pipeline.start("go") as run:
        await asyncio.sleep(A_SECOND)
        run.cancel()
    assert run.result.checkpoint is not None
    other = Sequential("pipeline", scripted("first", say("x"))).then(scripted("other", say("y")))
    with pytest.raises(CheckpointError, match="a child 'last', which 'pipeline' has no longer"):
        await other.resume(run.result.checkpoint)
    assert (await pipeline.resume(run.result.checkpoint)).output == "done"


@virtual
async def test_the_notice_says_what_was_done_and_what_was_not() -> None:
    pipeline = two(stall()).then(scripted("never"))
    async with pipeline.start("go") as run:
        await asyncio.sleep(A_SECOND)
        run.cancel(SafePoint.NOW, reason="enough")
    (notice,) = [part for part in run.result.messages[-1].parts if isinstance(part, Notice)]
    assert notice.text.endswith('Finished: "first". Begun, not finished: "last". Not started: "never".]')
    assert run.result.messages[0] == user_message("go")

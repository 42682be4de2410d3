"""How a stopped run is continued: answers, amendments, edits, forks, and calls whose outcome nobody knows."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from safepoint import (
    Agent,
    AskFirst,
    Budget,
    Checkpoint,
    Hooks,
    Ladder,
    Message,
    Resume,
    RunFailed,
    RunResult,
    SafePoint,
    Sequential,
    StopReason,
    Text,
    ToolCall,
    ToolContext,
    check_history,
    tool,
)
from safepoint.agent.model import Finish, TextDelta
from safepoint.agent.resume import Continued
from safepoint.errors import CheckpointError, HistoryError, ModelError, SessionBusy
from safepoint.sessions import MemoryStore, Session
from safepoint.testing import ScriptedModel, call, fail, pass_time, say, stall
from safepoint.testing.models import raw
from safepoint.tools.base import BaseTool
from tests.virtual import virtual


def kept(result: RunResult[Any]) -> Checkpoint:  # Any: of any output type
    """The checkpoint, as another process would read it."""
    check_history(result.messages)
    assert result.checkpoint is not None
    return Checkpoint.from_bytes(result.checkpoint.to_bytes())


def said(result: RunResult[Any]) -> list[str]:  # Any: as above
    return [message.text for message in result.messages if message.role == "user"]


def results(result: RunResult[Any]) -> list[tuple[str, str]]:  # Any: as above
    return [(p.state, p.content) for m in result.messages for p in m.parts if p.kind == "tool_result"]


@tool
async def confirm(context: ToolContext) -> str:
    """Ask twice."""
    first: str = await context.interrupt("first?")
    second: str = await context.interrupt("second?")
    return f"{first}, {second}"


async def asked() -> tuple[Agent, RunResult[str]]:
    agent = Agent("asker", model=ScriptedModel(call("confirm"), say("thanks")), tools=[confirm])
    paused = await agent.run("go")
    assert paused.stop_reason == "interrupted"
    return agent, paused


@virtual
async def test_interrupts_get_their_answers_in_order() -> None:
    agent, paused = await asked()
    (question,) = paused.questions
    assert question.payload == "first?"
    again = await agent.resume(kept(paused), answers={question.id: "one"})
    (question,) = again.questions
    assert question.payload == "second?"
    final = await agent.resume(kept(again), answers={question.id: "two"})
    assert results(final) == [("finished", "one, two")]


@virtual
async def test_answers_must_fit_the_questions_and_a_refusal_costs_nothing() -> None:
    agent, paused = await asked()
    checkpoint = kept(paused)
    id = paused.questions[0].id
    with pytest.raises(CheckpointError, match=f"the question '{id}' has no answer"):
        await agent.resume(checkpoint)
    with pytest.raises(CheckpointError, match="no question has the id 'other'"):
        await agent.resume(checkpoint, answers={"other": 1, id: 2})
    with pytest.raises(CheckpointError, match="of the agent 'asker', this one is 'b'"):
        await Agent("b", model=ScriptedModel()).resume(checkpoint, answers={id: 1})
    with pytest.raises(ValueError, match="on_unknown='maybe'"):
        await agent.resume(checkpoint, answers={id: 1}, on_unknown="maybe")  # type: ignore[arg-type]  # the point
    with pytest.raises(CheckpointError, match=r"Checkpoint.from_bytes"):
        await agent.resume(checkpoint.to_bytes())  # type: ignore[arg-type]  # the point
    assert (await agent.resume(checkpoint, answers={id: "x"})).stop_reason == "interrupted"


@virtual
async def test_a_checkpoint_is_continued_once_unless_it_is_forked() -> None:
    agent, paused = await asked()
    checkpoint = kept(paused)
    answers = {paused.questions[0].id: "x"}
    await agent.resume(checkpoint, answers=answers)
    with pytest.raises(CheckpointError, match="continued already: write fork=True"):
        await agent.resume(checkpoint, answers=answers)
    assert (await agent.resume(checkpoint, answers=answers, fork=True)).stop_reason == "interrupted"


class Check(Hooks):
    def before_tool(self, run: Any, call: ToolCall) -> object:  # Any: a run of any agent
        return AskFirst(f"may I {call.name}?")


@pytest.mark.parametrize(
    ("answer", "state", "says"),
    [(True, "finished", "paid"), (False, "failed", "a person said no"), ("too dear", "failed", "too dear")],
)
def test_a_check_that_asks_is_answered_by_true_false_or_a_reason(answer: object, state: str, says: str) -> None:
    @virtual
    async def body() -> None:
        @tool
        async def pay() -> str:
            """Pay."""
            return "paid"

        agent = Agent("payer", model=ScriptedModel(call("pay"), say("ok")), tools=[pay], hooks=[Check()])
        paused = await agent.run("pay")
        assert [(q.payload, q.kind) for q in paused.questions] == [("may I pay?", "check")]
        id = paused.questions[0].id
        with pytest.raises(CheckpointError, match=r"True, False or a reason"):
            await agent.resume(kept(paused), answers={id: 7})
        final = await agent.resume(kept(paused), answers={id: answer})
        assert results(final)[0][0] == state
        assert says in results(final)[0][1]

    body()


@virtual
async def test_each_of_two_checks_gets_its_own_answer() -> None:
    @tool
    async def pay() -> str:
        """Pay."""
        return "paid"

    agent = Agent("payer", model=ScriptedModel(call("pay"), say("ok")), tools=[pay], hooks=[Check(), Check()])
    paused = await agent.run("pay")
    again = await agent.resume(kept(paused), answers={paused.questions[0].id: True})
    assert again.stop_reason == "interrupted"
    final = await agent.resume(kept(again), answers={again.questions[0].id: False})
    assert results(final)[0][0] == "failed"


# -- calls that were cut -----------------------------------------------------------------------------------------------


class Cut:
    """A tool that is cut the first time, after it has done something once."""

    def __init__(self) -> None:
        self.inside = asyncio.Event()
        self.times: list[str] = []

        @tool
        async def act(context: ToolContext) -> str:
            """Act."""
            await context.once("begin", lambda: self.times.append("begin"))
            self.times.append("act")
            if not self.inside.is_set():
                self.inside.set()
                await asyncio.get_running_loop().create_future()
            return "acted"

        self.agent = Agent("actor", model=ScriptedModel(call("act"), say("ok"), say("ok")), tools=[act])

    async def stopped(self) -> Checkpoint:
        async with self.agent.start("go") as run:
            await self.inside.wait()
            run.cancel()
        return kept(run.result)


@virtual
async def test_a_cut_call_is_told_to_the_model_and_not_made_again() -> None:
    cut = Cut()
    final = await cut.agent.resume(await cut.stopped())
    assert results(final)[0][0] == "cut"
    assert cut.times == ["begin", "act"]


@virtual
async def test_a_cut_call_is_made_again_if_that_is_wanted_and_what_was_done_once_is_not() -> None:
    cut = Cut()
    final = await cut.agent.resume(await cut.stopped(), on_unknown="rerun")
    assert results(final) == [("finished", "acted")]
    assert cut.times == ["begin", "act", "act"]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [(True, ("finished", "acted")), (False, ("cut", "")), ("it worked", ("finished", "A person says: it worked"))],
)
def test_a_person_is_asked_about_a_cut_call(answer: object, expected: tuple[str, str]) -> None:
    @virtual
    async def body() -> None:
        cut = Cut()
        paused = await cut.agent.resume(await cut.stopped(), on_unknown="ask")
        assert (paused.stop_reason, [q.kind for q in paused.questions]) == ("interrupted", ["unknown"])
        id = paused.questions[0].id
        with pytest.raises(CheckpointError, match="True, False or"):
            await cut.agent.resume(kept(paused), answers={id: None})
        final = await cut.agent.resume(kept(paused), answers={id: answer}, on_unknown="ask")
        assert results(final)[0][0] == expected[0]
        assert expected[1] in results(final)[0][1]
        assert cut.times.count("begin") == 1, "what was done once was done again"

    body()


@pytest.mark.parametrize("changed", [False, True])
def test_a_call_whose_tool_is_gone_or_changed_gets_a_truthful_error(changed: bool) -> None:
    @virtual
    async def body() -> None:
        inside = asyncio.Event()

        @tool(effect="pure")
        async def look(x: int) -> str:
            """Look."""
            inside.set()
            await asyncio.get_running_loop().create_future()
            return ""

        async with Agent("a", model=ScriptedModel(call("look", x=1)), tools=[look]).start("go") as run:
            await inside.wait()
            run.cancel()

        @tool(name="look")
        async def other(y: str) -> str:
            """Look."""
            return y

        tools: list[BaseTool] = [other] if changed else []
        final = await Agent("a", model=ScriptedModel(say("ok")), tools=tools).resume(kept(run.result))
        state, text = results(final)[0]
        assert state == "failed"
        assert ("have changed" if changed else "no tool named 'look'") in text

    body()


# -- amend, edit, and every kind of stop -------------------------------------------------------------------------------


@virtual
async def test_a_message_after_a_cut_model_call_joins_the_last_one_of_the_user() -> None:
    reached = asyncio.Event()
    agent = Agent("a", model=ScriptedModel([say("Once"), stall(reached.set)], say("ok")))
    async with agent.start("tell") as run:
        await reached.wait()
        run.cancel()
    final = await agent.resume(kept(run.result), message="shorter")
    check_history(final.messages)
    assert said(final) == ["tellshorter"]
    assert len(final.messages[0].parts) == 2


@virtual
async def test_a_message_that_was_added_is_kept_if_the_resumed_run_is_stopped_before_it_joined() -> None:
    inside, times = asyncio.Event(), 0

    @tool(effect="pure")
    async def look() -> str:
        """Hang twice."""
        nonlocal times
        times += 1
        if times < 3:
            inside.set()
            await asyncio.get_running_loop().create_future()
        return "seen"

    agent = Agent("a", model=ScriptedModel(call("look"), say("ok")), tools=[look])
    async with agent.start("look") as run:
        await inside.wait()
        run.cancel()
    inside.clear()
    async with agent.start(checkpoint=Resume(kept(run.result), message="and hurry")) as again:
        await inside.wait()
        again.cancel()
    assert said(again.result) == ["look", "and hurry"]
    final = await agent.resume(kept(again.result), message="now")
    assert said(final) == ["look", "and hurrynow"]


@virtual
async def test_a_message_is_answered_also_if_a_final_tool_has_given_the_answer() -> None:
    inside = asyncio.Event()

    @tool(final=True, effect="pure")
    async def answer() -> str:
        """Hang the first time."""
        if not inside.is_set():
            inside.set()
            await asyncio.get_running_loop().create_future()
        return "42"

    agent = Agent("a", model=ScriptedModel(call("answer"), say("43, then")), tools=[answer])
    async with agent.start("go") as run:
        await inside.wait()
        run.cancel()
    checkpoint = kept(run.result)
    assert (await agent.resume(checkpoint, message="are you sure?")).text == "43, then"
    assert (await agent.resume(checkpoint, fork=True)).text == "42"


@virtual
async def test_an_ask_after_tools_is_heeded_before_the_model_call_for_a_message() -> None:
    inside = asyncio.Event()

    @tool(final=True)
    async def answer() -> str:
        """Answer."""
        inside.set()
        await asyncio.sleep(0)
        return "42"

    model = ScriptedModel(call("answer"), say("43"))
    async with Agent("a", model=model, tools=[answer]).start("go") as run:
        await inside.wait()
        run.cancel(SafePoint.AFTER_TOOLS)
        run.steer("one more thing")
    assert (run.result.stop_reason, model.calls) == ("cancelled", 1)


@virtual
async def test_an_edit_rewrites_what_came_before_the_open_step_and_must_leave_a_valid_history() -> None:
    agent, paused = await asked()
    answers = {paused.questions[0].id: "x"}

    def rewrite(messages: list[Message]) -> list[Message]:
        return [Message("user", (Text("rewritten"),)), *messages[1:]]

    with pytest.raises(HistoryError):
        await agent.resume(kept(paused), answers=answers, edit=lambda messages: [*messages, *messages])
    again = await agent.resume(kept(paused), answers=answers, edit=rewrite)
    assert said(again) == ["rewritten"]


@virtual
async def test_a_run_that_used_its_steps_goes_on_with_more_of_them() -> None:
    @tool
    async def act() -> str:
        """Act."""
        return "ok"

    agent = Agent("a", model=ScriptedModel(call("act"), call("act"), say("done")), tools=[act])
    stopped = await agent.run("go", budget=Budget(steps=1))
    assert (stopped.stop_reason, len(stopped.ledger)) == ("max_steps", 1)
    async with agent.start(checkpoint=kept(stopped), budget=Budget(steps=2)) as run:
        pass
    assert (run.result.stop_reason, len(run.result.ledger)) == ("max_steps", 2)
    assert (await agent.resume(kept(run.result))).text == "done"


@virtual
async def test_a_run_that_failed_makes_its_model_call_again() -> None:
    agent = Agent("a", model=ScriptedModel(fail(ModelError("no")), say("ok")))
    with pytest.raises(RunFailed) as failed:
        await agent.run("go")
    assert (await agent.resume(kept(failed.value.result))).text == "ok"


@pytest.mark.parametrize("reason", ["max_tokens", "refused"])
def test_a_reply_that_was_cut_off_is_made_again_and_never_taken_for_the_answer(reason: Any) -> None:  # Any: a literal
    @virtual
    async def body() -> None:
        model = ScriptedModel(raw(TextDelta("Once upon"), Finish(reason)), say("whole"), say("and on"))
        agent = Agent("a", model=model, budget=Budget(steps=1))
        stopped = await agent.run("tell")
        assert stopped.stop_reason == reason
        checkpoint = kept(stopped)
        final = await agent.resume(checkpoint)
        assert (final.stop_reason, final.text, said(final)) == ("end_turn", "whole", ["tell"])
        async with agent.start(checkpoint=Resume(checkpoint, "go on", fork=True), budget=Budget(steps=2)) as run:
            pass
        assert [m.text for m in run.result.messages] == ["tell", "Once upon", "go on", "and on"]

    body()


# -- interrupt and cancel ----------------------------------------------------------------------------------------------


def deep(levels: int) -> Agent:
    agent = Agent("asker", model=ScriptedModel(call("confirm"), say("thanks")), tools=[confirm])
    for level in range(levels):
        model = ScriptedModel(call(agent.name, input="go"), say(f"done {level}"))
        agent = Agent(f"level{level}", model=model, tools=[agent.as_tool()])
    return agent


@virtual
async def test_questions_of_sub_agents_two_levels_deep_find_their_way_back() -> None:
    agent = deep(2)
    paused = await agent.run("go")
    assert [q.payload for q in paused.questions] == ["first?"]
    again = await agent.resume(kept(paused), answers={paused.questions[0].id: "a"})
    assert [q.payload for q in again.questions] == ["second?"]
    final = await agent.resume(kept(again), answers={again.questions[0].id: "b"})
    assert (final.stop_reason, final.text) == ("end_turn", "done 1")


@pytest.mark.parametrize("levels", [0, 2])
def test_a_cancel_that_stands_wins_over_an_interrupt_and_it_fires_again_on_resume(levels: int) -> None:
    @virtual
    async def body() -> None:
        agent = deep(levels)
        async with agent.start("go") as run:
            run.cancel(SafePoint.AFTER_TOOLS)
        assert run.result.stop_reason == "cancelled"
        assert run.result.questions == ()
        again = await agent.resume(kept(run.result))
        assert (again.stop_reason, [q.payload for q in again.questions]) == ("interrupted", ["first?"])
        final = await agent.resume(kept(again), answers={again.questions[0].id: "a"})
        assert [q.payload for q in final.questions] == ["second?"]

    body()


@virtual
async def test_a_sub_agent_that_was_to_continue_and_did_not_start_is_not_begun_anew() -> None:
    effects: list[str] = []
    asked_once, in_hook = asyncio.Event(), asyncio.Event()

    @tool
    async def act(context: ToolContext) -> str:
        """Act, then ask."""
        await context.once("act", lambda: effects.append("act"))
        answer: str = await context.interrupt("go on?")
        return answer

    class Slow(Hooks):
        async def before_tool(self, run: Any, call: ToolCall) -> object:  # Any: a run of any agent
            if asked_once.is_set() and not in_hook.is_set():
                in_hook.set()
                await asyncio.get_running_loop().create_future()
            return None

    inner = Agent("inner", model=ScriptedModel(call("act"), say("inner done")), tools=[act])
    model = ScriptedModel(call("inner", input="go"), say("done"))
    outer = Agent("outer", model=model, tools=[inner.as_tool()], hooks=[Slow()])
    paused = await outer.run("go")
    asked_once.set()
    answers = {paused.questions[0].id: "yes"}
    async with outer.start(checkpoint=Resume(kept(paused), answers=answers)) as run:
        await in_hook.wait()
        run.cancel()
    again = await outer.resume(kept(run.result))
    assert (again.text, effects) == ("done", ["act"])  # and nobody is asked again


@virtual
async def test_a_run_that_is_stopped_before_it_came_to_a_call_tells_of_it_what_the_run_before_knew() -> None:
    reached, asked, never = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @tool(effect="idempotent")
    async def waits() -> str:
        """Wait."""
        reached.set()
        await never.wait()
        return "never"

    @tool
    async def paged(context: ToolContext) -> str:
        """Stop after a page."""
        await asked.wait()
        await context.safe_point("page", save=1)
        return "read"

    inner = Agent("inner", model=ScriptedModel(call("waits")), tools=[waits])
    calls = [call("waits"), call("paged"), call("inner", input="go"), call("confirm")]
    agent = Agent("a", model=ScriptedModel(calls), tools=[waits, paged, inner.as_tool(), confirm])
    async with agent.start("go") as run:
        await reached.wait()
        run.cancel(SafePoint.named("page") | SafePoint.AFTER_TOOLS, recursive=True, within=1)
        asked.set()
    first = run.result
    assert [state for state, _ in results(first)] == ["cut", "stopped", "stopped", "waiting"]
    async with agent.start(checkpoint=kept(first)) as run:
        run.cancel()
    again = run.result
    assert [(entry.state, entry.point) for entry in again.ledger] == [(e.state, e.point) for e in first.ledger]
    assert [state for state, _ in results(again)] == ["cut", "stopped", "stopped", "waiting"]
    assert kept(again).ledger == first.ledger


# -- safe points -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threaded", [False, True])
def test_a_tool_that_stopped_at_its_own_point_goes_on_with_what_it_saved(threaded: bool) -> None:
    @virtual
    async def body() -> None:
        seen: list[Any] = []  # Any: whatever was saved

        @tool(name="count")
        async def in_loop(context: ToolContext) -> str:
            """Count."""
            seen.append(context.saved)
            for page in range(context.saved or 0, 3):
                await context.safe_point("page", save=page)
            return "counted"

        @tool(name="count")
        def in_thread(context: ToolContext) -> str:
            """Count."""
            seen.append(context.saved)
            for page in range(context.saved or 0, 3):
                context.safe_point_sync("page", save=page)
            return "counted"

        chosen: BaseTool = in_thread if threaded else in_loop
        agent = Agent("a", model=ScriptedModel(call("count"), say("ok")), tools=[chosen])
        async with agent.start("go") as run:
            run.cancel(SafePoint.named("page"))
        assert [(e.state, e.point) for e in run.result.ledger] == [("stopped", "page")]
        final = await agent.resume(kept(run.result))
        assert (results(final), seen) == ([("finished", "counted")], [None, 0])

    body()


# -- in a session ------------------------------------------------------------------------------------------------------


@virtual
async def test_a_resume_that_found_its_session_busy_may_be_tried_again() -> None:
    store = MemoryStore()
    session = await Session.create(store, "s")
    agent = Agent("asker", model=ScriptedModel(call("confirm"), say("thanks")), tools=[confirm])
    paused = await agent.run("go", session=session)
    answers = {paused.questions[0].id: "x"}
    await store.claim("s", "somebody else")
    with pytest.raises(SessionBusy):
        await agent.resume(kept(paused), answers=answers, session=session)
    await store.release("s", "somebody else")
    again = await agent.resume(kept(paused), answers=answers, session=session)
    assert again.stop_reason == "interrupted"
    assert session.messages == tuple(again.messages)


@virtual
async def test_in_a_session_an_edit_may_not_rewrite_an_older_turn() -> None:
    session = await Session.create(MemoryStore(), "s")
    agent = Agent("asker", model=ScriptedModel(say("hello"), call("confirm"), say("thanks")), tools=[confirm])
    await agent.run("hi", session=session)
    paused = await agent.run("go", session=session)
    before = session.messages
    answers = {paused.questions[0].id: "x"}
    with pytest.raises(CheckpointError, match="older turn"):
        await agent.resume(kept(paused), answers=answers, session=session, edit=lambda messages: messages[2:])
    assert session.messages == before


@pytest.mark.parametrize("shape", ["empty", "calls"])
@virtual
async def test_an_edit_that_leaves_nothing_or_adds_calls_is_refused_and_costs_nothing(shape: str) -> None:
    reached = asyncio.Event()
    agent = Agent("a", model=ScriptedModel(stall(reached.set), say("done")))
    async with agent.start("go") as run:
        await reached.wait()
        run.cancel()
    assert run.result.checkpoint is not None
    added = [Message("assistant", (ToolCall("call_9", "look", {}),))]
    with pytest.raises(HistoryError, match=r"edit=… (has left no message|may not add calls)"):
        await agent.resume(run.result.checkpoint, edit=lambda old: [] if shape == "empty" else [*old, *added])
    assert (await agent.resume(run.result.checkpoint)).text == "done"


@pytest.mark.parametrize("first", ["session", "bare"])
@virtual
async def test_what_was_continued_in_a_session_or_without_can_not_be_continued_in_the_other_way(first: str) -> None:
    reached = asyncio.Event()
    session = await Session.create(MemoryStore())
    agent = Agent("a", model=ScriptedModel(stall(reached.set), say("done"), say("again")))
    async with agent.start("go", session=session) as run:
        await reached.wait()
        run.cancel()
    checkpoint = run.result.checkpoint
    assert checkpoint is not None
    ways = {"session": session, "bare": None}
    assert (await agent.resume(checkpoint, session=ways.pop(first))).text == "done"
    [other] = ways.values()
    with pytest.raises(CheckpointError, match="continued already"):
        await agent.resume(checkpoint, session=other)
    assert (await agent.resume(checkpoint, session=other, fork=True)).text == "again"


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize(
    ("answer", "paid", "state"), [(True, 2, "finished"), (False, 1, "cut"), ("I did", 1, "finished")]
)
def test_what_a_person_said_of_a_cut_call_outlives_a_run_that_did_not_come_to_it(
    answer: bool | str, paid: int, state: str, inside: bool
) -> None:
    @virtual
    async def test() -> None:
        began, calls = asyncio.Event(), list[int]()

        @tool
        async def pay() -> str:
            """Pay; the first time it takes long."""
            calls.append(1)
            if not began.is_set():
                began.set()
                await asyncio.Event().wait()
            return "paid"

        model = ScriptedModel(call("pay"), say("done"))
        payer = Agent("payer", model=model, tools=[pay])
        agent = Sequential("around", payer) if inside else payer
        async with agent.start("go") as run:
            await began.wait()
            run.cancel()
        assert run.result.checkpoint is not None
        asked = await agent.resume(run.result.checkpoint, on_unknown="ask")
        assert asked.checkpoint is not None
        answers = {question.id: answer for question in asked.questions}
        async with agent.start(checkpoint=Resume(asked.checkpoint, answers=answers)) as run:
            run.cancel()
        assert run.result.checkpoint is not None
        result = await agent.resume(Checkpoint.from_bytes(run.result.checkpoint.to_bytes()), on_unknown="ask")
        ledger = result.children[0].result.ledger if inside else result.ledger
        assert ([str(entry.state) for entry in ledger], len(calls)) == ([state], paid)
        assert result.stop_reason == "end_turn"

    test()


@pytest.mark.parametrize("answer", [True, False, "Only once!"])
def test_what_a_person_said_of_a_cut_child_outlives_a_run_that_did_not_come_to_it(answer: bool | str) -> None:
    @virtual
    async def test() -> None:
        began, gate, model = asyncio.Event(), asyncio.Event(), ScriptedModel(say("done"))

        @tool
        async def deaf() -> None:
            """Swallow the cancellation."""
            began.set()
            while not gate.is_set():
                with suppress(asyncio.CancelledError):
                    await gate.wait()

        patient = Ladder(task=8, cap=9)
        first = Agent("child", model=ScriptedModel(call("deaf")), tools=[deaf], ladder=patient)
        async with Sequential("around", first, ladder=Ladder(cap=1)).start("go") as run:
            await began.wait()
            run.cancel()
        assert [str(entry.state) for entry in run.result.ledger] == ["cut"]
        gate.set()
        around = Sequential("around", Agent("child", model=model))
        assert run.result.checkpoint is not None
        asked = await around.resume(run.result.checkpoint, on_unknown="ask")
        assert asked.checkpoint is not None
        async with around.start(checkpoint=Resume(asked.checkpoint, answers={"child:unknown": answer})) as run:
            run.cancel()
        assert run.result.checkpoint is not None
        result = await around.resume(Checkpoint.from_bytes(run.result.checkpoint.to_bytes()), on_unknown="ask")
        told = model.requests[0].messages[0].text
        assert result.stop_reason == "end_turn"
        assert ("outcome unknown" in told) == (answer is not True)
        assert ("Only once!" in told) == (answer == "Only once!")
        await pass_time(10)  # for the child that was abandoned

    test()


@virtual
async def test_a_run_that_goes_on_under_its_id_leaves_a_checkpoint_that_is_not_the_one_before() -> None:
    reached = asyncio.Event()
    session = await Session.create(MemoryStore())
    agent = Agent("a", model=ScriptedModel(stall(reached.set), repeat=True))
    async with agent.start("go", session=session) as run:
        await reached.wait()
        run.cancel()
    before = run.result.checkpoint
    assert before is not None
    async with agent.start(checkpoint=before, session=session).under(run.id) as again:
        again.cancel()
    assert again.id == run.id
    with pytest.raises(CheckpointError, match="moved on"):
        await agent.resume(before, session=session)


def test_which_checkpoints_were_continued_is_known_of_the_newest_so_that_a_process_may_live_for_ever() -> None:
    class Few(Continued):
        LIMIT = 10

    def resume(number: int) -> Resume:
        said = (Message("user", (Text("go"),)),)
        return Resume(Checkpoint(f"checkpoint_{number}", "a", "r", StopReason.CANCELLED, said, said))

    known = Few()
    for number in range(1000):
        known.claim(resume(number))
        known.note(resume(1000 + number))
    for newest in (999, 1999):
        with pytest.raises(CheckpointError, match="continued already"):
            known.claim(resume(newest))
    known.claim(resume(0))
    known.claim(resume(1000))

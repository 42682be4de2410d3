"""`self.ctx` in hooks: a person is asked before anything has happened, and a run stops at a hook's safe point."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from safepoint import Agent, Checkpoint, Deny, Hooks, RunResult, SafePoint, Sequential, ToolContext, check_history, tool
from safepoint.agent.hooks import AnyRun
from safepoint.agent.ledger import LedgerEntry
from safepoint.errors import CheckpointError, UsageError
from safepoint.events import HookFailed
from safepoint.history.parts import Message, ToolCall
from safepoint.models import ModelRequest
from safepoint.sessions import Session
from safepoint.testing import ScriptedModel, call, run_virtual, say
from tests.sessions.stores import both_stores, opened
from tests.virtual import virtual

POINTS = ["before_run", "before_model", "before_tool"]


class Log:
    """What happened, in order."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def tools(self) -> list[Any]:  # Any: tools of every signature
        @tool
        async def act(x: int) -> str:
            """Act."""
            self.lines.append(f"act {x}")
            return f"did {x}"

        return [act]


class Asks(Hooks):
    """Asks a person in one of the before-hooks, each time it is called."""

    def __init__(self, where: str, log: Log) -> None:
        self.where = where
        self.log = log

    async def _ask(self, where: str) -> None:
        if where == self.where:
            answer = await self._answer({"may I?": where})
            self.log.lines.append(f"{where}: {answer}")

    async def _answer(self, payload: object) -> object:
        return await self.ctx.interrupt(payload)

    async def before_run(self, run: AnyRun) -> None:
        await self._ask("before_run")

    async def before_model(self, run: AnyRun, request: ModelRequest) -> None:
        await self._ask("before_model")

    async def before_tool(self, run: AnyRun, call: ToolCall) -> None:
        await self._ask("before_tool")


class AsksBeside(Asks):
    """Asks in a task of its own."""

    async def _answer(self, payload: object) -> object:
        async with asyncio.TaskGroup() as group:
            asking = group.create_task(self.ctx.interrupt(payload))
        return asking.result()


def worker(log: Log, *hooks: Hooks) -> Callable[[], Agent]:
    """An agent that calls one tool and answers; the model is the same from run to run."""
    model = ScriptedModel([say("I act."), call("act", x=1)], say("done"))
    return lambda: Agent("worker", model=model, tools=log.tools(), hooks=hooks)


def through_bytes(result: RunResult[Any]) -> Checkpoint:  # Any: of any output
    assert result.checkpoint is not None
    return Checkpoint.from_bytes(result.checkpoint.to_bytes())


@pytest.mark.parametrize("kind", [Asks, AsksBeside])
@pytest.mark.parametrize("where", POINTS)
@virtual
async def test_an_interrupt_in_a_before_hook_ends_the_run_and_resume_continues_with_the_answer(
    where: str, kind: type[Asks]
) -> None:
    log = Log()
    agent = worker(log, kind(where, log))
    result = await agent().run("go")
    asked = 0
    while result.stop_reason == "interrupted":
        check_history(result.messages)
        [question] = result.questions
        assert (question.payload, question.kind) == ({"may I?": where}, "interrupt")
        asked += 1
        result = await agent().resume(through_bytes(result), answers={question.id: f"yes {asked}"})
    assert (result.text, asked) == ("done", 2 if where == "before_model" else 1)
    assert [line for line in log.lines if line.startswith("act")] == ["act 1"]
    assert log.lines.count(f"{where}: yes 1") == 1
    check_history(result.messages)


@pytest.mark.parametrize(
    ("where", "asker"), [("before_run", "before_run"), ("before_model", "before_model"), ("before_tool", "act")]
)
@virtual
async def test_a_question_names_who_asks_and_wants_an_answer(where: str, asker: str) -> None:
    log = Log()
    agent = worker(log, Asks(where, log))
    result = await agent().run("go")
    assert [question.tool for question in result.questions] == [asker]
    assert result.checkpoint is not None
    with pytest.raises(CheckpointError, match="has no answer"):
        await agent().resume(result.checkpoint)


@virtual
async def test_the_answer_of_before_run_holds_for_every_later_resume() -> None:
    log = Log()

    @tool
    async def ask(context: ToolContext) -> str:
        """Ask."""
        answer: str = await context.interrupt("and I?")
        return answer

    model = ScriptedModel(call("ask"), say("done"))
    agent = Agent("a", model=model, tools=[ask], hooks=[Asks("before_run", log)])
    first = await agent.run("go")
    second = await agent.resume(through_bytes(first), answers={"before_run:1": "yes"})
    assert [question.payload for question in second.questions] == ["and I?"]
    third = await agent.resume(through_bytes(second), answers={second.questions[0].id: "you too"})
    assert third.text == "done"
    assert log.lines == ["before_run: yes", "before_run: yes"]


@virtual
async def test_a_hook_before_a_tool_and_the_tool_share_the_order_of_their_questions() -> None:
    log = Log()

    class Two(Hooks):
        async def before_tool(self, run: AnyRun, call: ToolCall) -> None:
            log.lines.append(f"hook {await self.ctx.interrupt('one')} {await self.ctx.interrupt('two')}")

    @tool
    async def ask(context: ToolContext) -> str:
        """Ask."""
        log.lines.append(f"tool {await context.interrupt('three')}")
        return "ok"

    agent = Agent("a", model=ScriptedModel(call("ask"), say("done")), tools=[ask], hooks=[Two()])
    result = await agent.run("go")
    for answer in (1, 2, 3):
        [question] = result.questions
        result = await agent.resume(through_bytes(result), answers={question.id: answer})
    assert result.text == "done"
    assert log.lines == ["hook 1 2", "hook 1 2", "tool 3"]


@virtual
async def test_what_a_hook_did_once_is_not_done_again() -> None:
    done: list[str] = []

    class Careful(Hooks):
        async def before_model(self, run: AnyRun, request: ModelRequest) -> None:
            await self.ctx.once("mail", lambda: done.append("mail"))
            await self.ctx.interrupt("go on?")

    agent = Agent("a", model=ScriptedModel(say("done")), hooks=[Careful()])
    result = await agent.run("go")
    result = await agent.resume(through_bytes(result), answers={"before_model:1": True})
    assert (result.text, done) == ("done", ["mail"])


@virtual
async def test_a_cancel_that_stands_wins_over_the_question_and_it_is_asked_again_on_resume() -> None:
    log = Log()

    class Late(Asks):
        async def before_run(self, run: AnyRun) -> None:
            if first:
                run.cancel(SafePoint.AFTER_TOOLS, reason="enough")
            await super().before_run(run)

    first = True
    agent = worker(log, Late("before_run", log))
    result = await agent().run("go")
    assert (result.stop_reason, result.questions) == ("cancelled", ())
    first = False
    again = await agent().resume(through_bytes(result))
    assert again.stop_reason == "interrupted"
    assert (await agent().resume(through_bytes(again), answers={"before_run:1": "yes"})).text == "done"


@virtual
async def test_a_sub_agents_hook_asks_through_its_parent() -> None:
    log = Log()
    inner = worker(log, Asks("before_model", log))()
    outer = Agent("outer", model=ScriptedModel(call("worker", input="act"), say("all done")), tools=[inner.as_tool()])
    result = await outer.run("go")
    for _ in range(2):
        [question] = result.questions
        assert question.id.endswith("/before_model:1")
        result = await outer.resume(through_bytes(result), answers={question.id: "yes"})
    assert (result.text, log.lines) == ("all done", ["before_model: yes", "act 1", "before_model: yes"])


@virtual
async def test_the_hooks_of_a_composite_and_of_its_child_ask_one_after_the_other() -> None:
    log = Log()
    first = Agent("first", model=ScriptedModel(say("one")), hooks=[Asks("before_run", log)])
    second = Agent("second", model=ScriptedModel(say("two")))
    both = Sequential("both", first, hooks=[Asks("before_run", log)]).then(second)
    result = await both.run("go")
    for id in ("before_run:1", "first/before_run:1"):
        assert [question.id for question in result.questions] == [id]
        result = await both.resume(through_bytes(result), answers={id: "yes"})
    assert (result.text, len(log.lines)) == ("two", 3)


@both_stores
@pytest.mark.parametrize("where", POINTS)
def test_a_question_of_a_hook_waits_in_a_session(kind: str, where: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(kind, tmp_path) as store:
            log = Log()
            agent = worker(log, Asks(where, log))
            await agent().run("go", session=await Session.create(store, "s"))
            while (checkpoint := (session := await Session.load(store, "s")).checkpoint) is not None:
                check_history(session.messages)
                answers = {question.id: "yes" for question in checkpoint.questions}
                await agent().resume(checkpoint, answers=answers, session=session)
            assert session.messages[-1].text == "done"
            assert [line for line in log.lines if line.startswith("act")] == ["act 1"]

    run_virtual(main)


# -- safe points -----------------------------------------------------------------------------------------------------


class Stops(Hooks):
    """Has a safe point in each hook, named for it."""

    async def before_run(self, run: AnyRun) -> None:
        await self.ctx.safe_point("before_run")

    async def before_model(self, run: AnyRun, request: ModelRequest) -> None:
        await self.ctx.safe_point("before_model")

    async def after_model(self, run: AnyRun, message: Message) -> None:
        await self.ctx.safe_point("after_model")

    async def before_tool(self, run: AnyRun, call: ToolCall) -> None:
        await self.ctx.safe_point("before_tool", save="here")

    async def after_tool(self, run: AnyRun, entry: LedgerEntry) -> None:
        await self.ctx.safe_point("after_tool")


@pytest.mark.parametrize(
    ("where", "calls", "acted"),
    [("before_run", 0, 0), ("before_model", 0, 0), ("after_model", 1, 0), ("before_tool", 1, 0), ("after_tool", 1, 1)],
)
@pytest.mark.parametrize("at", ["named", "any"])
@virtual
async def test_a_safe_point_in_a_hook_stops_the_run_there_and_resume_goes_on(
    where: str, calls: int, acted: int, at: str
) -> None:
    log = Log()

    class Only(Stops):
        pass

    for name in ("before_run", "before_model", "after_model", "before_tool", "after_tool"):
        if name != where:
            setattr(Only, name, getattr(Hooks, name))
    model = ScriptedModel([say("I act."), call("act", x=1)], say("done"))
    agent = Agent("a", model=model, tools=log.tools(), hooks=[Only()])
    async with agent.start("go") as run:
        receipt = run.cancel(
            SafePoint.named(where) if at == "named" else SafePoint.named(where) | SafePoint.AFTER_TOOLS
        )
        assert await receipt.wait() == "stopped"
    assert run.result.cancellation is not None
    assert run.result.cancellation.place == f"point:{where}"
    assert (model.calls, len(log.lines)) == (calls, acted)
    check_history(run.result.messages)
    assert [event for event in run.kept_events() if isinstance(event, HookFailed)] == []
    assert (await agent.resume(through_bytes(run.result))).text == "done"
    assert log.lines == ["act 1"]


@virtual
async def test_a_call_that_is_stopped_in_its_check_has_not_started_and_its_siblings_go_on() -> None:
    log, reached, go = Log(), asyncio.Event(), asyncio.Event()

    class Waits(Stops):
        async def before_tool(self, run: AnyRun, call: ToolCall) -> None:
            reached.set()
            await go.wait()
            await super().before_tool(run, call)

    async with worker(log, Waits())().start("go") as run:
        await reached.wait()
        [node] = [node for node in run.tree.walk() if node.kind == "tool_call"]
        node.cancel(SafePoint.named("before_tool"), reason="not this one")
        go.set()
    assert run.result.text == "done"
    assert [str(entry.state) for entry in run.result.ledger] == ["not_started"]
    assert log.lines == []


# -- where there is none ---------------------------------------------------------------------------------------------


@virtual
async def test_a_question_after_the_fact_is_refused_and_changes_nothing() -> None:
    class TooLate(Hooks):
        async def after_model(self, run: AnyRun, message: Message) -> None:
            await self.ctx.interrupt("was that right?")

        async def after_tool(self, run: AnyRun, entry: LedgerEntry) -> None:
            await self.ctx.interrupt("was that right?")

        async def after_run(self, run: AnyRun, text: str) -> None:
            await self.ctx.interrupt("was that right?")

    log = Log()
    async with worker(log, TooLate())().start("go") as run:
        await run.wait()
    assert (run.result.text, log.lines) == ("done", ["act 1"])
    failed = [event for event in run.kept_events() if isinstance(event, HookFailed)]
    assert [event.hook for event in failed] == ["after_model", "after_tool", "after_model", "after_run"]
    assert all("ask in a before_… hook" in str(event.error) for event in failed)


@virtual
async def test_hooks_that_hear_of_a_stop_and_code_outside_hooks_have_no_context() -> None:
    errors: list[str] = []

    class Hears(Hooks):
        def on_stopped(self, run: AnyRun, result: RunResult[Any]) -> None:  # Any: of every output type
            with pytest.raises(UsageError, match="there is no context here"):
                _ = self.ctx
            errors.append("on_stopped")

    hooks = Hears()
    with pytest.raises(UsageError, match=r"before_… and after_… hooks"):
        _ = hooks.ctx
    async with worker(Log(), hooks)().start("go") as run:
        run.cancel()
    assert errors == ["on_stopped"]


@virtual
async def test_a_tool_does_not_see_the_context_of_its_hooks() -> None:
    class Passes(Hooks):
        async def before_tool(self, run: AnyRun, call: ToolCall) -> Deny | None:
            return None if self.ctx.call_id == call.id else Deny("another call")

    hooks = Passes()

    @tool
    async def peek() -> str:
        """Peek."""
        with pytest.raises(UsageError):
            _ = hooks.ctx
        return "nothing"

    agent = Agent("a", model=ScriptedModel(call("peek"), say("done")), tools=[peek], hooks=[hooks])
    result = await agent.run("go")
    assert result.ledger[0].content == "nothing"


@virtual
async def test_there_is_nothing_to_tell_of_where_there_is_no_call() -> None:
    class Tells(Hooks):
        async def before_model(self, run: AnyRun, request: ModelRequest) -> None:
            self.ctx.tell("half done")

    async with worker(Log(), Tells())().start("go") as run:
        await run.wait()
    failed = [event for event in run.kept_events() if isinstance(event, HookFailed)]
    assert ["a hook is no call" in str(event.error) for event in failed] == [True, True]
    assert run.result.text == "done"

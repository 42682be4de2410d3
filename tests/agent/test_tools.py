"""How a tool call is stopped: by its own contract, in time, and with the truth about it in the ledger."""

from __future__ import annotations

import asyncio
import functools

import pytest

from safepoint import Agent, Ladder, Retry, Run, SafePoint, ToolContext, tool
from safepoint.agent.events import RungReached
from safepoint.errors import AskPerson, CutShort
from safepoint.history.rendering import MAX_ERROR_CHARS
from safepoint.sessions import MemoryStore, Session
from safepoint.testing import ScriptedModel, call, say
from safepoint.tools.base import BaseTool
from tests.agent.oracle import check_left_behind, results, states
from tests.agent.workshop import Gate
from tests.core.piece import for_ever
from tests.virtual import now, passes, rounds, virtual

NOW, FORCE = SafePoint.NOW, SafePoint.FORCE


def agent(*tools: BaseTool, ladder: Ladder | None = None) -> Agent[None]:
    """An agent whose model calls all tools once and then answers."""
    return Agent("a", model=ScriptedModel([call(each.name) for each in tools], say("done")), tools=tools, ladder=ladder)


def rungs(run: Run[None]) -> list[tuple[str, str, float]]:
    """Each rung with its name and the seconds since the run began."""
    began = run.kept_events()[0].time
    told = [event for event in run.kept_events() if isinstance(event, RungReached)]
    return [(event.name, event.rung.value, round(event.time - began, 6)) for event in told]


async def cancelled(run: Run[None], *, after: float = 1, at: SafePoint = NOW) -> float:
    """Enter the run, cancel it after so many seconds, wait for its end; how long the stop took."""
    async with run:
        await passes(after)
        began = now()
        await run.cancel(at, reason="lunch").wait()
        took = round(now() - began, 6)
    check_left_behind(run)
    return took


# -- async tools -------------------------------------------------------------------------------------------------------


@virtual
async def test_an_async_tool_is_cancelled_at_its_await_and_may_clean_up_within_its_grace() -> None:
    cleaned: list[float] = []

    @tool(grace=5)
    async def tidy() -> None:
        """Tidy up when cancelled."""
        try:
            await for_ever()
        finally:
            await passes(3)
            cleaned.append(now())

    run = agent(tidy).start("go")
    assert await cancelled(run) == 3.0
    assert cleaned
    assert states(run) == {"tidy": "cut"}
    assert rungs(run) == [("tidy", "cancel", 1.0)]
    (result,) = results(run.result.messages)
    assert result.content == 'This call was cut while running, outcome unknown. Reason: "lunch".'


@virtual
async def test_a_tool_that_catches_the_cancel_and_returns_a_value_within_its_grace_has_finished() -> None:
    @tool
    async def quick() -> str:
        """Return what there is."""
        try:
            await for_ever()
        except asyncio.CancelledError:
            await passes(0.5)
        return "half of it"

    run = agent(quick).start("go")
    assert await cancelled(run) == 0.5
    assert states(run) == {"quick": "finished"}
    assert results(run.result.messages)[0].content == "half of it"
    assert run.result.stop_reason == "cancelled"


@virtual
async def test_a_tool_that_raises_something_else_after_the_cancel_was_cut_with_that_error() -> None:
    @tool
    async def clumsy() -> None:
        """Break while cleaning up."""
        try:
            await for_ever()
        finally:
            raise OSError("disk full")

    run = agent(clumsy).start("go")
    await cancelled(run)
    (entry,) = run.result.ledger
    assert (entry.state, entry.error) == ("cut", "OSError: disk full")
    assert 'When cut, it raised: "OSError: disk full".' in results(run.result.messages)[0].content


@virtual
async def test_a_tool_that_raises_cancelled_error_when_nobody_asked_has_failed() -> None:
    @tool
    async def odd() -> None:
        """Cancel itself."""
        raise asyncio.CancelledError

    async with agent(odd).start("go") as run:
        pass
    assert run.result.stop_reason == "end_turn"
    assert states(run) == {"odd": "failed"}
    assert results(run.result.messages)[0].content == (
        "The tool raised CancelledError although it had not been asked to stop."
    )
    check_left_behind(run)


@virtual
async def test_a_tool_that_does_not_stop_is_abandoned_and_listed_and_its_late_result_goes_nowhere_else() -> None:
    @tool
    async def stubborn() -> str:
        """Swallow every cancellation for a minute."""
        end = now() + 60
        while now() < end:
            try:
                await passes(end - now())
            except asyncio.CancelledError:
                continue
        return "late"

    run = agent(stubborn).start("go")
    assert await cancelled(run) == 1.0
    assert rungs(run) == [("stubborn", "cancel", 1.0), ("stubborn", "abandon", 2.0)]
    (orphan,) = run.result.orphans
    assert (orphan.name, orphan.path, orphan.still_running) == ("stubborn", "a/stubborn:call_1_1", True)
    assert "stubborn" in orphan.stack()
    (entry,) = run.result.ledger
    assert (entry.state, entry.still_running) == ("cut", True)
    assert "It may still be running." in results(run.result.messages)[0].content
    messages, events = list(run.result.messages), run.kept_events()
    await passes(60)
    assert (orphan.still_running, orphan.result) == (False, "late")
    assert (list(run.result.messages), run.kept_events()) == (messages, events)
    assert run.result.ledger == (entry,)


@virtual
async def test_all_calls_climb_in_parallel() -> None:
    def slow(name: str, seconds: float) -> BaseTool:
        @tool(name=name, grace=9)
        async def body() -> None:
            """Take time to clean up."""
            try:
                await for_ever()
            finally:
                await passes(seconds)

        return body

    run = agent(slow("a", 3), slow("b", 5), slow("c", 4)).start("go")
    assert await cancelled(run) == 5.0


# -- finish ------------------------------------------------------------------------------------------------------------


@virtual
async def test_a_tool_that_must_finish_completes_within_its_grace() -> None:
    @tool(on_cancel="finish", grace=5)
    async def pay() -> str:
        """Pay."""
        await passes(4)
        return "paid"

    run = agent(pay).start("go")
    assert await cancelled(run) == 3.0
    assert states(run) == {"pay": "finished"}
    assert rungs(run) == [("pay", "finish", 1.0)]


@virtual
async def test_a_tool_that_does_not_finish_in_its_grace_is_cut() -> None:
    @tool(on_cancel="finish", grace=2)
    async def pay() -> str:
        """Pay."""
        await passes(60)
        return "paid"

    run = agent(pay).start("go")
    assert await cancelled(run) == 2.0
    assert states(run) == {"pay": "cut"}
    assert rungs(run) == [("pay", "finish", 1.0), ("pay", "cancel", 3.0)]


# -- shields -----------------------------------------------------------------------------------------------------------


@virtual
async def test_now_does_not_cut_a_critical_section_and_lands_on_the_first_wait_after_it() -> None:
    written: list[str] = []

    @tool
    async def write(ctx: ToolContext) -> str:
        """Write two things or none."""
        async with ctx.shield(5):
            written.append("one")
            await passes(3)
            assert not ctx.cancel_requested
            written.append("two")
        assert ctx.cancel_requested
        await passes(0)
        written.append("after")
        return "never"

    run = agent(write).start("go")
    assert await cancelled(run) == 2.0
    assert written == ["one", "two"]
    assert states(run) == {"write": "cut"}
    assert rungs(run) == [("write", "shielded", 1.0), ("write", "cancel", 3.0)]


@pytest.mark.parametrize("stored", [False, True])
@virtual
async def test_a_value_that_is_returned_from_a_critical_section_is_the_result(stored: bool) -> None:
    @tool
    async def write(ctx: ToolContext) -> str:
        """Return from inside."""
        async with ctx.shield(5):
            await passes(3)
            return "written"

    session = await Session.create(MemoryStore(), "s") if stored else None
    run = agent(write).start("go", session=session)
    assert await cancelled(run) == 2.0
    assert states(run) == {"write": "finished"}
    assert run.result.ledger[0].content == "written"
    assert run.result.stop_reason == "cancelled"
    if session is not None:
        assert [entry.content for entry in (await session.store.load("s")).runs[-1].ledger] == ["written"]


@virtual
async def test_a_critical_section_that_lasts_too_long_is_cut() -> None:
    @tool
    async def write(ctx: ToolContext) -> None:
        """Take too long."""
        async with ctx.shield(3):
            await for_ever()

    run = agent(write).start("go")
    assert await cancelled(run) == 2.0
    assert rungs(run) == [("write", "shielded", 1.0), ("write", "cancel", 3.0)]


# -- undo --------------------------------------------------------------------------------------------------------------


def undoable(undo_takes: float, *, fails: bool = False) -> tuple[BaseTool, list[str]]:
    log: list[str] = []

    async def undo(amount: int) -> None:
        log.append(f"undo {amount}")
        await passes(undo_takes)
        if fails:
            raise OSError("no way back")
        log.append("undone")

    @tool(undo=undo, grace=2)
    async def pay(amount: int) -> None:
        """Pay."""
        log.append(f"pay {amount}")
        try:
            await for_ever()
        finally:
            await passes(1)
            log.append("ended")

    return pay, log


def payer(pay: BaseTool) -> Agent[None]:
    return Agent("a", model=ScriptedModel(call("pay", amount=5), say("done")), tools=[pay])


@virtual
async def test_undo_starts_only_after_the_call_has_ended_and_then_the_call_was_compensated() -> None:
    pay, log = undoable(1.5)
    run = payer(pay).start("go")
    assert await cancelled(run) == 2.5
    assert log == ["pay 5", "ended", "undo 5", "undone"]
    assert states(run) == {"pay": "compensated"}
    assert results(run.result.messages)[0].content == 'This call was cut and undone. Reason: "lunch".'


@virtual
async def test_an_undo_that_fails_or_takes_too_long_is_told_and_the_call_stays_cut() -> None:
    pay, _ = undoable(1, fails=True)
    run = payer(pay).start("go")
    await cancelled(run)
    assert states(run) == {"pay": "cut"}
    assert run.result.ledger[0].error == "its undo failed: OSError: no way back"
    slow, log = undoable(60)
    run = payer(slow).start("go")
    assert await cancelled(run) == 3.0, "one second to end, two to undo"
    assert log == ["pay 5", "ended", "undo 5"]
    assert (run.result.ledger[0].state, run.result.ledger[0].error) == ("cut", "its undo was cut")


@virtual
async def test_now_does_not_cut_an_undo_but_force_does() -> None:
    pay, log = undoable(1.5)
    async with payer(pay).start("go") as run:
        await passes(1)
        run.cancel()
        await passes(1.5)
        assert log[-1] == "undo 5"
        run.cancel()
        await passes(0.1)
        assert not run.ended
        assert [holding.name for holding in run.why_not_stopped()] == ["undo of pay"]
        run.cancel(FORCE)
        await run.wait()
    assert states(run) == {"pay": "cut"}
    assert "undone" not in log
    check_left_behind(run)


@virtual
async def test_what_finished_or_failed_by_itself_is_not_undone() -> None:
    undone: list[str] = []

    async def undo() -> None:
        undone.append("undo")

    @tool(undo=undo)
    async def fine() -> str:
        """Finish."""
        return "fine"

    @tool(undo=undo)
    async def broken() -> str:
        """Fail."""
        raise OSError("broken")

    async with agent(fine, broken).start("go") as run:
        pass
    assert (undone, states(run)) == ([], {"fine": "finished", "broken": "failed"})


@virtual
async def test_one_call_that_is_cut_alone_is_undone_too() -> None:
    pay, log = undoable(1)
    async with payer(pay).start("go") as run:
        await passes(1)
        node = next(each for each in run.tree.walk() if each.kind == "tool_call")
        assert await node.cancel().wait() == "stopped"
        assert log[-1] == "undone", "its receipt returns when all of that is recorded"
    assert run.result.stop_reason == "end_turn"
    assert states(run) == {"pay": "compensated"}


# -- time-outs ---------------------------------------------------------------------------------------------------------


@virtual
async def test_a_call_has_its_own_deadline_and_the_run_goes_on() -> None:
    @tool(timeout=3)
    async def slow() -> None:
        """Take for ever."""
        await for_ever()

    began = now()
    async with agent(slow).start("go") as run:
        pass
    assert now() == began + 3
    assert run.result.stop_reason == "end_turn"
    assert states(run) == {"slow": "cut"}
    assert results(run.result.messages)[0].content == (
        'This call was cut while running, outcome unknown. Reason: "timed out after 3 s".'
    )
    check_left_behind(run)


@virtual
async def test_a_deadline_does_not_touch_a_call_that_is_faster() -> None:
    @tool(timeout=3)
    async def quick() -> str:
        """Take two seconds."""
        await passes(2)
        return "quick"

    async with agent(quick).start("go") as run:
        await run.wait()
        await passes(5)
    assert states(run) == {"quick": "finished"}


# -- force -------------------------------------------------------------------------------------------------------------


@virtual
async def test_force_waits_for_nothing() -> None:
    @tool(on_cancel="finish", grace=9)
    async def finish() -> None:
        """Insist on finishing."""
        await passes(5)

    @tool
    async def shielded(ctx: ToolContext) -> None:
        """Insist on its section."""
        async with ctx.shield(9):
            await passes(5)

    @tool
    async def stubborn() -> None:
        """Swallow every cancellation."""
        for _ in range(5):
            try:
                await passes(1)
            except asyncio.CancelledError:
                continue

    run = agent(finish, shielded, stubborn).start("go")
    assert await cancelled(run, at=FORCE) == 0.0
    assert states(run) == {"finish": "cut", "shielded": "cut", "stubborn": "cut"}
    assert [orphan.name for orphan in run.result.orphans] == ["stubborn"]
    await passes(10)


# -- the ladder --------------------------------------------------------------------------------------------------------


@virtual
async def test_a_ladder_may_be_given_to_a_tool_a_run_or_an_agent() -> None:
    def stubborn(ladder: Ladder | None) -> BaseTool:
        async def body() -> None:
            try:
                await for_ever()
            except asyncio.CancelledError:
                await passes(60)

        return tool(name="stubborn", ladder=ladder)(body) if ladder is not None else tool(name="stubborn")(body)

    assert await cancelled(agent(stubborn(Ladder(task=2))).start("go")) == 2.0
    assert await cancelled(agent(stubborn(None)).start("go", ladder=Ladder(task=3))) == 3.0
    assert await cancelled(agent(stubborn(None), ladder=Ladder(task=4)).start("go")) == 4.0
    assert await cancelled(agent(stubborn(Ladder(task=2)), ladder=Ladder(task=4)).start("go")) == 2.0
    await passes(60)


# -- answers and errors ------------------------------------------------------------------------------------------------


@virtual
async def test_the_result_of_a_final_tool_is_the_runs_answer() -> None:
    @tool(final=True)
    async def answer(text: str) -> str:
        """Answer."""
        return f"Answer: {text}"

    gate = Gate("gate", "pure", open=True)
    model = ScriptedModel([call("gate"), call("answer", text="42")])
    async with Agent("a", model=model, tools=[answer, gate.tool]).start("go") as run:
        pass
    assert (run.result.stop_reason, run.result.text) == ("end_turn", "Answer: 42")
    assert model.calls == 1
    assert [message.role for message in run.result.messages] == ["user", "assistant", "tool", "assistant"]
    check_left_behind(run)


@virtual
async def test_a_final_tool_that_fails_is_no_answer() -> None:
    @tool(final=True)
    async def answer() -> str:
        """Answer."""
        raise OSError("no answer")

    async with agent(answer).start("go") as run:
        pass
    assert run.result.text == "done"


@virtual
@pytest.mark.parametrize("at", [SafePoint.AFTER_TOOLS, SafePoint.AFTER_TOOL, SafePoint.ANY], ids=repr)
async def test_an_answer_that_is_complete_finishes_the_run_whatever_safe_point_was_asked_for(at: SafePoint) -> None:
    gate = asyncio.Event()

    @tool(final=True)
    async def answer() -> str:
        """Answer."""
        await gate.wait()
        return "42"

    async with agent(answer).start("go") as run:
        await passes(1)
        receipt = run.cancel(at)
        gate.set()
    assert (run.result.stop_reason, run.result.text) == ("end_turn", "42")
    assert receipt.outcome == "finished_first"
    check_left_behind(run)


ERRORS: dict[str, tuple[BaseException, str]] = {
    "an exception": (ValueError("no such city"), "ValueError: no such city"),
    "a wish to try again": (
        Retry("the date must be in the future"),
        "Please try again: the date must be in the future",
    ),
    "the end of the program": (SystemExit(3), "SystemExit: 3"),
}


@virtual
@pytest.mark.parametrize("name", ERRORS)
@pytest.mark.parametrize("run_in", ["async", "thread"])
async def test_what_a_tool_raises_goes_to_the_model_as_an_error_result(name: str, run_in: str) -> None:
    error, words = ERRORS[name]

    async def fails() -> None:
        raise error

    def fails_in_thread() -> None:
        raise error

    made: BaseTool = tool(name="fails")(fails) if run_in == "async" else tool(name="fails")(fails_in_thread)
    async with agent(made).start("go") as run:
        pass
    (result,) = results(run.result.messages)
    assert (result.content, result.state, result.is_error) == (words, "failed", True)
    assert run.result.text == "done"
    check_left_behind(run)


@virtual
async def test_running_is_recorded_before_the_tools_first_line() -> None:
    seen: list[str] = []

    @tool
    async def looks(ctx: ToolContext) -> None:
        """Look at the own events."""
        seen.extend(type(event).__name__ for event in ctx.run.kept_events())

    async with agent(looks).start("go") as run:
        pass
    assert seen[-1] == "ToolCallStarted"
    assert run.result.ledger[0].started_at is not None
    assert run.result.ledger[0].ended_at is not None


@virtual
async def test_a_tool_may_read_dependencies_and_its_run() -> None:
    @tool
    async def who(ctx: ToolContext[str]) -> str:
        """Say for whom."""
        return f"{ctx.deps} in {ctx.run.agent.name}, call {ctx.call_id}"

    agent: Agent[str] = Agent("a", model=ScriptedModel(call("who"), say("done")), tools=[who])
    result = await agent.run("go", deps="Kim")
    assert results(result.messages)[0].content == "Kim in a, call call_1_1"
    assert who.spec.parameters.get("properties", {}) == {}


@virtual
async def test_a_result_that_arrives_together_with_now_is_kept_and_the_run_still_stops() -> None:
    gate = Gate("gate")
    model = ScriptedModel(call("gate"), say("never"))
    async with Agent("a", model=model, tools=[gate.tool]).start("go") as run:
        await gate.started.wait()
        gate.gate.set()
        await rounds(1)
        run.cancel()
    assert states(run) == {"gate": "finished"}
    assert run.result.stop_reason == "cancelled"
    assert model.calls == 1
    check_left_behind(run)


@virtual
@pytest.mark.parametrize("kind", ["forgotten await", "decorator"])
async def test_a_call_that_nobody_awaited_is_no_result(kind: str) -> None:
    async def inner() -> str:
        return "never said"

    @functools.wraps(inner)
    def decorated() -> object:
        return inner()

    async def forgetful() -> object:
        return inner()

    made: BaseTool = tool(decorated, name="tried") if kind == "decorator" else tool(forgetful, name="tried")
    async with agent(made).start("go") as run:
        pass
    check_left_behind(run)
    assert states(run) == {"tried": "failed"}
    assert "inner() without awaiting it: write `return await …`" in str(run.result.ledger[0].error)


@virtual
async def test_a_wish_to_try_again_is_bounded_like_any_other_error() -> None:
    @tool
    async def wordy() -> str:
        """Ask for another try, at length."""
        raise Retry("\ud800" + "x" * 100_000)

    async with agent(wordy).start("go") as run:
        pass
    check_left_behind(run)
    error = str(run.result.ledger[0].error)
    assert len(error) <= MAX_ERROR_CHARS
    assert error.startswith("Please try again: \ufffdxxx")


@virtual
async def test_a_person_may_be_asked_from_inside_a_task_group() -> None:
    @tool
    async def careful(ctx: ToolContext) -> str:
        """Ask beside other work."""
        async with asyncio.TaskGroup() as group:
            asking = group.create_task(ctx.interrupt("really?"))
            group.create_task(asyncio.sleep(0))
        return str(asking.result())

    careful_agent = agent(careful)
    result = await careful_agent.run("go")
    assert (result.stop_reason, [question.payload for question in result.questions]) == ("interrupted", ["really?"])
    assert result.checkpoint is not None
    done = await careful_agent.resume(result.checkpoint, answers={result.questions[0].id: "yes"})
    assert (done.stop_reason, done.ledger[0].content) == ("end_turn", "yes")


@virtual
async def test_a_tool_may_stop_at_its_safe_point_inside_task_groups() -> None:
    async def part(ctx: ToolContext, number: int) -> None:
        await asyncio.sleep(0)
        async with asyncio.TaskGroup() as inner:
            inner.create_task(ctx.safe_point("page", save=number))

    @tool
    async def pages(ctx: ToolContext) -> str:
        """Do two things at once."""
        async with asyncio.TaskGroup() as group:
            for number in (1, 2):
                group.create_task(part(ctx, number))
        return "all"

    async with agent(pages).start("go") as run:
        run.cancel(SafePoint.named("page"))
    check_left_behind(run)
    (entry,) = run.result.ledger
    assert (entry.state, entry.point, entry.error) == ("stopped", "page", None)
    assert run.result.checkpoint is not None
    assert run.result.checkpoint.calls["call_1_1"].memory.saved in (1, 2)


@virtual
async def test_a_tool_may_ask_for_another_try_and_tell_what_it_had_from_inside_a_task_group() -> None:
    async def unhappy() -> None:
        raise Retry("shorter, please")

    async def half() -> None:
        try:
            await for_ever()
        except asyncio.CancelledError:
            raise CutShort("half of it") from None

    @tool
    async def picky() -> None:
        """Ask for another try."""
        async with asyncio.TaskGroup() as group:
            group.create_task(unhappy())

    @tool
    async def long() -> None:
        """Do a lot."""
        async with asyncio.TaskGroup() as group:
            group.create_task(half())

    run = agent(picky, long).start("go")
    await cancelled(run)
    assert states(run) == {"picky": "failed", "long": "cut"}
    assert run.result.ledger[0].error == "Please try again: shorter, please"
    assert (run.result.ledger[1].content, run.result.ledger[1].error) == ("half of it", None)


@virtual
async def test_an_error_beside_a_way_out_is_an_error() -> None:
    @tool
    async def torn(ctx: ToolContext) -> str:
        """Ask, and fail."""
        raise BaseExceptionGroup("both", [AskPerson("?"), ValueError("broken")])

    async with agent(torn).start("go") as run:
        pass
    assert states(run) == {"torn": "failed"}
    assert "ValueError: broken" in str(run.result.ledger[0].error)

"""Your code around a run: it hears of facts after they are recorded, and whatever it does cannot break the run."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from safepoint import Agent, Deny, Hooks, Reason, Replace, Run, RunResult, SafePoint, Source, tool
from safepoint._core.asks import Ask
from safepoint.agent.events import CancelRequested, HookFailed, ModelCallStarted, RunEnded
from safepoint.agent.hooks import AnyRun
from safepoint.agent.ledger import LedgerEntry
from safepoint.agent.model import ModelRequest
from safepoint.errors import UsageError
from safepoint.history.parts import Message, ToolCall
from safepoint.history.rendering import MAX_ERROR_CHARS
from safepoint.testing import ScriptedModel, call, say
from tests.agent.oracle import check_left_behind, results, states
from tests.agent.workshop import Gate
from tests.virtual import now, passes, rounds, virtual

NAMES = ("before_run", "before_model", "after_model", "before_tool", "after_tool", "after_run")


@tool(effect="pure")
async def double(x: int) -> int:
    """Double a number."""
    return 2 * x


class Diary(Hooks):
    """Writes down what it hears; `act` may do something more at one of the hooks."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def hear(self, name: str, run: AnyRun, subject: object = None) -> Any:  # Any: whatever a test lets a hook return
        self.heard.append(name)

    def before_run(self, run: AnyRun) -> object:
        return self.hear("before_run", run)

    def after_run(self, run: AnyRun, text: str) -> object:
        return self.hear("after_run", run, text)

    def before_model(self, run: AnyRun, request: ModelRequest) -> object:
        return self.hear("before_model", run, request)

    def after_model(self, run: AnyRun, message: Message) -> object:
        return self.hear("after_model", run, message)

    def before_tool(self, run: AnyRun, call: ToolCall) -> object:
        return self.hear("before_tool", run, call)

    def after_tool(self, run: AnyRun, entry: LedgerEntry) -> object:
        return self.hear("after_tool", run, entry)

    def on_cancel_requested(self, run: AnyRun, ask: Ask) -> object:
        return self.hear("on_cancel_requested", run, ask)

    def on_stopped(self, run: AnyRun, result: RunResult[Any]) -> object:  # Any: as in Hooks
        return self.hear("on_stopped", run, result)


class Acting(Diary):
    """Does something at one hook, the first time it is called."""

    def __init__(self, at: str) -> None:
        super().__init__()
        self.at = at

    def hear(self, name: str, run: AnyRun, subject: object = None) -> Any:  # Any: as above
        first = name not in self.heard
        super().hear(name, run, subject)
        return self.act(run, subject) if name == self.at and first else None

    def act(self, run: AnyRun, subject: object) -> Any:  # Any: as above
        raise NotImplementedError


def agent(*hooks: Hooks, model: ScriptedModel | None = None) -> Agent[None]:
    script = model or ScriptedModel(call("double", x=4), say("done"))
    return Agent("a", model=script, tools=[double], hooks=hooks)


async def ended(agent: Agent[None]) -> Run[None]:
    async with agent.start("go") as run:
        await run.wait()
    check_left_behind(run)
    return run


def failures(run: Run[None]) -> list[tuple[str, str]]:
    return [(event.hook, repr(event.error)) for event in run.kept_events() if isinstance(event, HookFailed)]


# -- hearing -----------------------------------------------------------------------------------------------------------


@virtual
async def test_a_run_calls_its_hooks_in_order() -> None:
    diary = Diary()
    await ended(agent(diary))
    assert diary.heard == [
        "before_run",
        "before_model",
        "after_model",
        "before_tool",
        "after_tool",
        "before_model",
        "after_model",
        "after_run",
    ]


@virtual
async def test_several_hooks_are_called_in_the_order_they_were_given() -> None:
    order: list[str] = []

    class Named(Hooks):
        def __init__(self, name: str) -> None:
            self._name = name

        async def before_run(self, run: AnyRun) -> None:
            await asyncio.sleep(0)
            order.append(self._name)

        async def before_tool(self, run: AnyRun, call: ToolCall) -> None:
            order.append(self._name)

    await ended(agent(Named("first"), Hooks(), Named("second")))
    assert order == ["first", "second"] * 2


@virtual
async def test_a_hook_is_handed_what_it_is_about() -> None:
    seen: dict[str, object] = {}

    class Looks(Diary):
        def hear(self, name: str, run: AnyRun, subject: object = None) -> None:
            seen.setdefault(name, subject)

    model = ScriptedModel(call("double", x=4), say("done"))
    await ended(agent(Looks(), model=model))
    assert seen["before_model"] == model.requests[0]
    assert isinstance(seen["after_model"], Message)
    assert isinstance(seen["before_tool"], ToolCall)
    assert (seen["before_tool"].name, seen["before_tool"].args) == ("double", {"x": 4})
    assert isinstance(seen["after_tool"], LedgerEntry)
    assert (seen["after_tool"].state, seen["after_tool"].content) == ("finished", "8")
    assert seen["after_run"] == "done"


@virtual
async def test_facts_are_recorded_before_hooks_hear_of_them() -> None:
    class Looks(Diary):
        def hear(self, name: str, run: AnyRun, subject: object = None) -> None:
            super().hear(name, run)
            told = [type(event) for event in run.kept_events()]
            if name == "on_cancel_requested":
                assert CancelRequested in told
            if name == "on_stopped":
                assert told[-1] is RunEnded
                assert run.ended
                assert run.result is subject

    gate, looks = Gate("gate"), Looks()
    async with Agent("a", model=ScriptedModel(call("gate")), tools=[gate.tool], hooks=[looks]).start("go") as run:
        await gate.started.wait()
        run.cancel(reason="lunch")
    assert looks.heard[-2:] == ["on_cancel_requested", "on_stopped"]
    assert failures(run) == []
    check_left_behind(run)


@virtual
async def test_a_run_that_was_not_stopped_has_no_on_stopped_and_a_stopped_one_no_after_run() -> None:
    finished, stopped = Diary(), Diary()
    await ended(agent(finished))
    async with agent(stopped).start("go") as run:
        run.cancel(SafePoint.AFTER_MODEL)
    assert "on_stopped" not in finished.heard
    assert "after_run" not in stopped.heard
    assert stopped.heard[-1] == "on_stopped"


# -- checks before a tool ----------------------------------------------------------------------------------------------


class Verdict(Hooks):
    def __init__(self, verdict: object) -> None:
        self._verdict = verdict

    def before_tool(self, run: AnyRun, call: ToolCall) -> object:
        return self._verdict


@virtual
async def test_a_denied_call_is_not_made_and_the_model_is_told_why() -> None:
    run = await ended(agent(Verdict(Deny("not on Sundays"))))
    (result,) = results(run.result.messages)
    assert result.content == "This call was not run, it was denied: not on Sundays"
    assert states(run) == {"double": "failed"}
    assert run.result.ledger[0].started_at is None
    assert run.result.stop_reason == "end_turn"


@virtual
async def test_a_denial_is_bounded_like_any_other_error() -> None:
    run = await ended(agent(Verdict(Deny("\ud800" + "x" * 100_000))))
    (entry,) = run.result.ledger
    assert len(str(entry.error)) <= MAX_ERROR_CHARS
    assert "denied: \ufffdxxx" in str(entry.error)


@virtual
async def test_a_hook_that_was_set_on_one_object_counts() -> None:
    hooks = Hooks()
    hooks.before_tool = lambda run, call: Deny("no")  # type: ignore[method-assign]  # the point
    run = await ended(agent(hooks))
    assert states(run) == {"double": "failed"}


@virtual
async def test_a_call_may_be_made_with_other_arguments() -> None:
    run = await ended(agent(Verdict(Replace(args={"x": 21}))))
    (result,) = results(run.result.messages)
    assert result.content == "42"
    asked = run.result.messages[1].tool_calls[0]
    assert asked.args == {"x": 4}, "the conversation keeps what the model wrote"


@virtual
async def test_other_arguments_are_checked_like_the_models_own() -> None:
    run = await ended(agent(Verdict(Replace(args={"y": 1}))))
    assert states(run) == {"double": "failed"}
    assert "The arguments do not fit, the tool was not run:" in results(run.result.messages)[0].content


@virtual
async def test_a_result_may_be_given_instead_of_making_the_call() -> None:
    run = await ended(agent(Verdict(Replace(result="from the cache"))))
    (result,) = results(run.result.messages)
    assert (result.content, result.state) == ("from the cache", "finished")


@virtual
async def test_the_first_denial_counts_whatever_others_say() -> None:
    run = await ended(
        agent(Verdict(None), Verdict(Replace(args={"x": 1})), Verdict(Deny("no")), Verdict(Deny("never")))
    )
    assert results(run.result.messages)[0].content.endswith("denied: no")


def test_a_replacement_is_of_arguments_or_of_the_result() -> None:
    with pytest.raises(ValueError, match="Replace takes args=… or result=…, exactly one of them"):
        Replace()
    with pytest.raises(ValueError, match="Replace takes args=… or result=…, exactly one of them"):
        Replace(args={}, result="x")


@virtual
async def test_a_check_that_broke_is_not_a_check_that_passed() -> None:
    class Broken(Hooks):
        def before_tool(self, run: AnyRun, call: ToolCall) -> object:
            raise LookupError("no policy")

    run = await ended(agent(Broken()))
    assert results(run.result.messages)[0].content == (
        "This call was not run, it was denied: the check Broken.before_tool failed"
    )
    assert failures(run) == [("before_tool", "LookupError('no policy')")]


@virtual
@pytest.mark.parametrize("verdict", [Deny, True, False, "deny", 0], ids=repr)
async def test_a_verdict_that_is_none_is_a_check_that_broke(verdict: object) -> None:
    run = await ended(agent(Verdict(verdict)))
    assert states(run) == {"double": "failed"}
    ((hook, error),) = failures(run)
    assert hook == "before_tool"
    assert f"before_tool returned {verdict!r}: return Deny(…), Replace(…), AskFirst(…) or None" in error


# -- hooks that break --------------------------------------------------------------------------------------------------


class Breaks(Acting):
    def act(self, run: AnyRun, subject: object) -> Any:  # Any: as in Acting
        raise ZeroDivisionError(self.at)


@virtual
@pytest.mark.parametrize("name", [name for name in NAMES if name != "before_tool"])
async def test_a_hook_that_raises_is_reported_and_changes_nothing(name: str) -> None:
    run = await ended(agent(Breaks(name)))
    assert (run.result.stop_reason, run.result.text) == ("end_turn", "done")
    assert states(run) == {"double": "finished"}
    assert failures(run) == [(name, f"ZeroDivisionError({name!r})")]


@virtual
@pytest.mark.parametrize("name", ["on_cancel_requested", "on_stopped"])
async def test_a_hook_that_hears_of_a_cancel_and_raises_changes_nothing(name: str) -> None:
    gate, hooks = Gate("gate"), Breaks(name)
    async with Agent("a", model=ScriptedModel(call("gate")), tools=[gate.tool], hooks=[hooks]).start("go") as run:
        await gate.started.wait()
        run.cancel()
    assert run.result.stop_reason == "cancelled"
    assert name in hooks.heard
    check_left_behind(run)


class CancelsItself(Acting):
    def act(self, run: AnyRun, subject: object) -> Any:  # Any: as in Acting
        raise asyncio.CancelledError


@virtual
@pytest.mark.parametrize("name", NAMES)
async def test_a_hook_that_raises_cancelled_error_by_itself_does_not_cancel_the_run(name: str) -> None:
    run = await ended(agent(CancelsItself(name)))
    assert (run.result.stop_reason, run.result.text) == ("end_turn", "done")
    assert failures(run) == [(name, "CancelledError()")]
    if name == "before_tool":
        assert run.result.ledger[0].started_at is None, "the check did not pass"


class Interrupts(Acting):
    def act(self, run: AnyRun, subject: object) -> Any:  # Any: as in Acting
        raise KeyboardInterrupt


@virtual
@pytest.mark.parametrize("name", NAMES)
async def test_a_keyboard_interrupt_in_a_hook_stops_the_run_and_reaches_the_caller(name: str) -> None:
    hooks = Interrupts(name)
    with pytest.raises(KeyboardInterrupt):
        await agent(hooks).run("go")
    assert hooks.heard.count(name) == 1


# -- hooks that hang ---------------------------------------------------------------------------------------------------


class Hangs(Acting):
    def __init__(self, at: str) -> None:
        super().__init__(at)
        self.hangs = asyncio.Event()

    async def act(self, run: AnyRun, subject: object) -> Any:  # Any: as in Acting
        self.hangs.set()
        await asyncio.get_running_loop().create_future()


CUT_IN: dict[str, tuple[str, int, dict[str, str]]] = {
    # the hook that hangs: how the run ends, how many model calls it made, what became of its call
    "before_run": ("cancelled", 0, {}),
    "before_model": ("cancelled", 0, {}),
    "after_model": ("cancelled", 1, {"double": "not_started"}),
    "before_tool": ("cancelled", 1, {"double": "not_started"}),
    "after_tool": ("cancelled", 1, {"double": "finished"}),
    "after_run": ("end_turn", 2, {"double": "finished"}),
}


@virtual
@pytest.mark.parametrize("name", CUT_IN)
async def test_now_cuts_a_hook_like_anything_else(name: str) -> None:
    model = ScriptedModel(call("double", x=4), say("done"))
    hooks = Hangs(name)
    async with agent(hooks, model=model).start("go") as run:
        await hooks.hangs.wait()
        began = now()
        receipt = run.cancel()
        await run.wait()
        assert now() == began, "at once"
    assert (run.result.stop_reason, model.calls, states(run)) == CUT_IN[name]
    assert receipt.outcome == ("stopped" if name != "after_run" else "finished_first")
    check_left_behind(run)


@virtual
@pytest.mark.parametrize("name", [name for name in CUT_IN if name != "after_run"])
async def test_a_safe_point_ask_waits_for_a_hook_that_is_not_done(name: str) -> None:
    hooks = Hangs(name)
    async with agent(hooks).start("go") as run:
        await hooks.hangs.wait()
        receipt = run.cancel(SafePoint.ANY, within=7)
        assert await receipt.wait() == "escalated"
    check_left_behind(run)


@virtual
async def test_a_hook_that_hears_of_an_ask_runs_beside_the_run_and_holds_nothing() -> None:
    hooks, gate = Hangs("on_cancel_requested"), Gate("gate")
    began = now()
    async with Agent("a", model=ScriptedModel(call("gate")), tools=[gate.tool], hooks=[hooks]).start("go") as run:
        await gate.started.wait()
        receipt = run.cancel()
        assert await receipt.wait() == "stopped"
        assert now() == began
    assert now() == began + 1, "the block waits for it, bounded"


@virtual
async def test_a_hook_that_hears_of_the_stop_is_waited_for_bounded_and_cut() -> None:
    hooks, gate = Hangs("on_stopped"), Gate("gate")
    began = now()
    async with Agent("a", model=ScriptedModel(call("gate")), tools=[gate.tool], hooks=[hooks]).start("go") as run:
        await gate.started.wait()
        assert await run.cancel().wait() == "stopped"
        assert now() == began
    assert now() == began + 1
    check_left_behind(run)


# -- hooks that cancel -------------------------------------------------------------------------------------------------


class Cancels(Acting):
    def act(self, run: AnyRun, subject: object) -> Any:  # Any: as in Acting
        run.cancel(reason=Reason("no more", Source.POLICY, by=self.at))


@virtual
@pytest.mark.parametrize("name", CUT_IN)
async def test_a_hook_may_cancel_its_run_and_then_nothing_new_starts(name: str) -> None:
    model = ScriptedModel(call("double", x=4), say("done"))
    run = await ended(agent(Cancels(name), model=model))
    assert (run.result.stop_reason, model.calls, states(run)) == CUT_IN[name]
    assert run.result.usage.model_calls == model.calls, "a call that never began costs nothing"
    started = [event for event in run.kept_events() if isinstance(event, ModelCallStarted)]
    assert len(started) == model.calls
    if name != "after_run":
        assert run.result.cancellation is not None
        assert run.result.cancellation.reason == Reason("no more", Source.POLICY, by=name)


@virtual
async def test_a_run_that_a_hook_started_and_left_is_ended_before_its_own_run_is_sealed() -> None:
    gate, left, tasks = Gate("gate"), list[Run[None]](), list[asyncio.Task[None]]()
    inner = Agent("inner", model=ScriptedModel(call("gate")), tools=[gate.tool])

    class Starts(Hooks):
        async def after_run(self, run: AnyRun, text: str) -> None:
            left.append(inner.start("go"))
            tasks.append(asyncio.create_task(enter(left[0])))
            await gate.started.wait()

    async def enter(run: Run[None]) -> None:
        async with run:
            pass

    run = await ended(agent(Starts()))
    assert run.result.stop_reason == "end_turn"
    assert left[0].result.stop_reason == "cancelled"
    assert left[0].result.cancellation is not None
    assert left[0].result.cancellation.reason == Reason("the run that started it has ended", Source.PARENT)
    await asyncio.wait(tasks)
    await rounds(1)


# -- declaring ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hooks", [[Diary], ["log"], [None]], ids=repr)
def test_hooks_are_instances(hooks: list[Any]) -> None:  # Any: the point
    with pytest.raises(ValueError, match="is no Hooks object: derive its class from Hooks") as caught:
        Agent("a", model=ScriptedModel(), hooks=hooks)
    assert str(caught.value).startswith(f"{hooks[0]!r} ")


@virtual
async def test_time_passes_only_for_what_waits() -> None:
    class Slow(Hooks):
        async def before_run(self, run: AnyRun) -> None:
            await passes(3)

    began = now()
    await ended(agent(Slow()))
    assert now() == began + 3


# -- a hook that would never be called ---------------------------------------------------------------------------------


def nothing(self: Hooks, run: AnyRun) -> None: ...


def everything(self: Hooks, *given: object, **more: object) -> None: ...


@pytest.mark.parametrize("name", ["before_tools", "after_models", "on_cancelled"])
def test_a_misspelt_hook_is_refused_where_it_is_written(name: str) -> None:
    with pytest.raises(UsageError, match=rf"^Guard\.{name} is no hook .* write one of before_run, after_run, "):
        type("Guard", (Hooks,), {name: nothing})


def test_a_hook_that_cannot_take_its_arguments_is_refused_where_it_is_written() -> None:
    with pytest.raises(UsageError, match=r"^Guard\.before_tool: .*; write before_tool\(self, run, call\)$"):
        type("Guard", (Hooks,), {"before_tool": nothing})


def test_methods_of_other_names_fields_and_hooks_that_take_more_are_fine() -> None:
    given: dict[str, object] = {"before_tool": everything, "note": nothing, "beforehand": nothing, "on_word": None}
    assert issubclass(type("Free", (Hooks,), given), Hooks)

"""The handle, asking a whole agent, tokens, and the program without a loop."""

from __future__ import annotations

import asyncio
import signal
import threading
from types import FrameType

import pytest

from safepoint import Agent, CancelToken, Reason, Run, SafePoint, Source, check_history, tool
from safepoint.errors import AskNotTaken, CtrlC, TokenCancelled
from safepoint.testing import RuleModel, ScriptedModel, call, say, stall
from tests.agent.oracle import check_left_behind, notices
from tests.agent.workshop import Gate
from tests.core.piece import for_ever
from tests.signals import default_signals
from tests.virtual import rounds, virtual

# -- the handle --------------------------------------------------------------------------------------------------------


@virtual
async def test_nothing_runs_before_the_block_is_entered() -> None:
    model = ScriptedModel(say("hi"))
    run = Agent("a", model=model).start("go")
    await rounds(20)
    assert model.calls == 0
    assert run.kept_events() == ()
    async with run:
        pass
    assert model.calls == 1


@virtual
async def test_every_run_has_an_id_of_its_own_and_many_may_run_at_once() -> None:
    agent = Agent("a", model=RuleModel({"one": say("1"), "two": say("2")}, otherwise=say("?")))
    async with agent.start("one") as first, agent.start("two") as second:
        pass
    assert first.id != second.id
    assert (first.result.text, second.result.text) == ("1", "2")
    assert (first.result.run_id, second.result.run_id) == (first.id, second.id)
    assert repr(first) == f"<Run {first.id} of 'a', ended>"
    assert repr(agent) == "<Agent 'a' on rules>"


@virtual
async def test_now_before_the_start_makes_no_model_call_and_keeps_the_input() -> None:
    for at in (SafePoint.NOW, SafePoint.FORCE):
        model = ScriptedModel(say("never"))
        run = Agent("a", model=model).start("my question")
        run.cancel(at, reason="changed my mind")
        async with run:
            pass
        assert model.calls == 0
        assert run.result.messages[0].text == "my question"
        assert (run.result.stop_reason, run.result.text) == ("cancelled", "")
        check_left_behind(run)


@virtual
async def test_the_conversation_goes_on_after_a_stop() -> None:
    model = ScriptedModel([say("Once upon"), stall()], say("And they lived happily."))
    agent = Agent("a", model=model)
    async with agent.start("tell me a story") as run:
        async for _ in run.text():
            run.cancel(reason='say "please"')
    result = await agent.run("go on", history=run.result.messages)
    sent = model.requests[1].messages
    check_history(sent)
    assert notices(sent) == [
        '[Safepoint: This run was stopped before it was done. Source: "user". Reason: "say \\"please\\"". '
        "The answer above is incomplete.]"
    ]
    assert result.text == "And they lived happily."


# -- asking a whole agent ----------------------------------------------------------------------------------------------


@virtual
async def test_every_live_run_of_an_agent_is_asked() -> None:
    gate = Gate("gate")
    agent = Agent("a", model=ScriptedModel(call("gate"), repeat=True), tools=[gate.tool])
    other = Agent("b", model=ScriptedModel(say("hi")))
    async with agent.start("go") as first, agent.start("go") as second, other.start("go") as free:
        await gate.started.wait()
        receipt = agent.cancel(reason="closing time")
        assert receipt.accepted
        assert await receipt.wait() == "stopped"
    assert [each.node for each in receipt.receipts] == [first.node, second.node]
    assert (first.result.stop_reason, second.result.stop_reason) == ("cancelled", "cancelled")
    assert free.result.stop_reason == "end_turn"


@virtual
async def test_an_agent_that_has_never_run_keeps_the_ask_for_its_first_run_only() -> None:
    model = ScriptedModel(say("hi"))
    agent = Agent("a", model=model)
    receipt = agent.cancel(reason="not yet")
    with pytest.raises(AskNotTaken):
        await receipt.wait()
    first = await agent.run("go")
    assert (first.stop_reason, model.calls) == ("cancelled", 0)
    assert await receipt.wait() == "stopped"
    assert receipt.contributed
    assert (await agent.run("go")).text == "hi"


@virtual
async def test_an_agent_that_is_idle_again_says_finished_first_and_touches_nothing() -> None:
    agent = Agent("a", model=ScriptedModel(say("one"), say("two")))
    await agent.run("go")
    receipt = agent.cancel()
    assert not receipt.accepted
    assert await receipt.wait() == "finished_first"
    assert (await agent.run("go")).text == "two"


@virtual
async def test_the_next_run_may_be_asked_for_on_purpose() -> None:
    agent = Agent("a", model=ScriptedModel(say("one"), say("two")))
    await agent.run("go")
    receipt = agent.cancel(next_run=True)
    assert (await agent.run("go")).stop_reason == "cancelled"
    assert await receipt.wait() == "stopped"
    assert (await agent.run("go")).text == "two"


@virtual
async def test_with_a_live_run_the_next_one_is_not_touched() -> None:
    gate = Gate("gate")
    agent = Agent("a", model=ScriptedModel(call("gate"), say("two")), tools=[gate.tool])
    async with agent.start("go"):
        await gate.started.wait()
        agent.cancel(next_run=True)
    assert (await agent.run("go")).text == "two"


@virtual
async def test_a_kept_ask_may_be_taken_back() -> None:
    agent = Agent("a", model=ScriptedModel(say("hi")))
    assert agent.cancel().withdraw()
    assert (await agent.run("go")).text == "hi"


@virtual
async def test_a_handle_that_was_not_entered_is_not_live() -> None:
    agent = Agent("a", model=ScriptedModel(say("one"), say("two")))
    await agent.run("go")
    run = agent.start("go")
    assert not agent.cancel().accepted
    async with run:
        pass
    assert run.result.text == "two"


# -- tokens ------------------------------------------------------------------------------------------------------------


@virtual
async def test_one_token_governs_many_runs_of_many_agents() -> None:
    gate, token = Gate("gate"), CancelToken()
    agents = [Agent(name, model=ScriptedModel(call("gate")), tools=[gate.tool]) for name in ("a", "b")]
    free = Agent("free", model=ScriptedModel(say("hi")))
    async with agents[0].start("go", token=token) as first, agents[1].start("go", token=token) as second:
        await gate.started.wait()
        await rounds(5)
        receipt = token.cancel(reason=Reason("over", Source.SHUTDOWN))
        assert await receipt.wait() == "stopped"
    assert len(receipt.receipts) == 2
    for run in (first, second):
        assert run.result.cancellation is not None
        assert run.result.cancellation.reason == Reason("over", Source.SHUTDOWN)
    assert (await free.run("go")).text == "hi"


@virtual
async def test_a_token_that_was_left_cancelled_refuses_new_runs_before_anything_happens() -> None:
    token, model = CancelToken(), ScriptedModel(say("never"))
    agent = Agent("a", model=model)
    token.cancel(reason="over")
    with pytest.raises(TokenCancelled, match=r"this token is cancelled \(over\): make a new CancelToken"):
        await agent.run("go", token=token)
    assert model.calls == 0
    receipt = agent.cancel()
    assert receipt.accepted, "a refused run is no run"
    assert receipt.withdraw()


@virtual
async def test_an_ask_that_reaches_a_sub_agent_twice_stays_the_users() -> None:
    gate, token = Gate("gate"), CancelToken()
    inner = Agent("inner", model=ScriptedModel(call("gate")), tools=[gate.tool])
    runs: list[Run[None]] = []

    @tool
    async def delegate() -> str:
        """Run another agent under the same token."""
        run = inner.start("go", token=token)
        runs.append(run)
        async with run:
            pass
        return "done"

    outer = Agent("outer", model=ScriptedModel(call("delegate")), tools=[delegate])
    async with outer.start("go", token=token):
        await gate.started.wait()
        token.cancel(reason="enough")
    assert runs[0].result.cancellation is not None
    assert runs[0].result.cancellation.reason.source == "user"


# -- from anywhere -----------------------------------------------------------------------------------------------------


@virtual
async def test_a_run_may_be_cancelled_from_another_thread() -> None:
    gate, outcomes = Gate("gate"), list[str]()
    async with Agent("a", model=ScriptedModel(call("gate")), tools=[gate.tool]).start("go") as run:
        await gate.started.wait()
        thread = threading.Thread(target=lambda: outcomes.append(run.cancel().wait_sync(timeout=30)))
        thread.start()
        await run.wait()
        await asyncio.to_thread(thread.join)
    assert outcomes == ["stopped"]
    check_left_behind(run)


def test_a_run_may_be_cancelled_from_a_signal_handler() -> None:
    async def main() -> Run[None]:
        gate = Gate("gate")
        async with Agent("a", model=ScriptedModel(call("gate")), tools=[gate.tool]).start("go") as run:
            await gate.started.wait()

            def handle(_number: int, _frame: FrameType | None) -> None:
                run.cancel(reason="signal")

            before = signal.signal(signal.SIGUSR1, handle)
            signal.raise_signal(signal.SIGUSR1)
            await run.wait()
            signal.signal(signal.SIGUSR1, before)
        return run

    run = asyncio.run(main())
    assert run.result.cancellation is not None
    assert run.result.cancellation.reason.text == "signal"


# -- without a loop ----------------------------------------------------------------------------------------------------


def test_run_sync_is_run_without_a_loop() -> None:
    agent = Agent("a", model=ScriptedModel(say("one"), say("two")))
    assert agent.run_sync("go").text == "one"
    assert agent.run_sync("go").text == "two"


def pressing(times: int, *, grace: float | None = None) -> tuple[Agent[None], list[str]]:
    """An agent whose tool presses Ctrl-C so often, and what the tool went through."""
    log: list[str] = []

    async def press() -> None:
        for _ in range(times):
            signal.raise_signal(signal.SIGINT)
        try:
            await for_ever()
        except asyncio.CancelledError:
            log.append("cancelled")
            if times > 1:
                await for_ever()
            raise

    made = tool(name="press", grace=grace)(press) if grace is not None else tool(name="press")(press)
    return Agent("a", model=ScriptedModel(call("press"), say("never")), tools=[made]), log


def test_ctrl_c_in_run_sync_stops_the_run_and_raises_with_its_result() -> None:
    agent, log = pressing(1)
    with default_signals():
        with pytest.raises(CtrlC, match="stopped by Ctrl-C") as caught:
            agent.run_sync("go")
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, "the handler is ours only while we wait"
    assert isinstance(caught.value, KeyboardInterrupt)
    result = caught.value.result
    assert result.stop_reason == "cancelled"
    assert result.cancellation.reason == Reason("Ctrl-C", Source.CALLER)
    assert [entry.state for entry in result.ledger] == ["cut"]
    assert log == ["cancelled"]
    check_history(result.messages)


def test_a_second_ctrl_c_is_force() -> None:
    agent, log = pressing(2, grace=9)
    with default_signals(), pytest.raises(CtrlC) as caught:
        agent.run_sync("go")
    assert caught.value.result.cancellation.level.name == "FORCE"
    assert log == ["cancelled"]
    assert caught.value.result.orphans == (), "the last cancel has ended it"


def test_somebody_elses_plans_for_ctrl_c_are_respected() -> None:
    pressed: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: pressed.append(number))
    try:

        @tool
        async def press() -> str:
            """Press Ctrl-C."""
            signal.raise_signal(signal.SIGINT)
            return "pressed"

        result = Agent("a", model=ScriptedModel(call("press"), say("done")), tools=[press]).run_sync("go")
    finally:
        signal.signal(signal.SIGINT, before)
    assert result.text == "done"
    assert pressed == [signal.SIGINT]


def test_run_sync_in_another_thread_leaves_signals_alone() -> None:
    texts: list[str] = []
    agent = Agent("a", model=ScriptedModel(say("hi")))
    thread = threading.Thread(target=lambda: texts.append(agent.run_sync("go").text))
    thread.start()
    thread.join()
    assert texts == ["hi"]

"""Every adapter, by the same rules: each framework in an environment of its own, `make test-adapters`."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
import warnings
from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from types import ModuleType
from typing import Any

import pytest

from bench.compare.contract import Ability, Call, Say
from safepoint import Budget, Reason, SafePoint, Text, TurnLoop
from safepoint.adapters import ForeignAgent, tool_context
from safepoint.agent.result import RunResult, StopReason
from safepoint.agent.steering import SteerReceipt
from safepoint.errors import UsageError
from safepoint.history import check_history
from safepoint.testing import check_cancellable
from tests.adapters import kit
from tests.adapters.kit import FRAMEWORK, Flow, Hang, Talk, Tools, calls

pytestmark = [
    pytest.mark.adapters,
    pytest.mark.skipif(not FRAMEWORK, reason="`make test-adapters` says which framework"),
    pytest.mark.filterwarnings("default"),
]

PROMPT = 1.0
_KNOWN = "coroutine 'ahandle_event' was never awaited"
DONE = [Say("done")]

Test = Callable[..., Coroutine[Any, Any, None]]


def on_a_loop(test: Test) -> Callable[..., None]:
    """Run the test on a loop of its own, and see that nothing is left on it."""

    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        async def body() -> None:
            await test(*args, **kwargs)
            for _ in range(5):
                await asyncio.sleep(0)
            left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            assert not left, f"still running: {left}"

        asyncio.run(body())

    return run


def judge(result: RunResult[Any], *, stopped: bool = True) -> None:
    check_history(result.messages)
    assert result.stop_reason is (StopReason.CANCELLED if stopped else StopReason.END_TURN), result.error


async def reach(waits: Awaitable[object]) -> None:
    await asyncio.wait_for(waits, 5)


def states(result: RunResult[Any]) -> dict[str, str]:
    return {entry.name: str(entry.state) for entry in result.ledger}


async def goes_on(agent: Any, script: Talk, result: RunResult[Any]) -> RunResult[Any]:
    """The framework's own next request, to a provider that refuses unanswered calls."""
    again: RunResult[Any] = await agent.run("and now?", history=result.messages)
    judge(again, stopped=False)
    assert not script.faults
    assert "and now?" in kit.said(script.requests[-1])
    return again


# -- whole runs --------------------------------------------------------------------------------------------------------


@on_a_loop
async def test_a_run_to_its_end_has_everything_in_the_record() -> None:
    tools = Tools()
    script = Talk([Say("let me see "), *calls("quick")], DONE)
    agent = kit.agent(script, tools.quick())
    result = await agent.run("go")
    judge(result, stopped=False)
    assert (result.text, states(result)) == ("done", {"quick": "finished"})
    assert [message.role for message in result.messages] == ["user", "assistant", "tool", "assistant"]
    assert result.messages[1].text.strip() == "let me see" or FRAMEWORK in ("google_adk", "openai_agents")
    assert result.ledger[0].content == "quick result"
    assert result.usage.model_calls == 2
    await goes_on(agent, script, result)
    assert "quick result" in kit.said(script.requests[-1])


@on_a_loop
async def test_words_are_streamed_as_they_come() -> None:
    agent = kit.agent(Talk([Say("one "), Say("two")]))
    async with agent.start("go") as run:
        words = [piece async for piece in run.text()]
    assert "".join(words) == "one two"


# -- stopped NOW -------------------------------------------------------------------------------------------------------


@on_a_loop
@pytest.mark.parametrize("kind", [Hang, Flow])
async def test_a_stream_is_stopped_and_its_words_are_kept(kind: type[Any]) -> None:
    script = Talk([Say("one moment "), kind()], DONE)
    agent = kit.agent(script)
    async with agent.start("go") as run:
        await reach(script.ready.wait())
        begun = time.perf_counter()
        run.cancel(reason="enough")
    assert time.perf_counter() - begun < PROMPT
    judge(run.result)
    assert "one moment" in run.result.text
    assert any(isinstance(part, Text) and part.incomplete for part in run.result.messages[-1].parts)
    assert run.result.usage.estimated
    assert not run.result.orphans
    assert script.closed == script.calls == 1
    await goes_on(agent, script, run.result)
    assert "one moment" in kit.said(script.requests[-1])


@on_a_loop
async def test_a_stopped_stream_is_resumed_with_another_model_call() -> None:
    script = Talk([Say("one moment "), Hang()], DONE)
    agent = kit.agent(script)
    async with agent.start("go") as run:
        await reach(script.ready.wait())
        run.cancel()
    assert run.result.checkpoint is not None
    again = await agent.resume(run.result.checkpoint)
    judge(again, stopped=False)
    assert again.text == "done"
    assert not script.faults


@on_a_loop
async def test_an_async_tool_is_cut_and_its_finished_sibling_is_not_run_again() -> None:
    tools = Tools()
    script = Talk(calls("quick", "slow"), DONE)
    agent = kit.agent(script, tools.quick(), tools.slow(), effects={"slow": "pure", "quick": "irreversible"})
    async with agent.start("go") as run:
        await reach(_until(lambda: [str(entry.state) for entry in run.ledger] == ["finished", "running"]))
        begun = time.perf_counter()
        run.cancel(reason="enough")
    assert time.perf_counter() - begun < PROMPT
    judge(run.result)
    assert states(run.result) == {"quick": "finished", "slow": "cut"}
    await goes_on(agent, script, run.result)
    assert "quick result" in kit.said(script.requests[-1])
    assert "cut while running" in kit.said(script.requests[-1])
    assert tools.begun.count("quick") == 1
    tools.gate.set()
    checkpoint = run.result.checkpoint
    assert checkpoint is not None
    again = await agent.resume(checkpoint)
    judge(again, stopped=False)
    assert states(again) == {"quick": "finished", "slow": "finished"}
    assert (tools.begun.count("quick"), tools.begun.count("slow")) == (1, 2)
    assert "slow result" in kit.said(script.requests[-1])
    assert not script.faults


@on_a_loop
async def test_a_deaf_thread_does_not_hold_the_stop_and_is_listed() -> None:
    release, seen = threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def deaf() -> str:
        """Listen to nothing."""
        loop.call_soon_threadsafe(seen.set)
        release.wait(10)
        return "deaf result"

    script = Talk(calls("deaf"), DONE)
    agent = kit.agent(script, Ability("deaf", deaf))
    async with agent.start("go") as run:
        await reach(seen.wait())
        begun = time.perf_counter()
        run.cancel()
    assert time.perf_counter() - begun < PROMPT
    judge(run.result)
    assert [orphan.name for orphan in run.result.orphans] == ["deaf"]
    assert run.result.orphans[0].still_running
    assert run.result.ledger[0].still_running
    threads = [each for each in threading.enumerate() if each.name.startswith("safepoint")]
    assert threads
    assert all(each.daemon for each in threads)
    release.set()
    await reach(_until(lambda: not run.result.orphans[0].still_running))
    await goes_on(agent, script, run.result)


@on_a_loop
async def test_a_thread_is_told_and_can_stop_itself() -> None:
    seen = asyncio.Event()
    loop = asyncio.get_running_loop()

    def listening() -> str:
        """Look whether it must stop."""
        loop.call_soon_threadsafe(seen.set)
        while not tool_context().cancel_requested:
            time.sleep(0)
        tool_context().check()
        return "never"

    agent = kit.agent(Talk(calls("listening"), DONE), Ability("listening", listening))
    async with agent.start("go") as run:
        await reach(seen.wait())
        run.cancel()
    judge(run.result)
    assert (states(run.result), run.result.orphans) == ({"listening": "cut"}, ())


@on_a_loop
async def test_a_sub_agent_is_stopped_with_its_stream() -> None:
    inner = Talk([Say("thinking "), Hang()], DONE)
    child = kit.subject(inner, name="inner")
    script = Talk([Call("call_0", "inner", {"input": "go"})], DONE)
    agent = kit.agent(script, children=[child])
    async with agent.start("go") as run:
        await reach(inner.ready.wait())
        begun = time.perf_counter()
        run.cancel()
    assert time.perf_counter() - begun < PROMPT
    judge(run.result)
    for _ in range(5):
        await asyncio.sleep(0)
    assert inner.closed == inner.calls == 1
    assert states(run.result) == {"inner": "cut"}
    await goes_on(agent, script, run.result)


@on_a_loop
async def test_ten_parallel_tools_are_cut_at_once() -> None:
    tools = Tools()
    script = Talk(calls(*[f"slow{number}" for number in range(10)]), DONE)
    agent = kit.agent(script, *[tools.slow(f"slow{number}") for number in range(10)])
    async with agent.start("go") as run:
        await reach(_until(lambda: len(tools.begun) == 10))
        begun = time.perf_counter()
        run.cancel()
    assert time.perf_counter() - begun < PROMPT
    judge(run.result)
    assert set(states(run.result).values()) == {"cut"}
    await goes_on(agent, script, run.result)


async def _until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110  # threads and frameworks tell nobody
        await asyncio.sleep(0)


# -- safe points -------------------------------------------------------------------------------------------------------


@on_a_loop
async def test_after_the_model_no_call_starts_and_the_resumed_run_makes_it() -> None:
    tools = Tools()
    script = Talk([Say("hm "), *calls("quick")], DONE)
    agent = kit.agent(script, tools.quick())
    async with agent.start("go") as run:
        run.cancel(SafePoint.AFTER_MODEL)
    judge(run.result)
    assert (states(run.result), tools.begun) == ({"quick": "not_started"}, [])
    await _resumes(agent, script, run.result, tools)
    assert tools.begun == ["quick"]


async def _resumes(agent: Any, script: Talk, result: RunResult[Any], tools: Tools) -> None:
    tools.gate.set()
    assert result.checkpoint is not None
    again = await agent.resume(result.checkpoint)
    judge(again, stopped=False)
    assert not script.faults


@on_a_loop
async def test_after_the_tools_their_results_are_kept() -> None:
    tools = Tools()
    script = Talk(calls("quick", "slow"), DONE)
    agent = kit.agent(script, tools.quick(), tools.slow())
    async with agent.start("go") as run:
        await reach(tools.seen.wait())
        run.cancel(SafePoint.AFTER_TOOLS)
        for _ in range(20):
            await asyncio.sleep(0)
        assert not run.ended
        tools.gate.set()
    judge(run.result)
    assert set(states(run.result).values()) == {"finished"}
    assert script.calls == 1
    await _resumes(agent, script, run.result, tools)
    assert sorted(tools.begun) == ["quick", "slow"]


@on_a_loop
async def test_after_a_tool_the_others_that_run_may_finish() -> None:
    tools = Tools()
    script = Talk(calls("slow"), calls("quick", turn=1), DONE)
    agent = kit.agent(script, tools.quick(), tools.slow())
    async with agent.start("go") as run:
        await reach(tools.seen.wait())
        run.cancel(SafePoint.AFTER_TOOL)
        tools.gate.set()
    judge(run.result)
    assert states(run.result) == {"slow": "finished"}
    await _resumes(agent, script, run.result, tools)


@on_a_loop
async def test_before_an_effect_what_does_no_harm_still_runs() -> None:
    tools = Tools()
    script = Talk(calls("look"), calls("pay", turn=1), DONE)
    agent = kit.agent(script, tools.quick("look"), tools.quick("pay"), effects={"look": "pure", "pay": "irreversible"})
    async with agent.start("go") as run:
        run.cancel(SafePoint.BEFORE_EFFECT)
    judge(run.result)
    assert states(run.result) == {"look": "finished", "pay": "not_started"}
    assert tools.begun == ["look"]
    await _resumes(agent, script, run.result, tools)


@on_a_loop
async def test_a_tool_stops_at_a_point_that_it_names_and_continues_there() -> None:
    pages: list[int] = []
    seen, gate = asyncio.Event(), asyncio.Event()

    async def read() -> str:
        """Read pages."""
        ctx = tool_context()
        for page in range(ctx.saved or 0, 3):
            pages.append(page)
            seen.set()
            await gate.wait()
            await ctx.safe_point("page", save=page + 1)
        return "read"

    script = Talk(calls("read"), DONE)
    agent = kit.agent(script, Ability("read", read))
    async with agent.start("go") as run:
        await reach(seen.wait())
        run.cancel(SafePoint.named("page"))
        gate.set()
    judge(run.result)
    assert (states(run.result), pages) == ({"read": "stopped"}, [0])
    await _resumes(agent, script, run.result, Tools())
    assert pages == [0, 1, 2]


# -- one part, and what the framework does not know --------------------------------------------------------------------


@on_a_loop
async def test_one_call_is_stopped_alone_and_the_framework_goes_on() -> None:
    tools = Tools()
    script = Talk(calls("slow"), DONE)
    agent = kit.agent(script, tools.slow())
    async with agent.start("go") as run:
        await reach(tools.seen.wait())
        [call] = [node for node in run.tree.walk() if node.kind == "tool_call"]
        call.cancel(reason="not that one")
    judge(run.result, stopped=False)
    assert states(run.result) == {"slow": "cut"}
    assert "not that one" in kit.said(script.requests[-1])
    assert not script.faults


@on_a_loop
async def test_a_time_out_cuts_the_call_and_an_undo_takes_it_back() -> None:
    tools, undone = Tools(), list[str]()

    async def refund() -> None:
        undone.append("refund")

    script = Talk(calls("slow"), DONE)
    agent = kit.agent(script, tools.slow(), tools={"slow": {"timeout": 0.05, "undo": refund}})
    result = await agent.run("go")
    judge(result, stopped=False)
    assert (states(result), undone) == ({"slow": "compensated"}, ["refund"])
    assert "timed out" in kit.said(script.requests[-1])


@on_a_loop
async def test_a_tool_that_asks_a_person_interrupts_the_run_and_gets_the_answer() -> None:
    asked: list[object] = []

    async def pay() -> str:
        """Pay, if a person agrees."""
        asked.append(await tool_context().interrupt("pay 10?"))
        return f"paid: {asked[-1]}"

    script = Talk(calls("pay"), DONE)
    agent = kit.agent(script, Ability("pay", pay))
    async with agent.start("go") as run:
        pass
    assert run.result.stop_reason is StopReason.INTERRUPTED, run.result.error
    check_history(run.result.messages)
    [question] = run.result.questions
    assert question.payload == "pay 10?"
    checkpoint = run.result.checkpoint
    assert checkpoint is not None
    again = await agent.resume(checkpoint, answers={question.id: "yes"})
    judge(again, stopped=False)
    assert asked == ["yes"]
    assert "paid: yes" in kit.said(script.requests[-1])


@on_a_loop
async def test_a_tool_that_fails_is_answered_the_framework_s_own_way() -> None:
    async def broken() -> str:
        """Fail."""
        raise ValueError("no such page")

    script = Talk(calls("broken"), DONE)
    agent = kit.agent(script, Ability("broken", broken))
    async with agent.start("go") as run:
        pass
    check_history(run.result.messages)
    assert states(run.result) == {"broken": "failed"}
    assert "no such page" in str(run.result.ledger[0].error)
    assert run.result.stop_reason in (StopReason.END_TURN, StopReason.ERROR)
    assert not script.faults


@on_a_loop
async def test_a_budget_of_steps_ends_the_run() -> None:
    script = Talk(*[calls("quick", turn=turn) for turn in range(9)])
    agent = kit.agent(script, Tools().quick(), budget=Budget(steps=2))
    result = await agent.run("go")
    check_history(result.messages)
    assert (result.stop_reason, script.calls) == (StopReason.MAX_STEPS, 2)


# -- asks that cannot be kept, promises --------------------------------------------------------------------------------


@on_a_loop
async def test_a_message_joins_the_run_or_is_refused() -> None:
    tools = Tools()
    script = Talk(calls("slow"), DONE)
    agent = kit.agent(script, tools.slow())
    receipt: SteerReceipt | None = None
    async with agent.start("go") as run:
        await reach(tools.seen.wait())
        if agent.promises.steering:
            receipt = run.steer("be brief")
        else:
            with pytest.raises(UsageError, match="takes no message in the middle"):
                run.steer("be brief")
        tools.gate.set()
    judge(run.result, stopped=False)
    if receipt is not None:
        assert receipt.outcome == "joined"
        assert "be brief" in kit.said(script.requests[-1])
        assert "be brief" in "".join(message.text for message in run.result.messages)


@on_a_loop
async def test_what_is_asked_of_the_framework_s_own_model_is_refused() -> None:
    agent = kit.agent(Talk(DONE))
    with pytest.raises(UsageError, match="chooses its model"):
        agent.start("go", model="local")
    with pytest.raises(TypeError, match="no option 'effect'"):
        kit.agent(Talk(DONE), effect={})


# -- loops of turns, servers, the caller -------------------------------------------------------------------------------


@on_a_loop
async def test_a_turn_loop_preempts_it() -> None:
    tools = Tools()
    script = Talk(calls("slow"), DONE)
    agent = kit.agent(script, tools.slow())
    async with TurnLoop(agent) as turns:
        turns.push("first")
        await reach(tools.seen.wait())
        turns.push("urgent", preempt=SafePoint.ANY, within=0.05)
        await reach(_until(lambda: script.calls == 2))
        turns.stop()
    exit = await turns.wait()
    assert exit.reason == "clean"
    assert "urgent" in kit.said(script.requests[1])
    assert not script.faults


@on_a_loop
async def test_a_server_cancels_it_and_its_session_goes_on() -> None:
    from safepoint.server.config import ServerConfig
    from safepoint.serving.apps import Catalog
    from safepoint.serving.cancel_requests import StopRequest
    from safepoint.serving.cancel_service import cancel_all
    from safepoint.serving.ids import SessionKey
    from safepoint.serving.managed_run import ManagedRun
    from safepoint.serving.principal import LOCAL
    from safepoint.serving.run_manager import RunManager
    from safepoint.serving.submission import Submission
    from safepoint.storage.memory import MemoryStorage

    tools = Tools()
    script = Talk([Say("hm "), *calls("slow")], DONE)
    agent = kit.agent(script, tools.slow())
    key = SessionKey("worker", "ann", "s")
    manager = RunManager(Catalog.of({"worker": agent}), MemoryStorage(), ServerConfig())
    await manager.create(key, None)
    managed = await manager.submit(LOCAL, key, Submission((Text("go"),), on_disconnect="detach"))
    assert isinstance(managed, ManagedRun)
    await reach(tools.seen.wait())
    [answer] = await cancel_all(manager, [managed], StopRequest(SafePoint.NOW, wait_seconds=5), Reason("enough"))
    assert answer.outcome == "stopped"
    again = await manager.submit(LOCAL, key, Submission((Text("and now?"),), on_disconnect="detach"))
    assert isinstance(again, ManagedRun)
    await reach(_until(lambda: not again.live))
    assert not script.faults
    assert "and now?" in kit.said(script.requests[-1])
    await manager.shut_down()


def test_what_is_served_and_chatted_with_by_name_is_adapted_by_its_type(monkeypatch: pytest.MonkeyPatch) -> None:
    from safepoint.serving.apps import Catalog

    module = ModuleType("shop")
    module.till = kit.native(kit.subject(Talk(DONE)))  # type: ignore[attr-defined]  # a module of the user's
    monkeypatch.setitem(sys.modules, "shop", module)
    app = Catalog.of_object("shop:till").get("till")
    assert app is not None
    assert isinstance(app.agent, ForeignAgent)
    assert asyncio.run(app.agent.run("go")).text == "done"
    with pytest.raises(ValueError, match="shop has no agent named 'other'"):
        Catalog.of_object("shop:other")


@on_a_loop
async def test_the_callers_own_cancellation_stops_it_and_is_not_swallowed() -> None:
    tools = Tools()
    agent = kit.agent(Talk(calls("slow"), DONE), tools.slow())
    task = asyncio.create_task(agent.run("go"))
    await reach(tools.seen.wait())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert tools.ended == []


@pytest.mark.timeout(300)
def test_it_can_be_cancelled_at_every_await() -> None:
    async def scenario() -> None:
        tools = Tools()
        tools.gate.set()
        agent = kit.agent(Talk([Say("hm "), *calls("quick", "slow")], DONE), tools.quick(), tools.slow())
        async with agent.start("go") as run:
            pass
        check_history(run.result.messages)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report = check_cancellable(scenario)
        gc.collect()
    # LangGraph cancels tasks of LangChain's before their first step, with or without Safepoint, and Python remarks it.
    failures = [failure for failure in report.failures if not all(_KNOWN in problem for problem in failure.problems)]
    assert failures == []
    assert report.injections > 20

"""A turn that fails loses nothing: it is tried again, kept for a decision, or ends the loop, as the user says."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from safepoint import Agent, Checkpoint, RunFailed, SafePoint, TurnLoop, tool
from safepoint.errors import ModelError, SafepointError, SessionBusy
from safepoint.sessions import MemoryStore, Session
from safepoint.testing import ScriptedModel, call, fail, pass_time, say
from safepoint.turns import FailedTurn, MemoryTurnStore, Plan, PlanContext, Retry, SqliteTurnStore
from tests.turns.parts import TroubledStore, one_each, stored_places, until
from tests.virtual import now, virtual

KEY: dict[str, Any] = {"checkpoint_id": "loop"}


def broken(*, after: int = 0, times: int = 1) -> Agent:
    """Fails so many times after so many answers; then it answers."""
    replies: list[Any] = [*[say("ok")] * after, *[fail(ModelError("the provider is down"))] * times, say("better")]
    return Agent("desk", model=ScriptedModel(*replies, repeat=True))


def model(agent: Agent) -> ScriptedModel:
    found = agent.models[0]
    assert isinstance(found, ScriptedModel)
    return found


def said(agent: Agent, request: int = -1) -> list[str]:
    return [message.text for message in model(agent).requests[request].messages if message.role == "user"]


@virtual
async def test_a_turn_that_fails_stops_the_loop_and_its_items_are_in_failed() -> None:
    loop: TurnLoop[str] = TurnLoop(broken(), plan=one_each)
    receipts = [loop.push("first"), loop.push("second")]
    loop.start()
    exit = await loop.wait()
    ((items, error, checkpoint),) = exit.failed
    assert (items, exit.unhandled, exit.interrupted) == (("first",), ["second"], [])
    assert isinstance(error, RunFailed)
    assert error is exit.error
    assert isinstance(checkpoint, Checkpoint)
    assert await receipts[0].result() == "failed"
    assert await receipts[1].result() == "unhandled"


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_the_items_of_a_failed_turn_stay_in_the_record_until_the_user_decides(kind: str, tmp_path: Path) -> None:
    @virtual
    async def body() -> None:
        store = MemoryTurnStore() if kind == "memory" else SqliteTurnStore(tmp_path / "loop.db")
        loop = TurnLoop(broken(), store=store, **KEY)
        loop.push("first")
        loop.start()
        assert (await loop.wait()).checkpoint == "saved"
        for _ in range(2):  # they stay, whatever other loops do
            agent = broken(times=0)
            async with TurnLoop(agent, store=store, **KEY) as loop:
                pass
            (failed,) = (await loop.wait()).failed
            assert (failed.items, model(agent).calls) == (("first",), 0)
            assert "the provider is down" in str(failed.error)
            assert isinstance(failed.error, SafepointError)
            assert failed.checkpoint is not None
        agent = broken(times=0)
        loop = TurnLoop(agent, store=store, **KEY)
        loop.requeue()  # also before the start
        async with loop:
            pass
        assert ((await loop.wait()).failed, said(agent)) == ([], ["first"])
        async with TurnLoop(agent, store=store, **KEY) as loop:
            pass
        assert (await loop.wait()).failed == []
        if isinstance(store, SqliteTurnStore):
            await store.aclose()

    body()


@virtual
async def test_a_failed_turn_that_is_discarded_leaves_the_record() -> None:
    store = MemoryTurnStore()
    loop: TurnLoop[str] = TurnLoop(broken(), plan=lambda ctx, items: Plan(items[0], items), store=store, **KEY)
    loop.push("first")
    loop.start()
    await loop.wait()
    async with TurnLoop(broken(times=0), store=store, **KEY) as loop:
        await until(loop, lambda: len(loop.view.failed) == 1)
        loop.discard(loop.view.failed[0])
    exit = await loop.wait()
    assert exit.failed == []
    async with TurnLoop(broken(times=0), store=store, **KEY) as loop:
        pass
    assert (await loop.wait()).failed == []


@pytest.mark.parametrize("decision", ["requeue", "discard"])
def test_a_decision_that_meets_the_end_of_the_loop_changes_neither_what_is_told_nor_what_is_stored(
    decision: str,
) -> None:
    @virtual
    async def body() -> None:
        store = TroubledStore()
        loop: TurnLoop[str] = TurnLoop(broken(), store=store, **KEY)
        receipt = loop.push("first")
        loop.start()
        await receipt.saved()
        await until(loop, lambda: len(loop.view.failed) == 1)
        store.gate = asyncio.Event()
        await store.waiting.wait()  # the loop writes for the last time
        getattr(loop, decision)()
        store.gate.set()
        exit = await loop.wait()
        assert [failed.items for failed in exit.failed] == [("first",)]
        assert (exit.interrupted, exit.unhandled) == ([], [])
        assert stored_places(store.peek("loop")) == ([], [], ["first"])

    body()


@pytest.mark.parametrize("word", ["skip", "continue"])
def test_a_turn_that_is_skipped_is_kept_and_the_loop_goes_on(word: Any) -> None:
    @virtual
    async def body() -> None:
        agent = broken()
        async with TurnLoop[str](agent, plan=one_each, on_turn_error=word) as loop:
            receipts = [loop.push(item) for item in ("first", "second")]
        exit = await loop.wait()
        assert (exit.reason, [failed.items for failed in exit.failed]) == ("clean", [("first",)])
        second = await receipts[1].result()
        assert not isinstance(second, str)
        assert second.text == "better"

    body()


@virtual
async def test_a_failed_turn_is_tried_again_from_its_checkpoint_after_a_growing_wait() -> None:
    done: list[str] = []

    @tool
    async def pay() -> str:
        """Pay once."""
        done.append("paid")
        return "paid"

    replies: list[Any] = [call("pay"), fail(ModelError("down")), fail(ModelError("down")), say("thanks")]
    agent = Agent("payer", model=ScriptedModel(*replies), tools=[pay])
    begun = now()
    async with TurnLoop(agent, on_turn_error=Retry(times=3, delay=2)) as loop:
        receipt = loop.push("Pay the bill.")
    result = await receipt.result()
    assert not isinstance(result, str)
    assert (result.text, done, now() - begun) == ("thanks", ["paid"], 2 + 4)
    assert (await loop.wait()).failed == []
    assert said(agent) == ["Pay the bill."]


@virtual
async def test_retries_are_bounded() -> None:
    agent = broken(times=100)
    loop = TurnLoop(agent, on_turn_error="retry")
    loop.push("first")
    loop.start()
    exit = await loop.wait()
    assert (exit.reason, model(agent).calls) == ("error", 4)
    (failed,) = exit.failed
    assert (failed.items, failed.attempt) == (("first",), 4)


@virtual
async def test_a_stop_while_a_turn_waits_to_be_tried_again_keeps_it_for_the_next_loop() -> None:
    store = MemoryTurnStore()
    loop = TurnLoop(broken(), store=store, on_turn_error=Retry(delay=50, longest=50), **KEY)
    loop.start()
    loop.push("first")
    await pass_time(5)
    assert await loop.stop(SafePoint.ANY).wait() == "clean"
    exit = await loop.wait()
    assert (exit.interrupted, exit.failed) == (["first"], [])
    agent = broken(times=0)
    async with TurnLoop(agent, store=store, **KEY) as loop:
        pass
    assert said(agent) == ["first"]


@virtual
async def test_a_function_decides_what_becomes_of_a_failed_turn() -> None:
    seen: list[tuple[tuple[str, ...], int]] = []

    async def decide(failed: FailedTurn[str]) -> Any:
        await asyncio.sleep(0)
        seen.append((failed.items, failed.attempt))
        assert isinstance(failed.error, RunFailed)
        return Retry(delay=1) if failed.attempt == 1 else "skip"

    agent = broken(times=2)
    async with TurnLoop[str](agent, plan=one_each, on_turn_error=decide) as loop:
        loop.push("first")
        loop.push("second")
    exit = await loop.wait()
    assert seen == [(("first",), 1), (("first",), 2)]
    assert (exit.reason, [failed.items for failed in exit.failed]) == ("clean", [("first",)])


@pytest.mark.parametrize("answer", ["ignore", None, KeyError("no idea")])
def test_a_decision_that_is_none_ends_the_loop_and_keeps_the_items(answer: Any) -> None:
    @virtual
    async def body() -> None:
        def decide(failed: FailedTurn[str]) -> Any:
            if isinstance(answer, Exception):
                raise answer
            return answer

        loop = TurnLoop(broken(), on_turn_error=decide)
        loop.push("first")
        loop.start()
        exit = await loop.wait()
        assert isinstance(exit.error, KeyError if isinstance(answer, Exception) else ValueError)
        assert [failed.items for failed in exit.failed] == [("first",)]

    body()


@virtual
async def test_a_turn_whose_session_is_busy_is_tried_again_and_said_once() -> None:
    session = await Session.create(MemoryStore())
    inside, gate = asyncio.Event(), asyncio.Event()

    @tool
    async def wait() -> str:
        """Hold the session."""
        inside.set()
        await gate.wait()
        return "done"

    other = Agent("other", model=ScriptedModel(call("wait"), say("over")), tools=[wait])
    agent = Agent("desk", model=ScriptedModel(say("hello")))
    refused: list[BaseException | None] = []

    def plan(ctx: PlanContext[str], items: list[str]) -> Plan[str]:
        return Plan(items[0], items[:1], session=session, keep_rest=True)

    def decide(failed: FailedTurn[str]) -> Any:
        refused.append(failed.error)
        gate.set()
        return Retry(delay=1)

    async with other.start("mine", session=session) as run:
        await inside.wait()
        async with TurnLoop(agent, plan=plan, on_turn_error=decide, store=MemoryTurnStore(), **KEY) as loop:
            receipt = loop.push("hi")
        await run.wait()
    result = await receipt.result()
    assert not isinstance(result, str)
    assert isinstance(refused[0], SessionBusy)
    assert [message.text for message in session.messages if message.role == "user"] == ["mine", "hi"]


@virtual
async def test_a_failed_turn_that_is_asked_for_again_goes_on_if_nothing_came_after_it() -> None:
    session = await Session.create(MemoryStore())
    store = MemoryTurnStore()

    def plan(ctx: PlanContext[str], items: list[str]) -> Plan[str]:
        return Plan(items[0], items[:1], session=session, keep_rest=True)

    loop = TurnLoop(broken(), plan=plan, store=store, **KEY)
    loop.push("first")
    loop.start()
    await loop.wait()
    agent = broken(times=0)
    loop = TurnLoop(agent, plan=plan, store=store, **KEY)
    loop.requeue()
    async with loop:
        loop.push("second")
    assert [message.text for message in session.messages if message.role == "user"] == ["first", "second"]


def test_the_options_of_a_retry_are_checked() -> None:
    wrong: list[dict[str, Any]] = [{"times": 0}, {"times": 1.5}, {"delay": 0}, {"longest": -1}]
    for options in wrong:
        with pytest.raises(ValueError, match="Retry"):
            Retry(**options)
    assert [Retry(times=3, delay=2, longest=5).wait(attempt) for attempt in (1, 2, 3, 4)] == [2, 4, 5, None]

"""Steering: a message joins before the next model call, or is told that it is too late; none is dropped in silence."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from safepoint import Agent, HistoryError, Hooks, Run, ToolContext, check_history, tool
from safepoint.agent.steering import SteerReceipt
from safepoint.errors import AskNotTaken, UsageError, WaitInsideRun
from safepoint.sessions import MemoryStore, Session
from safepoint.testing import ScriptedModel, call, say, stall
from tests.sessions.stores import Wrapped
from tests.virtual import virtual


class Holder:
    """A run whose tool waits for a gate."""

    def __init__(self) -> None:
        self.inside, self.gate = asyncio.Event(), asyncio.Event()

        @tool
        async def hold() -> str:
            """Wait."""
            self.inside.set()
            await self.gate.wait()
            return "held"

        self.model = ScriptedModel(call("hold"), say("done"))
        self.agent = Agent("holder", model=self.model, tools=[hold])


@virtual
async def test_messages_join_in_order_before_the_next_model_call_while_tools_run() -> None:
    holder = Holder()
    async with holder.agent.start("go") as run:
        await holder.inside.wait()
        receipts = [run.steer(text) for text in ("one", "two")]
        assert [receipt.outcome for receipt in receipts] == [None, None]
        holder.gate.set()
        assert [await receipt.wait() for receipt in receipts] == ["joined", "joined"]
    check_history(run.result.messages)
    last = holder.model.requests[1].messages[-1]
    assert (last.role, [part.text for part in last.parts if part.kind == "text"]) == ("user", ["one", "two"])
    assert [entry.state for entry in run.result.ledger] == ["finished"]


@virtual
async def test_a_message_before_the_start_joins_the_prompt() -> None:
    model = ScriptedModel(say("hi"))
    run = Agent("a", model=model).start("go")
    receipt = run.steer("more")
    async with run:
        assert await receipt.wait() == "joined"
    assert [message.text for message in model.requests[0].messages] == ["gomore"]
    check_history(run.result.messages)


@virtual
async def test_a_message_that_finds_no_further_model_call_is_too_late() -> None:
    reached = asyncio.Event()
    async with Agent("a", model=ScriptedModel([say("x"), stall(reached.set)])).start("go") as run:
        await reached.wait()
        receipt = run.steer("more")
        run.cancel()
        assert await receipt.wait() == "too_late"
    assert await run.steer("even later").wait() == "too_late"
    assert [message.text for message in run.result.messages] == ["go", "x"]


@virtual
async def test_a_message_that_comes_while_the_last_answer_streams_is_too_late() -> None:
    class Steers(Hooks):
        receipt: SteerReceipt | None = None

        def after_run(self, run: Run[Any, Any], text: str) -> None:  # Any: a run of any agent
            self.receipt = run.steer("more")

    hooks = Steers()
    result = await Agent("a", model=ScriptedModel(say("done")), hooks=[hooks]).run("go")
    assert result.text == "done"
    assert hooks.receipt is not None
    assert hooks.receipt.outcome == "too_late"


@virtual
async def test_a_message_that_is_taken_back_does_not_join_and_those_around_it_do() -> None:
    holder = Holder()
    async with holder.agent.start("go") as run:
        await holder.inside.wait()
        receipts = [run.steer(text) for text in ("one", "two", "three")]
        assert receipts[1].withdraw()
        holder.gate.set()
        assert [await receipt.wait() for receipt in receipts] == ["joined", "withdrawn", "joined"]
        assert not receipts[0].withdraw()
    last = holder.model.requests[1].messages[-1]
    assert [part.text for part in last.parts if part.kind == "text"] == ["one", "three"]


@virtual
async def test_a_message_may_come_from_a_thread() -> None:
    holder = Holder()
    outcomes: list[str] = []
    async with holder.agent.start("go") as run:
        await holder.inside.wait()
        loop = asyncio.get_running_loop()
        added = threading.Event()

        def steer() -> None:
            receipt = run.steer("from a thread")
            added.set()
            loop.call_soon_threadsafe(holder.gate.set)
            outcomes.append(receipt.wait_sync(30))

        await asyncio.to_thread(steer)
    assert (added.is_set(), outcomes) == (True, ["joined"])


@virtual
async def test_an_empty_message_is_refused() -> None:
    async with Agent("a", model=ScriptedModel(say("x"))).start("go") as run:
        with pytest.raises(ValueError, match="must not be empty"):
            run.steer("  ")


@virtual
async def test_a_message_that_has_joined_is_stored_before_the_model_is_called() -> None:
    store = MemoryStore()
    session = await Session.create(Wrapped(store), "s")
    reached = asyncio.Event()
    run = Agent("a", model=ScriptedModel([say("x"), stall(reached.set)])).start("go", session=session)
    run.steer("more")
    async with run:
        await reached.wait()
        assert [message.text for message in (await store.load("s")).messages] == ["gomore"]
        run.cancel()


@virtual
async def test_waiting_for_a_message_raises_where_it_would_hang() -> None:
    refused: list[BaseException] = []

    @tool
    async def waits(ctx: ToolContext) -> str:
        """Wait for a message that joins when this has returned."""
        for wait in (ctx.run.steer("more").wait, in_the_loop):
            try:
                await wait()
            except UsageError as error:
                refused.append(error)
        return "did not wait"

    async def in_the_loop() -> None:
        waiting[0].wait_sync()

    model = ScriptedModel(call("waits"), say("done"))
    run = Agent("a", model=model, tools=[waits]).start("go")
    waiting = [run.steer("before the start")]
    with pytest.raises(AskNotTaken, match="has not started"):
        await waiting[0].wait()
    async with run:
        waiting.append(run.steer("outside"))
        with pytest.raises(UsageError, match="block the loop that the run needs"):
            waiting[1].wait_sync()
        assert await waiting[1].wait() == "joined"
        assert waiting[1].wait_sync() == "joined", "what is known needs no waiting"
    assert [type(error) for error in refused] == [WaitInsideRun]
    assert model.requests[1].messages[-1].text == "more"


@virtual
async def test_words_that_no_provider_takes_are_refused_where_they_are_said() -> None:
    async with Agent("a", model=ScriptedModel(say("x"))).start("go") as run:
        with pytest.raises(HistoryError, match="half a surrogate pair"):
            run.steer("\ud800")
    check_history(run.result.messages)

"""A client that cancels its request stops the run: with its reason, in both eras, and nothing of the end is lost."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import pytest

from safepoint import tool
from safepoint._core.reasons import Reason, Source
from safepoint.history.check import check_history
from safepoint.history.parts import Text
from safepoint.protocols.mcp.exchange import Exchange
from safepoint.protocols.mcp.requests import InFlight
from safepoint.serving.managed_run import ManagedRun
from safepoint.serving.principal import LOCAL
from safepoint.serving.run_manager import RunManager
from safepoint.serving.submission import Submission
from safepoint.storage.run_records import RunRecord
from safepoint.testing import ScriptedModel, call, say, stall
from tests.protocols.mcp.frames import connected
from tests.protocols.mcp.world import MODES, Mode, Nap, World, agent, cancelled, text_of
from tests.virtual import passes, virtual


async def recorded(manager: RunManager, run: ManagedRun) -> RunRecord:
    record = await manager.storage.runs.get(run.id)
    assert record is not None
    return record


async def until_over(world: World) -> ManagedRun:
    await world.run.over.wait()
    return world.run


@pytest.mark.parametrize("mode", MODES)
@virtual
async def test_a_cancelled_request_ends_its_run_with_the_clients_reason_and_is_never_answered(mode: Mode) -> None:
    nap = Nap()
    world = World({"clerk": agent("clerk", ScriptedModel(call("nap")), nap.tool())})
    async with connected(world.server, mode) as frames:
        await frames.call(7, "clerk", task="sleep")
        await nap.began.wait()
        await frames.notify("notifications/cancelled", requestId=7, reason="lunch")
        run = await until_over(world)
        await frames.request(8, "tools/list")
        await frames.answer(8)
    assert 7 not in frames.answers
    assert nap.cleaned
    assert run.reason == Reason("lunch", Source.USER, by="user")
    assert [(entry.name, entry.state) for entry in run.run.result.ledger] == [("nap", "cut")]


@pytest.mark.parametrize("mode", MODES)
@virtual
async def test_the_stored_history_record_and_reason_say_that_it_was_cancelled(mode: Mode) -> None:
    nap = Nap()
    world = World({"clerk": agent("clerk", ScriptedModel(call("nap")), nap.tool())})
    async with connected(world.server, mode) as frames:
        await frames.call(7, "clerk", task="sleep")
        await nap.began.wait()
        await frames.notify("notifications/cancelled", requestId="7", reason="lunch")  # as text: the same id
        run = await until_over(world)
    record, session = await recorded(world.manager, run), await world.manager.view(run.key)
    assert (record.outcome, record.reason) == ("cancelled", {"text": "lunch", "source": "user", "by": "user"})
    check_history(session.messages)
    assert "lunch" in str(session.messages[-1].parts)


@virtual
async def test_the_sdks_client_cancels_in_the_old_era_by_leaving_its_call() -> None:
    nap = Nap()
    world = World({"clerk": agent("clerk", ScriptedModel(call("nap"), say("again")), nap.tool())})
    async with world.client("legacy") as client:
        sleeping = asyncio.create_task(client.call_tool("clerk", {"task": "sleep"}))
        await nap.began.wait()
        await cancelled(sleeping)
        run = await until_over(world)
        again = await client.call_tool("clerk", {"task": "go on", "session": run.key.session})
    assert run.reason is not None
    assert run.reason.source is Source.USER
    assert text_of(again) == "again"


@virtual
async def test_in_the_new_era_a_request_that_is_closed_without_a_word_is_a_disconnect() -> None:
    nap = Nap()
    world = World({"clerk": agent("clerk", ScriptedModel(call("nap")), nap.tool())})
    async with world.client("auto") as client:
        sleeping = asyncio.create_task(client.call_tool("clerk", {"task": "sleep"}))
        await nap.began.wait()
        await cancelled(sleeping)
        assert world.run.over.is_set  # recorded before the request was given up
    assert world.run.reason == Reason("its client closed the request", Source.DISCONNECT, by="user")


@pytest.mark.parametrize("mode", MODES)
@virtual
async def test_the_cancellation_of_the_handler_does_not_cut_what_a_tool_cleans_up(mode: Mode) -> None:
    began, cleaned = asyncio.Event(), asyncio.Event()

    @tool
    async def build() -> str:
        """Build, and put the tools away."""
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            await passes(0.5)
            cleaned.set()
        return "built"

    world = World({"clerk": agent("clerk", ScriptedModel(call("build")), build)})
    async with connected(world.server, mode) as frames:
        await frames.call(1, "clerk", task="build")
        await began.wait()
        await frames.notify("notifications/cancelled", requestId=1, reason="enough")
    # The connection is closed, and its handlers are over: so is the run.
    assert cleaned.is_set()
    assert world.run.over.is_set
    assert (await recorded(world.manager, world.run)).outcome == "cancelled"
    assert world.run.reason == Reason("enough", Source.USER, by="user")


@pytest.mark.parametrize("mode", MODES)
@virtual
async def test_a_closed_connection_stops_its_runs_and_records_that(mode: Mode) -> None:
    nap = Nap()
    world = World({"clerk": agent("clerk", ScriptedModel(call("nap")), nap.tool())})
    async with connected(world.server, mode) as frames:
        await frames.call(1, "clerk", task="sleep")
        await nap.began.wait()
    assert world.run.over.is_set
    assert world.run.reason is not None
    assert world.run.reason.source is Source.DISCONNECT
    assert (await recorded(world.manager, world.run)).outcome == "cancelled"


@pytest.mark.parametrize("mode", MODES)
@virtual
async def test_words_that_were_streamed_before_the_cancel_are_stored_as_incomplete(mode: Mode) -> None:
    reached = asyncio.Event()
    world = World({"clerk": agent("clerk", ScriptedModel([say("half a sen"), stall(reached.set)]))})
    async with connected(world.server, mode) as frames:
        await frames.call(1, "clerk", task="write")
        await reached.wait()
        await frames.notify("notifications/cancelled", requestId=1)
        run = await until_over(world)
    session = await world.manager.view(run.key)
    (part,) = [part for part in session.messages[-1].parts if part.kind == "text"]
    assert (part.text, part.incomplete) == ("half a sen", True)


@pytest.mark.parametrize("mode", MODES)
@virtual
async def test_a_request_that_is_cancelled_in_the_same_breath_leaves_nothing_running(mode: Mode) -> None:
    nap = Nap()
    world = World({"clerk": agent("clerk", ScriptedModel(call("nap")), nap.tool())})
    async with connected(world.server, mode) as frames:
        await frames.call(1, "clerk", task="sleep")
        await frames.notify("notifications/cancelled", requestId=1, reason="never mind")
        await frames.request(2, "tools/list")
        await frames.answer(2)
    assert 1 not in frames.answers
    assert world.manager.live() == []


@virtual
async def test_a_request_that_is_cancelled_before_its_turn_begins_no_run_and_stores_no_session() -> None:
    world = World({"clerk": agent("clerk", ScriptedModel(say("hi")))})
    context: Any = None  # Any: of the SDK; nothing is told to a request that begins nothing
    exchange = Exchange(world.manager, LOCAL, context, InFlight())
    with anyio.CancelScope() as scope:
        scope.cancel()
        await exchange.submit(exchange.key("clerk", "new"), Submission((Text("hi"),)), new=True)
    assert scope.cancelled_caught
    assert not world.manager.runs
    assert not await world.manager.storage.sessions.states("")


@virtual
async def test_a_request_that_is_cancelled_while_its_run_is_accepted_has_a_run_to_stop() -> None:
    world = World({"clerk": agent("clerk", ScriptedModel(stall()))})
    context: Any = None  # Any: as above
    exchange = Exchange(world.manager, LOCAL, context, InFlight())
    with anyio.CancelScope() as scope:
        asyncio.get_running_loop().call_soon(scope.cancel)
        await exchange.submit(exchange.key("clerk", "new"), Submission((Text("hi"),)), new=True)
    run = world.run
    assert run.live
    await world.manager.delete(run.key)


@pytest.mark.parametrize("mode", MODES)
@virtual
async def test_a_cancel_of_an_unknown_or_finished_request_does_nothing(mode: Mode) -> None:
    world = World({"clerk": agent("clerk", ScriptedModel(say("one"), say("two")))})
    async with connected(world.server, mode) as frames:
        await frames.notify("notifications/cancelled", requestId=99, reason="who?")
        await frames.call(1, "clerk", task="a")
        await frames.answer(1)
        for wrong in ({"requestId": 1}, {"requestId": None}, {"requestId": 1, "reason": 7}, {}):
            await frames.notify("notifications/cancelled", **wrong)
        await frames.call(2, "clerk", task="b")
        answer = await frames.answer(2)
    assert answer["result"]["structuredContent"]["stopReason"] == "end_turn"


@pytest.mark.parametrize("mode", MODES)
@virtual
async def test_a_cancel_reaches_the_request_of_its_own_connection_only(mode: Mode) -> None:
    first, second = Nap(), Nap()
    agents = {
        "one": agent("one", ScriptedModel(call("nap")), first.tool()),
        "two": agent("two", ScriptedModel(call("nap")), second.tool()),
    }
    world = World(agents)
    async with connected(world.server, mode) as left, connected(world.server, mode) as right:
        await left.call(1, "one", task="a")
        await right.call(1, "two", task="b")
        await first.began.wait()
        await second.began.wait()
        await left.notify("notifications/cancelled", requestId=1, reason="mine")
        one, two = (next(run for run in world.manager.runs.values() if run.key.app == name) for name in agents)
        await one.over.wait()
        assert two.live
    assert (one.reason, two.reason) == (
        Reason("mine", Source.USER, by="user"),
        Reason("its client closed the request", Source.DISCONNECT, by="user"),
    )

"""The switch: what it keeps from beginning, what goes on, and how a held run is stopped."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from safepoint import Agent, BaseAgent, Freeze, Parallel, Run, SafePoint, Sequential, StopReason, Switch, tool
from safepoint.events import RunStarted
from safepoint.storage.memory import MemoryStorage
from safepoint.testing import ScriptedModel, call, say
from tests.virtual import passes, rounds, virtual

done: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_done() -> None:
    done.clear()


@tool
async def pay(name: str) -> str:
    """Pay."""
    done.append(f"pay {name}")
    return "paid"


@tool
async def look(name: str) -> str:
    """Look."""
    done.append(f"look {name}")
    await passes(5)
    done.append(f"looked {name}")
    return "seen"


def agent_of(*script: Any, switch: Switch | None = None, **options: Any) -> Agent:  # Any: replies of every kind
    agent = Agent("shop", model=ScriptedModel(*script), tools=[pay, look], **options)
    if switch is not None:
        agent.switch = switch
    return agent


async def _held(run: Run[Any, Any]) -> Freeze:
    while run.held_by is None:
        await passes(0.1)
    return run.held_by


@virtual
async def test_nothing_of_a_run_begins_while_everything_is_frozen_and_all_of_it_does_after_the_thaw() -> None:
    switch = Switch()
    agent = agent_of(call("pay", name="a"), say("done"), switch=switch)
    freeze = switch.freeze("an incident")
    async with agent.start("go") as run:
        assert await _held(run) is freeze
        await passes(3600)
        assert [type(event) for event in run.kept_events()] == [RunStarted]
        assert done == []
        assert switch.thaw(freeze.id) == [freeze]
    assert (run.result.stop_reason, run.result.text, done) == (StopReason.END_TURN, "done", ["pay a"])
    assert run.held_by is None


@virtual
async def test_calls_of_a_frozen_tool_wait_and_the_others_of_the_same_reply_are_made() -> None:
    switch = Switch()
    switch.freeze("pay is broken", tool="pay")
    agent = agent_of([call("pay", name="a"), call("look", name="b")], say("done"), switch=switch)
    async with agent.start("go") as run:
        await _held(run)
        await passes(60)
        assert done == ["look b", "looked b"]
        switch.thaw()
    assert done == ["look b", "looked b", "pay a"]
    assert run.result.stop_reason is StopReason.END_TURN


@virtual
async def test_calls_that_are_made_one_by_one_keep_their_order() -> None:
    switch = Switch()
    switch.freeze("pay is broken", tool="pay")
    script = [call("pay", name="a"), call("look", name="b")]
    agent = agent_of(script, say("done"), switch=switch, max_parallel_tools=1)
    async with agent.start("go") as run:
        await _held(run)
        await passes(60)
        assert done == []
        switch.thaw()
    assert done == ["pay a", "look b", "looked b"]


@virtual
async def test_a_frozen_model_is_not_called_and_another_one_is() -> None:
    switch = Switch()
    switch.freeze("it rambles", model="scripted")
    agent = agent_of(say("hello"), switch=switch)
    async with agent.start("go") as run:
        await _held(run)
        switch.put([Freeze("another", model="other")])
    assert run.result.text == "hello"


@virtual
async def test_what_is_under_way_when_it_is_frozen_goes_on_to_its_end() -> None:
    switch = Switch()
    agent = agent_of(call("look", name="a"), say("done"), switch=switch)
    async with agent.start("go") as run:
        while not done:
            await rounds(1)
        switch.freeze("an incident")
        await _held(run)
        assert done == ["look a", "looked a"]
        switch.thaw()
    assert run.result.stop_reason is StopReason.END_TURN


@virtual
async def test_a_freeze_that_names_points_stops_live_runs_there_and_they_go_on_later() -> None:
    switch = Switch()
    agent = agent_of(call("look", name="a"), say("done"), switch=switch)
    async with agent.start("go") as run:
        while not done:
            await rounds(1)
        switch.freeze("an incident", at=SafePoint.AFTER_TOOLS)
    result = run.result
    assert result.stop_reason is StopReason.CANCELLED
    assert result.cancellation is not None
    assert (result.cancellation.reason.text, result.cancellation.reason.source) == ("frozen: an incident", "freeze")
    switch.thaw()
    assert result.checkpoint is not None
    again = await agent.resume(result.checkpoint)
    assert (again.text, done) == ("done", ["look a", "looked a"])


@virtual
async def test_only_runs_that_call_the_tool_stop_for_a_freeze_of_a_tool() -> None:
    switch = Switch()
    async with (
        agent_of(call("look", name="a"), say("done"), switch=switch).start("go") as looking,
        agent_of(call("pay", name="b"), say("done"), switch=switch).start("go") as paying,
    ):
        while "look a" not in done:
            await rounds(1)
        switch.freeze("look is broken", tool="look", at=SafePoint.NOW)
    assert looking.result.stop_reason is StopReason.CANCELLED
    assert paying.result.stop_reason is StopReason.END_TURN


@virtual
@pytest.mark.parametrize("at", [SafePoint.NOW, SafePoint.AFTER_TOOLS, SafePoint.FORCE, SafePoint.named("never")])
@pytest.mark.parametrize("freeze", [Freeze("x"), Freeze("x", tool="pay"), Freeze("x", model="scripted")])
async def test_a_held_run_stops_at_once_for_every_ask(at: SafePoint, freeze: Freeze) -> None:
    switch = Switch()
    switch.add(freeze)
    agent = agent_of(call("pay", name="a"), say("done"), switch=switch)
    async with agent.start("go") as run:
        await _held(run)
        receipt = run.cancel(at, reason="never mind")
    assert run.result.stop_reason is StopReason.CANCELLED
    assert (receipt.outcome, done) == ("stopped", [])


@virtual
async def test_a_freeze_of_an_app_or_a_user_holds_their_runs_only() -> None:
    switch = Switch()
    switch.freeze("ann runs wild", app="web", user="ann")
    for app, user, waits in (("web", "ann", True), ("web", "bob", False), ("other", "ann", False)):
        agent = agent_of(say("done"))
        async with agent.start("go", switch=switch.of(app=app, user=user)) as run:
            await rounds(20)
            assert (run.held_by is not None) is waits, (app, user)
            run.cancel()


@virtual
async def test_runs_inside_a_run_are_held_with_it() -> None:
    switch = Switch()
    inner = agent_of(call("pay", name="a"), say("inside"))
    sub = Agent("boss", model=ScriptedModel(call("shop", input="buy"), say("all")), tools=[inner.as_tool()])
    outers: list[BaseAgent[Any, Any]] = [
        sub,
        Sequential("row", agent_of(call("pay", name="a"), say("inside"))),
        Parallel("side", [agent_of(call("pay", name="a"), say("inside"))]),
    ]
    for outer in outers:
        done.clear()
        switch.freeze("pay is broken", tool="pay")
        async with outer.start("go", switch=switch) as run:
            assert (await _held(run)).tool == "pay"
            await passes(10)
            assert done == []
            switch.thaw()
        assert (run.result.stop_reason, done) == (StopReason.END_TURN, ["pay a"])


@virtual
async def test_a_freeze_that_stops_runs_stops_the_outermost_when_one_inside_comes_to_it() -> None:
    switch = Switch()
    inner = agent_of(call("pay", name="a"), say("inside"))
    outer = Agent("boss", model=ScriptedModel(call("shop", input="buy"), say("all")), tools=[inner.as_tool()])
    switch.freeze("pay is broken", tool="pay", at=SafePoint.ANY)
    async with outer.start("go", switch=switch) as run:
        pass
    assert (run.result.stop_reason, done) == (StopReason.CANCELLED, [])
    switch.thaw()
    assert run.result.checkpoint is not None
    assert (await outer.resume(run.result.checkpoint)).text == "all"
    assert done == ["pay a"]


def test_another_thread_freezes_and_thaws() -> None:
    switch, thawed = Switch(), threading.Event()

    def operate() -> None:
        while not frozen_run:
            pass
        switch.thaw()
        thawed.set()

    frozen_run: list[str] = []

    async def main() -> str:
        switch.freeze("an incident")
        async with agent_of(say("done"), switch=switch).start("go") as run:
            while run.held_by is None:
                await rounds(1)
            frozen_run.append(run.held_by.reason)
        return run.result.text

    worker = threading.Thread(target=operate, daemon=True)
    worker.start()
    assert asyncio.run(main()) == "done"
    assert thawed.wait(5)


@virtual
async def test_a_switch_does_what_a_storage_says() -> None:
    storage, switch = MemoryStorage(), Switch()
    await storage.freezes.add(Freeze("from before"))
    async with switch.follow(storage):
        assert [each.reason for each in switch.freezes] == ["from before"]
        async with agent_of(say("done"), switch=switch).start("go") as run:
            freeze = await _held(run)
            assert await storage.freezes.remove(freeze.id)
        assert run.result.text == "done"
    await storage.freezes.add(Freeze("later"))
    await rounds(20)
    assert switch.freezes == ()


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ({"reason": " "}, "say why"),
        ({"reason": "x", "tool": ""}, "write a name"),
        ({"reason": "x", "within": 3.0}, "stops_at"),
        ({"reason": "x", "stops_at": ("now",), "within": 3.0}, "waits for nothing"),
        ({"reason": "x", "stops_at": ("nowhere",)}, "nowhere"),
    ],
)
def test_a_freeze_that_could_not_be_obeyed_is_refused(given: dict[str, Any], hint: str) -> None:
    with pytest.raises(ValueError, match=hint):
        Freeze(**given)


def test_what_is_no_switch_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Switch\(\)"):
        agent_of(say("x")).start("go", switch="on")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # untyped callers


@virtual
async def test_a_switch_is_made_for_agents_and_holds_their_runs_only() -> None:
    mine, other = agent_of(say("mine")), agent_of(say("other"))
    switch = Switch(mine)
    switch.freeze("an incident")
    assert (await other.run("go")).text == "other"
    async with mine.start("go") as run:
        await _held(run)
        switch.thaw()
    assert run.result.text == "mine"

"""The caller's own cancellation: the same closing path runs, and the caller's exception is never swallowed.

Safepoint's own cancel is a normal return. The two are told apart in whatever order they come.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import anyio
import anyio.lowlevel
import pytest

from safepoint import Agent, Run, RunResult, SafePoint, tool
from safepoint.errors import UsageError
from safepoint.testing import ScriptedModel, call, say, stall
from safepoint.testing.models import Reply
from tests.agent.oracle import check_left_behind, states
from tests.agent.workshop import Gate
from tests.core.piece import for_ever
from tests.virtual import now, passes, rounds, virtual

CLOSING = 2.0  # how long the tool below needs to clean up


@tool(grace=5)
async def tidy() -> None:
    """Clean up for a while when cancelled."""
    try:
        await for_ever()
    finally:
        await passes(CLOSING)


class Caller:
    """Somebody who runs an agent with `agent.run` in a task of its own."""

    def __init__(self, *replies: Reply) -> None:
        self.agent = Agent("a", model=ScriptedModel(*(replies or (call("tidy"),))), tools=[tidy])
        self.task = asyncio.create_task(self._call())
        self.run: Run[None] | None = None

    async def _call(self) -> RunResult[str]:
        self.run = self.agent.start("go")
        self.run.launch()
        await self.run.join()
        return self.run.result

    @property
    def live(self) -> Run[None]:
        assert self.run is not None
        return self.run

    async def end(self) -> str:
        """How it came out for the caller."""
        await asyncio.wait({self.task})
        check_left_behind(self.live)
        return "CancelledError" if self.task.cancelled() else self.task.result().stop_reason


# -- own cancel against the caller's, in every order -------------------------------------------------------------------

OWN, CALLERS = "own", "caller's"
# What is asked, each with the seconds that pass before it; how it comes out for the caller; whose reason is recorded.
ORDERS: dict[str, tuple[list[tuple[str, float]], str, str]] = {
    "only our own": ([(OWN, 0)], "cancelled", "user"),
    "only the caller's": ([(CALLERS, 0)], "CancelledError", "caller"),
    "our own, then the caller's while it closes": ([(OWN, 0), (CALLERS, 1)], "CancelledError", "user"),
    "the caller's, then our own while it closes": ([(CALLERS, 0), (OWN, 1)], "CancelledError", "caller"),
    "our own and the caller's in one moment": ([(OWN, 0), (CALLERS, 0)], "CancelledError", "user"),
    "the caller's and our own in one moment": ([(CALLERS, 0), (OWN, 0)], "CancelledError", "user"),
    "the caller's twice": ([(CALLERS, 0), (CALLERS, 1)], "CancelledError", "caller"),
    "our own twice": ([(OWN, 0), (OWN, 1)], "cancelled", "user"),
    "the caller's twice around our own": ([(CALLERS, 0), (OWN, 0.5), (CALLERS, 1)], "CancelledError", "caller"),
}


@virtual
@pytest.mark.parametrize("order", ORDERS)
async def test_own_cancel_against_the_callers(order: str) -> None:
    asks, outcome, source = ORDERS[order]
    caller = Caller()
    await passes(1)
    began = now()
    for who, seconds in asks:
        if seconds:
            await passes(seconds)
        if who == OWN:
            caller.live.cancel(reason="enough")
        else:
            caller.task.cancel()
    assert await caller.end() == outcome
    assert now() - began == pytest.approx(CLOSING), "the caller waits for the whole closing, and no longer"  # pyright: ignore[reportUnknownMemberType]  # its stub
    result = caller.live.result
    assert result.stop_reason == "cancelled"
    assert result.cancellation is not None
    assert result.cancellation.reason.source == source
    assert states(caller.live) == {"tidy": "cut"}


@virtual
async def test_the_callers_cancellation_that_comes_with_the_end_is_not_swallowed() -> None:
    caller = Caller([say("hi"), stall()])
    await rounds(10)
    caller.live.node.ended.when_set(caller.task.cancel)
    caller.live.cancel()
    assert await caller.end() == "CancelledError"


@virtual
async def test_the_callers_cancellation_after_the_answer_leaves_the_answer_and_goes_on() -> None:
    caller = Caller(say("done"))
    await rounds(1)
    caller.live.node.ended.when_set(caller.task.cancel)
    assert await caller.end() == "CancelledError"
    assert (caller.live.result.stop_reason, caller.live.result.text) == ("end_turn", "done")


# -- every way in ------------------------------------------------------------------------------------------------------

Enter = Callable[[Agent[None], list[Run[None]]], Awaitable[object]]


async def by_run(agent: Agent[None], runs: list[Run[None]]) -> object:
    return await agent.run("go")


async def by_block(agent: Agent[None], runs: list[Run[None]]) -> object:
    async with agent.start("go") as run:
        runs.append(run)
    return run.result


async def by_wait(agent: Agent[None], runs: list[Run[None]]) -> object:
    async with agent.start("go") as run:
        runs.append(run)
        return await run.wait()


async def by_events(agent: Agent[None], runs: list[Run[None]]) -> object:
    async with agent.start("go") as run:
        runs.append(run)
        return [event async for event in run.events()]


async def by_stream(agent: Agent[None], runs: list[Run[None]]) -> object:
    stream = agent.stream("go")
    runs.append(stream.run)
    return [event async for event in stream]


ENTRIES: list[Enter] = [by_run, by_block, by_wait, by_events, by_stream]


async def asyncio_timeout(wait: Callable[[], Awaitable[object]]) -> None:
    async with asyncio.timeout(1):
        await wait()


async def nested_timeouts(wait: Callable[[], Awaitable[object]]) -> None:
    async with asyncio.timeout(2), asyncio.timeout(1):
        await wait()


async def anyio_scope(wait: Callable[[], Awaitable[object]]) -> None:
    with anyio.fail_after(1):
        await wait()


async def anyio_around_asyncio(wait: Callable[[], Awaitable[object]]) -> None:
    with anyio.fail_after(2):
        async with asyncio.timeout(1):
            await wait()


TIMEOUTS = [asyncio_timeout, nested_timeouts, anyio_scope, anyio_around_asyncio]


@virtual
@pytest.mark.parametrize("timeout", TIMEOUTS)
@pytest.mark.parametrize("enter", ENTRIES)
async def test_a_time_out_is_never_swallowed_and_the_run_has_closed_itself_first(
    enter: Enter, timeout: Callable[[Callable[[], Awaitable[object]]], Awaitable[None]]
) -> None:
    agent, runs = Agent("a", model=ScriptedModel(call("tidy")), tools=[tidy]), list[Run[None]]()
    began = now()
    with pytest.raises(TimeoutError):
        await timeout(lambda: enter(agent, runs))
    assert now() == began + 1 + CLOSING
    for run in runs:
        assert run.result.stop_reason == "cancelled"
        check_left_behind(run)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await passes(1)


@virtual
async def test_a_cancelled_scope_ends_and_what_follows_it_runs() -> None:
    agent = Agent("a", model=ScriptedModel(call("tidy")), tools=[tidy])
    with anyio.move_on_after(1) as scope:
        await agent.run("go")
    assert scope.cancelled_caught
    await anyio.lowlevel.checkpoint()


@virtual
async def test_cancelling_the_wait_alone_does_not_stop_the_run() -> None:
    gate = Gate("gate")
    async with Agent("a", model=ScriptedModel(call("gate"), say("done")), tools=[gate.tool]).start("go") as run:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await run.wait()
        assert not run.ended
        gate.gate.set()
    assert run.result.text == "done"


@virtual
async def test_an_exception_that_leaves_the_block_cancels_the_run_waits_and_goes_on() -> None:
    agent, began = Agent("a", model=ScriptedModel(call("tidy")), tools=[tidy]), now()
    run = agent.start("go")

    async def leave() -> None:
        async with run:
            await passes(1)
            raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        await leave()
    assert now() == began + 1 + CLOSING
    assert run.result.cancellation is not None
    assert run.result.cancellation.reason.text == "its block was left by LookupError"
    assert run.result.cancellation.reason.source == "caller"
    check_left_behind(run)


@virtual
async def test_leaving_the_block_normally_waits_for_the_run_to_end() -> None:
    gate = Gate("gate")
    asyncio.get_running_loop().call_later(5, gate.gate.set)
    began = now()
    async with Agent("a", model=ScriptedModel(call("gate"), say("done")), tools=[gate.tool]).start("go") as run:
        pass
    assert now() == began + 5
    assert run.result.stop_reason == "end_turn"


@virtual
async def test_the_runs_own_task_is_nobody_elses_and_a_hand_on_it_counts_as_the_callers() -> None:
    gate = Gate("gate")
    async with Agent("a", model=ScriptedModel(call("gate")), tools=[gate.tool]).start("go") as run:
        await gate.started.wait()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            if task.get_name() == "safepoint:a":
                task.cancel()
    assert run.result.stop_reason == "cancelled"
    assert run.result.cancellation is not None
    assert run.result.cancellation.reason.source == "caller"
    check_left_behind(run)


def test_a_block_is_left_on_the_loop_where_it_was_entered() -> None:
    agent = Agent("a", model=ScriptedModel(stall()))
    refused: list[str] = []

    async def leave(run: Run[None]) -> None:
        with pytest.raises(UsageError) as caught:
            await run.__aexit__(None, None, None)
        refused.append(str(caught.value))

    async def main() -> Run[None]:
        async with agent.start("go") as run:
            await asyncio.to_thread(lambda: asyncio.run(leave(run)))
            run.cancel()
        return run

    run = asyncio.run(main())
    assert [text.split(":")[0] for text in refused] == ["a was started on another event loop"]
    asyncio.run(run.__aexit__(None, None, None))  # nothing is left to wait for


@virtual
async def test_the_agent_is_usable_at_once_after_a_caller_has_left() -> None:
    model = ScriptedModel(call("tidy"), say("second"))
    agent = Agent("a", model=model, tools=[tidy])
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await agent.run("go")
    assert (await agent.run("again")).text == "second"


@virtual
async def test_a_sub_agent_hears_of_its_callers_cancellation_as_of_any_other() -> None:
    inner = Agent("inner", model=ScriptedModel(call("tidy")), tools=[tidy])
    outer = Agent("outer", model=ScriptedModel(call("inner", input="go")), tools=[inner.as_tool()])
    began = now()
    run = outer.start("go")

    async def enter() -> None:
        async with run:
            pass

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await enter()
    assert now() == began + 1 + CLOSING
    assert states(run) == {"inner": "stopped"}
    check_left_behind(run)


@virtual
async def test_force_shortens_the_wait_of_a_caller_who_was_cancelled() -> None:
    caller = Caller()
    await passes(1)
    began = now()
    caller.task.cancel()
    await passes(0.5)
    caller.live.cancel(SafePoint.FORCE)
    assert await caller.end() == "CancelledError"
    assert now() == began + 0.5
    await passes(CLOSING)

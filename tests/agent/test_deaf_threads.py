"""A thread that does not look can be given an exception, if its tool has agreed to it; and what its limits are."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from types import FrameType

import pytest

from safepoint import Agent, Ladder, Run, SafePoint, tool
from safepoint.errors import ToolDefinitionError
from safepoint.events import RungReached
from safepoint.testing import ScriptedModel, call, say
from safepoint.tools.base import BaseTool
from tests.agent.oracle import check_left_behind

LADDER = Ladder(thread=0.1)


def rungs(run: Run[None]) -> list[str]:
    return [str(event.rung) for event in run.kept_events() if isinstance(event, RungReached)]


async def stopped(deaf: BaseTool, at: SafePoint = SafePoint.NOW) -> Run[None]:
    agent = Agent("a", model=ScriptedModel(call(deaf.name), say("done")), tools=[deaf], ladder=LADDER)
    async with agent.start("go") as run:
        async for event in run.events():
            if type(event).__name__ == "ToolCallStarted":
                break
        await run.cancel(at).wait(5)
    check_left_behind(run)
    return run


def test_a_deaf_loop_ends_by_the_exception_and_is_no_orphan() -> None:
    left: list[str] = []

    @tool(raise_in_thread=True)
    def count() -> None:
        """Count for ever, without a look."""
        number = 0
        try:
            while True:
                number += 1
        finally:
            left.append("cleaned up")

    run = asyncio.run(stopped(count))
    assert (run.result.ledger[0].state, run.result.ledger[0].still_running) == ("cut", False)
    assert run.result.orphans == ()
    assert rungs(run) == ["flag", "raise"]
    assert left == ["cleaned up"]


def test_without_the_option_it_is_abandoned_as_before() -> None:
    release = threading.Event()

    @tool
    def count() -> None:
        """Count until it is let go."""
        while not release.is_set():
            pass

    try:
        run = asyncio.run(stopped(count))
        assert rungs(run) == ["flag", "abandon"]
        assert run.result.ledger[0].still_running
    finally:
        release.set()


IN_C = 1.0  # seconds in which no exception can be raised in the thread


def test_a_call_that_blocks_in_c_is_abandoned_and_ends_when_it_returns() -> None:
    @tool(raise_in_thread=True)
    def sleep() -> None:
        """Block in C."""
        time.sleep(IN_C)

    async def main() -> None:
        run = await stopped(sleep)
        assert rungs(run) == ["flag", "raise", "abandon"]
        (orphan,) = run.result.orphans
        assert orphan.thread is not None
        await asyncio.to_thread(orphan.thread.join, 5)
        assert not orphan.returned

    asyncio.run(main())


def test_a_tool_that_swallows_everything_is_abandoned() -> None:
    release = threading.Event()

    @tool(raise_in_thread=True)
    def stubborn() -> None:
        """Swallow whatever comes."""
        while not release.is_set():
            try:
                while not release.is_set():
                    pass
            except BaseException:
                continue

    try:
        assert rungs(asyncio.run(stopped(stubborn))) == ["flag", "raise", "abandon"]
    finally:
        release.set()


def test_force_raises_too_and_waits_for_nothing() -> None:
    ended = threading.Event()

    @tool(raise_in_thread=True)
    def count() -> None:
        """Count for ever."""
        try:
            while True:
                pass
        finally:
            ended.set()

    run = asyncio.run(stopped(count, SafePoint.FORCE))
    assert "raise" in rungs(run)
    assert ended.wait(5)


def test_an_exception_that_comes_as_the_function_ends_never_loses_its_result() -> None:
    """Hundreds of calls that end just when the exception is due: each has an outcome, and nothing hangs."""

    async def main() -> None:
        for number in range(60):

            @tool(raise_in_thread=True)
            def brief(seconds: float = 0.001 + number * 0.0001) -> str:
                """End about when the exception is due."""
                until = time.monotonic() + seconds
                while time.monotonic() < until:
                    pass
                return "done"

            agent = Agent(
                "a", model=ScriptedModel(call("brief"), say("done")), tools=[brief], ladder=Ladder(thread=0.002)
            )
            async with agent.start("go") as run:
                async for event in run.events():
                    if type(event).__name__ == "ToolCallStarted":
                        break
                await run.cancel().wait(5)
            assert run.result.ledger[0].state in ("finished", "cut")

    asyncio.run(main())


def test_the_option_is_refused_where_there_is_no_thread() -> None:
    async def wait() -> None:
        """Wait."""

    def count() -> None:
        """Count."""

    for make in (lambda: tool(wait, raise_in_thread=True), lambda: tool(count, raise_in_thread=True, run_in="process")):
        with pytest.raises((ValueError, ToolDefinitionError), match="leave it out"):
            make()


def test_what_a_safe_point_request_waits_for_is_named() -> None:
    release = threading.Event()

    @tool(effect="irreversible")
    def send() -> str:
        """Send a letter."""
        release.wait(5)
        return "sent"

    async def main() -> None:
        agent = Agent("a", model=ScriptedModel(call("send"), say("done")), tools=[send])
        async with agent.start("go") as run:
            async for event in run.events():
                if type(event).__name__ == "ToolCallStarted":
                    break
            assert run.why_not_stopped() == []
            hold = run.hold(SafePoint.AFTER_TOOLS)
            assert [each.waits_for for each in run.why_not_stopped()] == [("after_tools",)]
            hold.release()
            receipt = run.cancel(SafePoint.AFTER_TOOLS | SafePoint.named("page"), within=60)
            (held,) = run.why_not_stopped()
            assert (held.name, held.kind, held.effect, held.rung) == ("send", "thread", "irreversible", None)
            assert held.call_id == run.ledger[0].call_id
            assert held.waits_for == ("after_tools", "point:page")
            assert held.seconds_left is not None
            assert 50 < held.seconds_left <= 60
            assert "release.wait" in held.stack
            release.set()
            await receipt.wait(5)

    asyncio.run(main())


def test_a_thread_that_has_ended_leaves_the_interpreter_as_it_was() -> None:
    """A profiler in CPython 3.11 would loop for ever if the interpreter still looked for an exception."""
    looks = 0

    def look(_frame: FrameType, _event: str, _arg: object) -> None:
        nonlocal looks
        looks += 1

    @tool
    def add(one: int, two: int) -> int:
        """Add two numbers."""
        return one + two

    agent = Agent("adder", model=ScriptedModel(call("add", one=1, two=2), say("Three.")), tools=[add])
    assert agent.run_sync("Add.").text == "Three."
    sys.setprofile(look)
    try:
        sum(map(abs, range(100)))
        any(each < 0 for each in range(100))
    finally:
        sys.setprofile(None)
    assert looks > 100

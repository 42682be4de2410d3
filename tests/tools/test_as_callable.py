"""A tool as an async function: stopped by its ladder when its caller is cancelled."""

from __future__ import annotations

import asyncio
import inspect
import threading

import pytest

from safepoint import Ladder, ToolContext, tool
from safepoint.errors import ToolDefinitionError, UsageError
from safepoint.testing import check_cancellable, pass_time
from safepoint.tools import as_callable, shell
from tests.virtual import now, virtual


@tool
async def double(number: int, *, twice: bool = False) -> int:
    """Double a number."""
    await asyncio.sleep(0)
    return number * (4 if twice else 2)


@virtual
async def test_it_returns_what_the_tool_returns_and_looks_like_it() -> None:
    function = as_callable(double)
    assert (await function(21), await function(number=1, twice=True)) == (42, 4)
    assert (function.__name__, function.__doc__) == ("double", "Double a number.")
    assert str(inspect.signature(function)) == "(number: int, *, twice: bool = False) -> int"
    with pytest.raises(TypeError, match="number"):
        await function()


@virtual
async def test_its_context_is_no_parameter_and_has_the_deps() -> None:
    @tool
    async def greet(ctx: ToolContext[str], name: str) -> str:
        return f"{ctx.deps} {name}"

    function = as_callable(greet, deps="hello")
    assert list(inspect.signature(function).parameters) == ["name"]
    assert await function("Ann") == "hello Ann"


@virtual
async def test_a_cancelled_caller_gets_its_cancellation_after_the_undo() -> None:
    done: list[str] = []

    async def refund(amount: int) -> None:
        done.append(f"refund {amount}")

    @tool(undo=refund)
    async def pay(amount: int) -> None:
        await pass_time(60)

    task = asyncio.ensure_future(as_callable(pay)(10))
    await pass_time(1)
    task.cancel("enough")
    with pytest.raises(asyncio.CancelledError, match="enough"):
        await task
    assert done == ["refund 10"]


@virtual
async def test_a_tool_that_ignores_its_cancellation_holds_its_caller_as_long_as_the_ladder_allows() -> None:
    release = asyncio.Event()

    @tool
    async def deaf() -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    task = asyncio.ensure_future(as_callable(deaf, ladder=Ladder(task=3))())
    await pass_time(1)
    begun = now()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert now() == begun + 3
    release.set()
    await pass_time(1)


@virtual
async def test_a_time_out_and_a_failure_are_raised() -> None:
    @tool(timeout=2)
    async def slow() -> None:
        await pass_time(60)

    @tool
    async def broken() -> None:
        raise KeyError("no")

    @tool
    async def asking(ctx: ToolContext) -> None:
        await ctx.interrupt("really?")

    with pytest.raises(TimeoutError, match="timed out after 2 s"):
        await as_callable(slow)()
    with pytest.raises(KeyError):
        await as_callable(broken)()
    with pytest.raises(UsageError, match="has none"):
        await as_callable(asking)()
    with pytest.raises(ToolDefinitionError, match="write @tool above"):
        as_callable(test_a_time_out_and_a_failure_are_raised)  # type: ignore[arg-type]  # refused


def test_a_thread_is_told() -> None:
    ended = threading.Event()

    @tool
    def wait(ctx: ToolContext) -> None:
        try:
            while True:
                ctx.check()
        finally:
            ended.set()

    async def main() -> None:
        task = asyncio.ensure_future(as_callable(wait)())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(main())
    assert ended.wait(5)


def test_a_tool_without_a_function_has_the_parameters_of_its_schema() -> None:
    parameters = inspect.signature(as_callable(shell())).parameters
    assert parameters["command"].annotation is str


def test_it_can_be_cancelled_at_every_await() -> None:
    async def scenario() -> None:
        await as_callable(double)(1)

    check_cancellable(scenario).raise_for_failures()

"""A stack tells where a task waits, not only where it began."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from types import coroutine
from typing import TypeAlias

import pytest

from safepoint._core.stacks import task_stack, thread_stack


@coroutine
def old_style(future: asyncio.Future[None]) -> Generator[object]:
    yield from future


async def innermost(future: asyncio.Future[None]) -> None:
    await old_style(future)


async def outermost(future: asyncio.Future[None]) -> None:
    await innermost(future)


def test_a_suspended_task_shows_every_await_down_to_the_innermost() -> None:
    async def look() -> tuple[str, str]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        async with asyncio.TaskGroup() as group:
            task = group.create_task(outermost(future))
            await asyncio.sleep(0)
            waiting = task_stack(task)
            future.set_result(None)
        return waiting, task_stack(task)

    waiting, ended = asyncio.run(look())
    places = [
        waiting.index(line) for line in ("await innermost(future)", "await old_style(future)", "yield from future")
    ]
    assert places == sorted(places)
    assert ended == ""


Waits: TypeAlias = "asyncio.Future[None]"


class Wrapped:
    """Something of its own that is awaited, with a coroutine inside."""

    def __init__(self, future: Waits) -> None:
        self._future = future

    def __await__(self) -> Generator[object, None, None]:
        return innermost(self._future).__await__()


@coroutine
def yields(future: Waits) -> Generator[object]:
    yield from (yielded for yielded in future.__await__())


async def by_generators(future: Waits) -> None:
    await yields(future)


async def by_a_wrapper(future: Waits) -> None:
    await Wrapped(future)


async def waits_when_asked(future: Waits) -> AsyncGenerator[None]:
    await innermost(future)
    yield


async def waits_when_closed(future: Waits) -> AsyncGenerator[None]:
    try:
        yield
    finally:
        await innermost(future)


async def by_a_loop(future: Waits) -> None:
    async for _ in waits_when_asked(future):
        pass


async def by_anext(future: Waits) -> None:
    await anext(waits_when_asked(future), None)


async def by_closing(future: Waits) -> None:
    generator = waits_when_closed(future)
    await anext(generator)
    await generator.aclose()


@pytest.mark.parametrize(
    ("wait", "innermost_frame"),
    [
        (by_generators, "<genexpr>"),
        (by_a_wrapper, "old_style"),
        (by_a_loop, "old_style"),
        (by_anext, "old_style"),
        (by_closing, "old_style"),
    ],
)
def test_the_innermost_await_is_shown_whatever_stands_between(
    wait: Callable[[Waits], Coroutine[object, object, None]], innermost_frame: str
) -> None:
    async def look() -> str:
        future: Waits = asyncio.get_running_loop().create_future()
        async with asyncio.TaskGroup() as group:
            task = group.create_task(wait(future))
            await asyncio.sleep(0)
            stack = task_stack(task)
            future.set_result(None)
        return stack

    assert f"in {innermost_frame}\n" in asyncio.run(look())


def test_the_stack_of_a_thread_is_one_text_and_that_of_no_thread_is_empty() -> None:
    stack = thread_stack(threading.get_ident())
    assert "in test_the_stack_of_a_thread_is_one_text" in stack
    assert all(line.startswith("  ") for line in stack.splitlines())
    assert thread_stack(0) == ""

"""A stack tells where a task waits, not only where it began."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator
from types import coroutine

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


def test_the_stack_of_a_thread_is_one_text_and_that_of_no_thread_is_empty() -> None:
    stack = thread_stack(threading.get_ident())
    assert "in test_the_stack_of_a_thread_is_one_text" in stack
    assert all(line.startswith("  ") for line in stack.splitlines())
    assert thread_stack(0) == ""

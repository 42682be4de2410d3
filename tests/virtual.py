"""Async tests run on the virtual clock, so that time is exact and a test that hangs is a deadlock with a report."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from safepoint._core.supervisor import Supervisor
from safepoint.testing import pass_time
from safepoint.testing.clock import run_virtual

P = ParamSpec("P")
T = TypeVar("T")


def virtual(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:  # Any: what a coroutine yields
    """Run the test on a virtual clock; afterwards nothing of Safepoint may be left on its loop."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        async def body() -> None:
            await test(*args, **kwargs)
            left = asyncio.all_tasks() - {asyncio.current_task()}
            assert not left, f"the test left tasks behind: {left}"
            assert Supervisor.current().roots == {}, "the test left runs behind"

        run_virtual(body)

    return run


def now() -> float:
    """Seconds on the running loop's clock."""
    return asyncio.get_running_loop().time()


async def passes(seconds: float, result: T | None = None) -> T | None:
    """Let virtual time go by; the result, if there is one to give."""
    await pass_time(seconds)
    return result


async def rounds(count: int) -> None:
    """Let the loop go round that often; nothing on the clock changes."""
    for _ in range(count):
        await asyncio.sleep(0)

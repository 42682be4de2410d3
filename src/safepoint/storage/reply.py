"""How a thread of ours answers an event loop: a storage's work goes on whatever becomes of the caller, or of its loop.

Daemon threads of our own, so that a disk or a network that hangs holds neither the loop nor the exit of the process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Generic, TypeAlias, TypeVar

from safepoint._core.clock import current_clock

T = TypeVar("T")


class Reply(Generic[T]):
    """The future that a caller waits for. Make it on the caller's loop; `succeed` and `fail` belong to the thread.

    `is_told`: the reply has come to the loop, also if the caller's future was cancelled before.
    """

    def __init__(self, name: str) -> None:
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[T] = self.loop.create_future()
        self.is_told = False
        self.outside = current_clock().outside(name)

    def ask_again(self) -> asyncio.Future[T]:
        """Another future for the same reply, for a caller whose first one was cancelled. Call it on that loop."""
        self.future = self.loop.create_future()
        return self.future

    def succeed(self, value: T) -> None:
        tell([(self, value, None)])

    def fail(self, error: BaseException) -> None:
        tell([(self, None, error)])

    def settle(self, value: T, error: BaseException | None) -> None:
        """On the loop: the reply has come."""
        self.is_told = True
        if self.future.done():
            return
        if error is None:
            self.future.set_result(value)
        else:
            self.future.set_exception(error)


Answer: TypeAlias = tuple[Reply[Any], Any, BaseException | None]  # Any: replies of every type, each with its value


def tell(answers: Iterable[Answer]) -> None:
    """Answer them all. Those of one loop arrive in one pass of it, so their callers' next units are gathered too."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Answer]] = {}
    for answer in answers:
        by_loop.setdefault(answer[0].loop, []).append(answer)
    for loop, together in by_loop.items():
        with suppress(RuntimeError):  # that loop was closed: its callers are gone
            loop.call_soon_threadsafe(_settle, together)
        for reply, _, _ in together:
            reply.outside.done()


def _settle(answers: list[Answer]) -> None:
    for reply, value, error in answers:
        reply.settle(value, error)

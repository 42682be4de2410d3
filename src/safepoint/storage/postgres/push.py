"""`storage.changes` where the database tells: subscriptions that wait for a push, and poll only while there is none."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from types import TracebackType
from typing import Any

from safepoint._core.clock import current_clock
from safepoint.errors import StoreError
from safepoint.storage.changes import Changes, Subscription, Topic
from safepoint.storage.postgres.listener import WORKER, Listener
from safepoint.storage.postgres.statements import topic
from safepoint.storage.postgres.text_codec import escape

_POLL = 0.25
"""Seconds between two looks while no push can come."""

# Runs a coroutine function on the storage's own loop.
OnThread = Callable[[Callable[[], Coroutine[Any, Any, None]]], Awaitable[None]]  # Any: what it yields
# The same, and its caller does not wait.
Leave = Callable[[Callable[[], Coroutine[Any, Any, None]]], None]  # Any: likewise


class PushedChanges(Changes):
    """`listener`: gives the listener of the storage's thread, once that has begun."""

    def __init__(self, on_thread: OnThread, leave: Leave, listener: Callable[[], Listener]) -> None:
        super().__init__()
        self.on_thread = on_thread
        self.leave = leave
        self.listener = listener

    def offers(self, apps: Iterable[str], every: float) -> Subscription:
        """Of runs of these apps that are free."""
        return self._make([("offer", app) for app in apps], every)

    def _make(self, topics: list[Topic], every: float) -> Subscription:
        return PushedSubscription(self, topics, every)


class PushedSubscription(Subscription):
    """Subscribed when the block is entered: what is committed after that wakes it."""

    def __init__(self, changes: PushedChanges, topics: list[Topic], every: float) -> None:
        super().__init__(changes, topics, None, every)
        self._pushed = changes
        # What a writer of these locks: a write that has not seen this watch is committed before it.
        self._locks = [f"{kind[0]}:{escape(id)}" for kind, id in topics if kind in ("session", "topic")]
        self._runs = [escape(id) for kind, id in topics if kind == "run"]
        self._names = [_name(each) for each in topics]
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __aenter__(self) -> Subscription:
        """Cancellation: as if it had not been entered."""
        self._loop = asyncio.get_running_loop()
        await super().__aenter__()
        try:
            with suppress(StoreError):  # it is polled then; and the first look tells what is wrong
                await self._pushed.on_thread(
                    lambda: self._pushed.listener().add(self._names, self._locks, self._runs, self._wake_from_thread)
                )
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await super().__aexit__(kind, error, trace)
        # Not awaited: no caller depends on the moment when pushes end.
        self._pushed.leave(lambda: self._pushed.listener().remove(self._names, self._wake_from_thread))

    def _wake_from_thread(self) -> None:
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # that loop was closed
                loop.call_soon_threadsafe(self.wake)

    async def _wait(self) -> None:
        """Cancellation: only the waiting ends."""
        outside = current_clock().outside("postgres: changes")
        try:
            if self._pushed.listener().is_listening:
                await self._changed.wait()
            else:
                with suppress(TimeoutError):
                    async with asyncio.timeout(max(self._every, _POLL)):
                        await self._changed.wait()
        finally:
            outside.done()


def _name(each: Topic) -> str:
    kind, id = each
    return WORKER if kind == "worker" else topic(kind[0], escape(id))

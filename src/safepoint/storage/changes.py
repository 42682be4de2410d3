"""How a process learns that something changed: it is told "look again", never what there is to see.

Commits of this process wake the subscriptions of the runs and sessions that they touch. What other processes commit is
noticed by asking the storage, every so often, whether anything was written; a storage that is told by its database has
no need to ask.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import Any, TypeAlias

from safepoint.agent.freeze import TOPIC as FREEZES
from safepoint.storage import operations as op
from safepoint.storage.operations import Operation, Statement
from safepoint.storage.run_records import RunRecord

Topic: TypeAlias = tuple[str, str]
# Which worker owns the run that a request is for is not known where the request is stored: all of them look.
ANY_WORKER = "*"
# Any value that differs after a write.
Stamp: TypeAlias = Callable[[], Awaitable[object]]


class Changes:
    """All subscriptions of one storage."""

    def __init__(self, stamp: Stamp | None = None) -> None:
        self._stamp = stamp
        self._subscriptions: dict[Topic, set[Subscription]] = {}

    def subscribe(
        self,
        *,
        run: str | None = None,
        session: str | None = None,
        worker: str | None = None,
        topic: str | None = None,
        every: float,
    ) -> Subscription:
        named = [("run", run), ("session", session), ("worker", worker and ANY_WORKER), ("topic", topic)]
        return self._make([(kind, id) for kind, id in named if id is not None], every)

    def _make(self, topics: list[Topic], every: float) -> Subscription:
        return Subscription(self, topics, self._stamp, every)

    def publish(self, statements: Iterable[Statement[Any]], results: Iterable[Any]) -> None:  # Any: of every result
        """A unit of work was committed. Call it on the loop of the subscriptions."""
        if self._subscriptions:
            done = zip(statements, results, strict=True)
            for topic in {topic for statement, result in done for topic in topics_of(statement, result)}:
                for subscription in tuple(self._subscriptions.get(topic, ())):
                    subscription.wake()

    def add(self, subscription: Subscription, topics: Iterable[Topic]) -> None:
        for topic in topics:
            self._subscriptions.setdefault(topic, set()).add(subscription)

    def remove(self, subscription: Subscription, topics: Iterable[Topic]) -> None:
        for topic in topics:
            left = self._subscriptions.get(topic, set())
            left.discard(subscription)
            if not left:
                self._subscriptions.pop(topic, None)


class Subscription:
    """`async with storage.changes(run=id) as changes: async for _ in changes: …`.

    It is subscribed from entering the block on, and the first round comes at once, so no change is missed between.
    """

    def __init__(self, changes: Changes, topics: list[Topic], stamp: Stamp | None, every: float) -> None:
        self._changes = changes
        self._topics = topics
        self._stamp = stamp
        self._every = every
        self._seen: object = None
        self._first = True
        self._changed = asyncio.Event()

    async def __aenter__(self) -> Subscription:
        self._changes.add(self, self._topics)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._changes.remove(self, self._topics)

    def wake(self) -> None:
        self._changed.set()

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> None:
        """Cancellation: only the waiting ends."""
        if self._first:
            self._first = False
            if self._stamp is not None:
                self._seen = await self._stamp()
            return
        await self._wait()
        self._changed.clear()

    async def _wait(self) -> None:
        while not self._changed.is_set():
            if self._stamp is None:
                await self._changed.wait()
            else:
                try:
                    async with asyncio.timeout(self._every):
                        await self._changed.wait()
                except TimeoutError:
                    seen, self._seen = self._seen, await self._stamp()
                    if seen != self._seen:
                        return


def topics_of(statement: Statement[Any], result: object) -> list[Topic]:  # Any: of every result
    """What an operation has changed."""
    if isinstance(result, RunRecord) and isinstance(statement, Operation):
        return [("run", result.run_id), ("session", result.session)]
    match statement:
        case op.AddFreeze() | op.RemoveFreeze():
            return [("topic", FREEZES)]
        case op.RequestCancel(run_id):
            return [("run", run_id), ("worker", ANY_WORKER)]
        case (
            op.AppendChanges(session_id)
            | op.ClaimSession(session_id)
            | op.ReleaseSession(session_id)
            | op.DeleteSession(session_id)
            | op.ForgetRuns(session_id)
        ):
            return [("session", session_id)]
        case _:
            return []

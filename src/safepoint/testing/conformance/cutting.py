"""One coroutine, cancelled at one of its own waits: the nth, while it is blocked or when its wake-up is scheduled.

Nothing is recorded beforehand, so code whose waits vary (a network, threads) can be cut too: each cut is one wait
further, until the coroutine ends before its cut is reached. After the first fifty the steps grow longer, so that a loop
of ten thousand waits does not take ten thousand runs.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from functools import partial
from typing import Any, TypeVar

from safepoint.testing.points import Moment

T = TypeVar("T")

MOMENTS = (Moment.BLOCKED, Moment.WOKEN)
_EACH = 50


class Cut:
    """`act` once, at that wait and in that moment. `reached`: the coroutine got there; `landed`: it was cancelled."""

    def __init__(self, wait: int, moment: Moment) -> None:
        self.wait = wait
        self.moment = moment
        self.reached = False
        self.landed = False
        # The ending of the coroutine: the exception it raised, or None if it returned.
        self.ending: BaseException | None = None
        self._waits = 0

    async def watch(self, inner: Awaitable[T], act: Callable[[], object]) -> T:
        """The result of the awaitable. Cancellation: lands inside it."""
        return await _stepped(inner, partial(self._suspended, act), self._thrown)

    async def into(self, inner: Coroutine[Any, Any, object]) -> None:  # Any: what a coroutine yields
        """Cancel the coroutine's own task there, and wait for its end. Cancellation: only the waiting ends."""

        def act() -> None:
            task.cancel()

        task = asyncio.get_running_loop().create_task(self.watch(inner, act))
        await asyncio.wait([task])
        self.ending = asyncio.CancelledError() if task.cancelled() else task.exception()

    def __str__(self) -> str:
        return f"cancelled at wait {self.wait} ({self.moment})"

    def _thrown(self, error: BaseException) -> None:
        self.landed = self.landed or isinstance(error, asyncio.CancelledError)

    def _suspended(self, act: Callable[[], object], waits_for: object) -> None:
        self._waits += 1
        if self._waits != self.wait:
            return
        self.reached = True
        wakes = getattr(waits_for, "add_done_callback", None)
        if self.moment is Moment.WOKEN and wakes is not None:
            wakes(partial(_ignoring, act))  # ahead of the task's own wake-up, which asyncio adds when this step returns
        else:
            asyncio.get_running_loop().call_soon(act)


async def cut_everywhere(
    make: Callable[[], Coroutine[Any, Any, object]],
    then: Callable[[Cut], Coroutine[Any, Any, object]],
) -> None:
    """Make it and cut it at each of its waits; call `then` after each cut. Cancellation: passes to the running cut."""
    for cut in cuts():
        await cut.into(make())
        await then(cut)
        if not cut.reached:
            return


def cuts() -> Iterator[Cut]:
    """A cut at each wait and in each moment; ends after one that was not reached."""
    wait = 0
    while True:
        wait += 1 + wait // _EACH
        for moment in MOMENTS:
            yield Cut(wait, moment)


@types.coroutine
def _stepped(
    inner: Awaitable[T], suspended: Callable[[object], None], thrown: Callable[[BaseException], None]
) -> Generator[Any, Any, T]:  # Any: as in asyncio
    steps = inner.__await__()
    step: Callable[[], Any] = partial(next, steps)
    while True:
        try:
            waits_for = step()
        except StopIteration as end:
            value: T = end.value
            return value
        suspended(waits_for)
        try:
            sent = yield waits_for
        except BaseException as error:
            thrown(error)
            step = partial(_thrown, steps, error)
        else:
            step = partial(_sent, steps, sent)


def _ignoring(act: Callable[[], object], _future: object) -> None:
    act()


def _sent(steps: Generator[Any, Any, Any], value: object) -> Any:  # Any: as in asyncio
    return steps.send(value) if value is not None else next(steps)


def _thrown(steps: Generator[Any, Any, Any], error: BaseException) -> Any:
    return steps.throw(error)

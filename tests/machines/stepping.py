"""A loop that stands still until the test says how far it may go: some rounds, until nothing is ready, or some time.

A round is what asyncio calls one: everything that is ready at its beginning runs, and what that makes ready waits for
the next. So an example decides between which two steps an ask falls, and the same example always falls there again.
Time moves only in `advance`, from timer to timer.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from typing import Any

START = 1000.0
EPOCH = 1_767_225_600.0
MOST_ROUNDS = 5_000


class SteppingLoop(asyncio.SelectorEventLoop):
    """`on_round` is called after every round, `errors` has what nobody caught."""

    virtual = True
    _scheduled: list[asyncio.TimerHandle]  # asyncio's own heap of timers

    def __init__(self) -> None:
        self._now = START
        self._ran = False
        self.rounds = 0
        self.on_round: Callable[[], object] = _nothing
        self.errors: list[str] = []
        super().__init__(_Still(self))
        self.set_exception_handler(self._keep)

    def time(self) -> float:
        return self._now

    def wall(self) -> float:
        return EPOCH + self._now - START

    def round(self) -> None:
        """One round; nothing happens if nothing is ready."""
        self.call_soon(self.stop)
        self._run()

    def settle(self) -> None:
        """Rounds until nothing is ready. Time stands still."""
        self._run()

    def advance(self, seconds: float) -> None:
        """Let time pass, stopping at each timer until nothing is ready there."""
        end = self._now + seconds
        self.settle()
        while self._scheduled and self._scheduled[0].when() <= end:
            self._now = max(self._now, self._scheduled[0].when())
            self.settle()
        self._now = end
        self.settle()

    def dismiss(self) -> None:
        """Close the loop and what it holds."""
        self.run_until_complete(self.shutdown_asyncgens())
        self.close()

    def between(self, *, idle: bool) -> None:
        """Called by the selector between two rounds."""
        self._tell_round()
        if idle:
            self.stop()
            return
        self._ran = True
        if self.rounds > MOST_ROUNDS:
            raise AssertionError(f"the loop is still busy after {MOST_ROUNDS} rounds")

    def _run(self) -> None:
        self.rounds = 0
        self.run_forever()
        self._tell_round()

    def _tell_round(self) -> None:
        if self._ran:
            self._ran = False
            self.rounds += 1
            self.on_round()

    def _keep(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:  # Any: as asyncio has it
        self.errors.append(f"{context.get('message')}: {context.get('exception')!r}")


class _Still(selectors.SelectSelector):
    """A selector that never waits. Asked to wait, it says that nothing is ready."""

    def __init__(self, loop: SteppingLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._loop.between(idle=timeout is None or timeout > 0)
        return []


def _nothing() -> None:
    pass

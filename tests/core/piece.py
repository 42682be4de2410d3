"""A piece of supervised work, and a diary of what happens to it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from safepoint._core.ladder import CUT_AT_ONCE, Ladder, Rung, StopPolicy
from safepoint._core.latch import Latch
from safepoint._core.supervisor import Supervisor
from safepoint._core.work import Work, WorkResult
from tests.virtual import now

Make: TypeAlias = Callable[[], Awaitable[object]]


class Piece:
    """Begins the work at once. `rungs` has each rung with the seconds since the beginning; `ends` counts its ends."""

    def __init__(
        self,
        make: Make,
        *,
        stop_policy: StopPolicy = CUT_AT_ONCE,
        ladder: Ladder | None = None,
        limit: float | None = None,
    ) -> None:
        self.began = now()
        self.rungs: list[tuple[str, float]] = []
        self.ends: list[float] = []
        self.flags = 0
        self._over = Latch()
        self.work: Work[object] = Supervisor.current().begin(
            make,
            name="piece",
            path="test/piece",
            ladder=ladder or Ladder(),
            stop_policy=stop_policy,
            on_end=self._ended,
            limit=limit,
        )
        self.work.on_rung = self._rung
        self.work.on_flag = self._flag

    async def outcome(self) -> WorkResult[object]:
        """What came of it, as soon as that is known."""
        await self._over.wait()
        await settled()
        assert self.work.outcome is not None
        assert len(self.ends) == 1, "the end is told exactly once"
        return self.work.outcome

    @property
    def age(self) -> float:
        return round(now() - self.began, 6)

    def _rung(self, rung: Rung) -> None:
        assert self.work.rung is rung
        self.rungs.append((rung.value, self.age))

    def _flag(self) -> None:
        self.flags += 1

    def _ended(self) -> None:
        assert self.work.outcome is not None, "the outcome is recorded before it is told"
        self.ends.append(self.age)
        self._over.set()


async def settled() -> None:
    """Until everything that is ready has run; no time passes."""
    for _ in range(10):
        await asyncio.sleep(0)


async def for_ever() -> None:
    await asyncio.get_running_loop().create_future()


def stubborn(seconds: float, result: object = "late") -> Make:
    """Work that swallows every cancellation until its time is over."""

    async def work() -> object:
        end = now() + seconds
        while now() < end:
            try:
                await asyncio.sleep(end - now())
            except asyncio.CancelledError:
                continue
        return result

    return work

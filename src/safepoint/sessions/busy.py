"""What happens to a message for a session whose run is live.

| policy    | the live run                         | then                     |
|-----------|--------------------------------------|--------------------------|
| reject    | untouched                            | `SessionBusy` is raised  |
| queue     | untouched                            | runs after it, in order  |
| steer     | the message joins it                 | its result is returned   |
| preempt   | asked to stop at ANY safe point      | runs                     |
| interrupt | stopped NOW                          | runs                     |
| rollback  | stopped NOW, and its turn taken back | runs                     |
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, Literal, TypeAlias

from safepoint._core.latch import Latch
from safepoint._core.points import SafePoint
from safepoint._core.reasons import Reason, Source
from safepoint.agent.agent import NO_DEPS, Agent
from safepoint.agent.result import OutT, RunResult
from safepoint.agent.run import Run
from safepoint.agent.steering import SteerOutcome
from safepoint.errors import SessionBusy
from safepoint.history.parts import Prompt
from safepoint.sessions.session import Session
from safepoint.tools.context import DepsT

IfBusy: TypeAlias = Literal["reject", "queue", "steer", "preempt", "interrupt", "rollback"]
_POLICIES = ("reject", "queue", "steer", "preempt", "interrupt", "rollback")


class Delivery(StrEnum):
    """What became of a message."""

    RAN = "ran"
    QUEUED = "queued"
    JOINED = "joined"
    PREEMPTED = "preempted"


@dataclass(frozen=True, slots=True)
class Sent(Generic[OutT]):
    """How the message was delivered, and the result of the run that answered it."""

    delivery: Delivery
    result: RunResult[OutT]


class Sender:
    """Sends messages to one session, by policy. Keep one for each session: it keeps the queue in order."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._queue: deque[Latch] = deque()

    async def send(
        self, agent: Agent[DepsT, OutT], prompt: Prompt, *, if_busy: IfBusy = "reject", deps: DepsT = NO_DEPS
    ) -> Sent[OutT]:
        """Deliver the message and wait for its answer.

        Cancellation: a message that waits is taken out of the queue; a run that answers it is stopped NOW.
        """
        if if_busy not in _POLICIES:
            raise ValueError(f"if_busy={if_busy!r}: write one of {', '.join(map(repr, _POLICIES))}")
        delivery = Delivery.RAN
        while (live := self.session.live) is not None or self._queue:
            if if_busy == "reject":
                raise SessionBusy(f"a run of the session {self.session.id!r} is live")
            if if_busy == "steer" and live is not None:
                if await live.steer(prompt).wait() is SteerOutcome.JOINED:
                    return Sent(Delivery.JOINED, await live.wait())
                continue
            if if_busy == "queue" or live is None:
                await self._turn()
                delivery = Delivery.QUEUED
                break
            await self._stop(live, if_busy)
            delivery = Delivery.PREEMPTED
        try:
            return Sent(delivery, await agent.run(prompt, session=self.session, deps=deps))
        finally:
            self._next()

    async def _turn(self) -> None:
        """Wait in line. Cancellation: leaves the line."""
        place = Latch()
        self._queue.append(place)
        try:
            if self._queue[0] is place and self.session.live is not None:
                self.session.live.node.ended.when_set(place.set)
            await place.wait()
        except BaseException:
            self._queue.remove(place)
            self._next()
            raise
        self._queue.remove(place)

    def _next(self) -> None:
        if self._queue and self.session.live is None:
            self._queue[0].set()

    async def _stop(self, live: Run[Any, Any], if_busy: IfBusy) -> None:  # Any: a run of any agent
        at = SafePoint.ANY if if_busy == "preempt" else SafePoint.NOW
        why = Reason("a new message came", Source.PREEMPT)
        await live.cancel(at, recursive=True, reason=why).wait()
        if if_busy == "rollback":
            await self.session.rewind()

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
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Generic, Literal, TypeAlias, TypeVar

from safepoint._core.latch import Latch
from safepoint._core.points import SafePoint
from safepoint._core.reasons import Reason, Source
from safepoint.agent.base import NO_DEPS, BaseAgent, unless_failed
from safepoint.agent.result import OutT, RunResult
from safepoint.agent.run import Run
from safepoint.agent.steering import SteerOutcome
from safepoint.errors import SessionBusy
from safepoint.history.parts import Prompt
from safepoint.sessions.session import Session
from safepoint.tools.context import DepsT

T = TypeVar("T")
IfBusy: TypeAlias = Literal["reject", "queue", "steer", "preempt", "interrupt", "rollback"]
_STOPS = {"preempt": SafePoint.ANY, "interrupt": SafePoint.NOW, "rollback": SafePoint.NOW}
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


@dataclass(eq=False, slots=True)
class _Place:
    """A message, or a change, that waits for its turn. `at`: where what runs before it is asked to stop, if it is."""

    at: SafePoint | None = None
    is_change: bool = False
    granted: Latch = field(default_factory=Latch)


class SessionDispatcher:
    """Sends messages to one session, by policy. Keep one for each session: it keeps the queue in order.

    Invariant: from the moment a message may run until its run has ended it holds the turn, and one message holds it.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        # Those that preempt come first, in their order, then those that wait.
        self._queue: deque[_Place] = deque()
        self._held = False
        self._changing = False
        self._run: Run[Any, Any] | None = None  # Any: a run of any agent

    async def send(
        self, agent: BaseAgent[DepsT, OutT], prompt: Prompt, *, if_busy: IfBusy = "reject", deps: DepsT = NO_DEPS
    ) -> Sent[OutT]:
        """Deliver the message and wait for its answer.

        Cancellation: a message that waits is taken out of the queue; a run that answers it is stopped NOW.
        """
        _check(if_busy)
        sent = await self.deliver(agent.start(prompt, session=self.session, deps=deps), prompt, if_busy=if_busy)
        unless_failed(sent.result)
        return sent

    async def deliver(
        self,
        run: Run[DepsT, OutT],
        prompt: Prompt,
        *,
        if_busy: IfBusy = "reject",
        on_turn: Callable[[], Awaitable[object]] | None = None,
        on_over: Callable[[], Awaitable[object]] | None = None,
        on_joined: Callable[[Run[Any, Any]], object] | None = None,  # Any: as above
    ) -> Sent[OutT]:
        """As `send`, for a run of this session that was made and not started; its result also if it failed.

        `on_turn` is awaited before the run starts, `on_over` when it has ended and before another message has the turn;
        `on_joined` is told which run the message has joined instead.
        Cancellation: as for `send`. A run that never had its turn is discarded.
        """
        _check(if_busy)
        try:
            delivery = Delivery.RAN
            if self.busy:
                live = self._live
                if if_busy == "reject":
                    raise SessionBusy(f"a run of the session {self.session.id!r} is live")
                if if_busy == "steer" and live is not None and await _joined(live, prompt, on_joined):
                    return Sent(Delivery.JOINED, await live.wait())
                at = _STOPS.get(if_busy)
                delivery = Delivery.QUEUED if at is None else Delivery.PREEMPTED
                await self._turn(_Place(at))
            elif self._changing:
                await self._turn(_Place())
            else:
                self._held = True
            try:
                if delivery is Delivery.PREEMPTED and if_busy == "rollback":
                    await self.session.rewind()
                if on_turn is not None:
                    await on_turn()
                result = await self._answer(run)
                if on_over is not None:
                    await on_over()
                return Sent(delivery, result)
            finally:
                self._held = False
                self._next()
        finally:
            run.discard()

    async def between(self, change: Callable[[], Awaitable[T]]) -> T:
        """Change the session while no run of it can begin; messages that come meanwhile wait, and none is refused.

        Raises `SessionBusy` if one is live or waits. Cancellation: as of the change, which may not have begun.
        """
        if self.busy:
            raise SessionBusy(f"a run of the session {self.session.id!r} is live")
        if self._changing:
            await self._turn(_Place(is_change=True))
        self._held = self._changing = True
        try:
            return await change()
        finally:
            self._held = self._changing = False
            self._next()

    @property
    def busy(self) -> bool:
        """Would a message have to wait for a run now?"""
        held = self._held and not self._changing
        return held or self.session.live is not None or not all(place.is_change for place in self._queue)

    @property
    def _live(self) -> Run[Any, Any] | None:  # Any: as above
        """The run that holds the session, also if it came another way, or has only just been sent."""
        return self._run or self.session.live

    async def _answer(self, run: Run[DepsT, OutT]) -> RunResult[OutT]:
        """Cancellation: stops the run NOW, waits for it to close itself, then goes on."""
        self._run = run
        try:
            run.launch()
            for place in self._queue:
                _stop(run, place)
            await run.join()
        finally:
            self._run = None
        return run.result

    async def _turn(self, place: _Place) -> None:
        """Wait in line. Cancellation: leaves the line, or hands on the turn that has just come."""
        ahead = sum(other.at is not None for other in self._queue) if place.at is not None else len(self._queue)
        self._queue.insert(ahead, place)
        live = self._live
        if live is not None:
            _stop(live, place)
            live.node.ended.when_set(self._next)
        self._next()
        try:
            await place.granted.wait()
        except BaseException:
            if place in self._queue:
                self._queue.remove(place)
            else:
                self._held = self._changing = False
                self._next()
            raise

    def _next(self) -> None:
        if self._queue and not self._held and self.session.live is None:
            place = self._queue.popleft()
            self._held, self._changing = True, place.is_change
            place.granted.set()


def _check(if_busy: IfBusy) -> None:
    if if_busy not in _POLICIES:
        raise ValueError(f"if_busy={if_busy!r}: write one of {', '.join(map(repr, _POLICIES))}")


async def _joined(
    live: Run[Any, Any],  # Any: a run of any agent
    prompt: Prompt,
    on_joined: Callable[[Run[Any, Any]], object] | None,  # Any: as above
) -> bool:
    """Whether the message has joined that run. Cancellation: the message is taken back, unless it has joined."""
    steered = live.steer(prompt)
    try:
        await steered.wait()
    finally:
        steered.withdraw()
        has_joined = steered.outcome is SteerOutcome.JOINED
        if has_joined and on_joined is not None:
            on_joined(live)
    return has_joined


def _stop(run: Run[Any, Any], place: _Place) -> None:  # Any: a run of any agent
    if place.at is not None:
        run.node.cancel(place.at, recursive=True, reason=Reason("a new message came", Source.PREEMPT))

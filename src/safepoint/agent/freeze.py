"""The switch: what may not begin now, for many runs at once.

    freeze ──▶ no run, tool call or model call that it covers begins; what is under way goes on to its end, or is
               asked to stop at the points that the freeze names
    thaw   ──▶ every run that waits goes on from where it waits

A run looks at its gate where work begins, and nowhere else: before its first step, before each model call, before each
tool call. Without a freeze that look reads one empty tuple.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from threading import RLock
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from msgspec import field

from safepoint._core.points import Level, SafePoint, check_point
from safepoint._core.reasons import Reason, Source
from safepoint._core.supervisor import Supervisor
from safepoint._core.wake import call_soon
from safepoint._values import Value
from safepoint.errors import StoreError

if TYPE_CHECKING:
    from safepoint.agent.base import BaseAgent
    from safepoint.agent.run import Run

    AnyAgent: TypeAlias = BaseAgent[Any, Any]  # Any: agents of every kind
    AnyRun: TypeAlias = Run[Any, Any]  # Any: runs of every agent

_log = logging.getLogger("safepoint")

TOPIC = "freezes"
"""What `storage.changes(topic=…)` calls the freezes of a storage."""

_GOODBYE = 1.0


def _new_id() -> str:
    return f"frz_{uuid.uuid4().hex[:12]}"


class Freeze(Value, frozen=True):
    """What may not begin until it is thawed, and why: `Freeze("bad prompt", app="shop", tool="pay")`.

    `app`, `user`: only in runs of theirs. `tool`, `model`: only calls of that tool and of that model; without either,
    nothing begins: no run, no tool call, no model call. `stops_at`: the points at which live runs are asked to stop,
    as `("any",)`; without any they wait where they next would begin something. `within`: seconds after which a stop at
    a safe point becomes NOW. `by`: who froze it; `at`: when, in seconds since 1970.
    """

    reason: str
    app: str | None = None
    user: str | None = None
    tool: str | None = None
    model: str | None = None
    stops_at: tuple[str, ...] = ()
    within: float | None = None
    by: str = ""
    at: float = field(default_factory=time.time)
    id: str = field(default_factory=_new_id)

    def __post_init__(self) -> None:
        """Raises ValueError for what could not be obeyed."""
        if not isinstance(self.reason, str) or not self.reason.strip():  # pyright: ignore[reportUnnecessaryIsInstance]  # untyped callers
            raise ValueError(f"Freeze({self.reason!r}): say why, it is told wherever a run waits")
        for name in ("app", "user", "tool", "model"):
            value: object = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value):
                raise ValueError(f"Freeze(…, {name}={value!r}): write a name, or leave it out for all")
        if self.stops_at:
            point = SafePoint.parse(*self.stops_at)
            if self.within is not None and point.level is not Level.SAFE:
                raise ValueError(f"within={self.within!r} is for a safe point, and {point!r} waits for nothing")
        elif self.within is not None:
            raise ValueError(f"within={self.within!r} is for runs that stop: name the points in stops_at")

    @property
    def is_total(self) -> bool:
        """Whether it holds everything of the runs that it covers, and not only one tool or model."""
        return self.tool is None and self.model is None

    @property
    def point(self) -> SafePoint | None:
        """Where live runs are to stop; None if they wait."""
        return SafePoint.parse(*self.stops_at) if self.stops_at else None

    def covers(self, app: str, user: str) -> bool:
        return self.app in (None, app) and self.user in (None, user)

    def stop_reason(self) -> Reason:
        return Reason(f"frozen: {self.reason}", Source.FREEZE, self.by or None)


class FreezeList(Protocol):
    """The freezes of a storage: `storage.freezes`. Cancellation of each method: only the waiting ends."""

    async def add(self, freeze: Freeze) -> None:
        """Store it, in place of one with the same id."""
        ...

    async def remove(self, id: str) -> bool:
        """Whether it was there."""
        ...

    async def all(self) -> list[Freeze]:
        """Oldest first."""
        ...


class FreezeStorage(Protocol):
    """What a switch needs of a storage to follow it."""

    @property
    def freezes(self) -> FreezeList: ...

    def changes(
        self, *, topic: str | None = None, every: float = 0.05
    ) -> AbstractAsyncContextManager[AsyncIterator[None]]: ...


class Switch:
    """Freezes and thaws the runs of these agents, and every run that is given it: `agent.run(…, switch=switch)`.

    Runs inside a run are frozen with it, whatever their agents. Every method may be called from any thread, task or
    signal handler. `follow` makes it do what a storage says, so that a freeze survives restarts and holds in every
    process that shares the storage.
    """

    def __init__(self, *agents: AnyAgent) -> None:
        for agent in agents:
            agent.switch = self
        self.freezes: tuple[Freeze, ...] = ()
        # Guards the swap of the tuple, in which nothing waits and no callback runs.
        self._swap = RLock()
        self._listeners: dict[object, Callable[[], object]] = {}
        self._live: dict[AnyRun, Gate] = {}

    def freeze(
        self,
        reason: str,
        *,
        app: str | None = None,
        user: str | None = None,
        tool: str | None = None,
        model: str | None = None,
        at: SafePoint | None = None,
        within: float | None = None,
    ) -> Freeze:
        """From now on nothing that it covers begins. `at`: where live runs stop; without it they wait."""
        points = () if at is None else tuple(sorted(check_point(at).places))
        made = Freeze(reason, app, user, tool, model, points, within)
        self.add(made)
        return made

    def add(self, freeze: Freeze) -> None:
        """As `freeze`, with one that was made before."""
        with self._swap:
            kept = [each for each in self.freezes if each.id != freeze.id]
            self.put((*kept, freeze))

    def thaw(self, id: str | None = None) -> list[Freeze]:
        """Take back the freeze with that id, or all of them; returns those that were there."""
        with self._swap:
            gone = [each for each in self.freezes if id in (None, each.id)]
            self.put(tuple(each for each in self.freezes if each not in gone))
        return gone

    def put(self, freezes: Iterable[Freeze]) -> None:
        """These are all freezes from now on. What waits for another one goes on; live runs hear of new ones."""
        with self._swap:
            before, self.freezes = self.freezes, tuple(freezes)
            new = [each for each in self.freezes if each not in before]
        if self.freezes == before:
            return
        for freeze in new:
            for run, gate in tuple(self._live.items()):
                if freeze.stops_at and gate.is_covered_by(freeze) and (freeze.is_total or run.is_calling(freeze)):
                    stop_for(run, freeze)
        for tell in tuple(self._listeners.values()):
            tell()

    def of(self, *, app: str, user: str = "") -> Gate:
        """The switch as runs of that app and user see it."""
        return Gate(self, app, user)

    @contextmanager
    def telling(self, tell: Callable[[], object]) -> Generator[None]:
        """Call it after every change, in the thread that makes the change."""
        mark = object()
        self._listeners[mark] = tell
        try:
            yield
        finally:
            del self._listeners[mark]

    def join(self, run: AnyRun, gate: Gate) -> None:
        """From now on a freeze that stops live runs asks this one too."""
        self._live[run] = gate

    def leave(self, run: AnyRun) -> None:
        """It has ended, or was part of another run."""
        self._live.pop(run, None)

    @asynccontextmanager
    async def follow(self, storage: FreezeStorage, *, every: float = 0.05) -> AsyncGenerator[Switch]:
        """Inside the block the freezes are those of the storage: `await storage.freezes.add(Freeze("why"))`.

        `every`: how often a storage looks that is not told by others. Raises `StoreError` if they cannot be read at
        first; a storage that fails later leaves the freezes as they were. Cancellation: nothing is followed any more.
        """
        self.put(await storage.freezes.all())
        task = Supervisor.current().spawn(self._follow(storage, every), "switch", None)
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.wait({task}, timeout=_GOODBYE)

    async def _follow(self, storage: FreezeStorage, every: float) -> None:
        """Cancellation: the freezes stay as they are."""
        while True:
            try:
                async with storage.changes(topic=TOPIC, every=every) as changes:
                    async for _ in changes:
                        self.put(await storage.freezes.all())
            except StoreError:
                _log.warning("the freezes could not be read; those that are known stay", exc_info=True)
            await asyncio.sleep(every)

    def __repr__(self) -> str:
        return f"<Switch with {len(self.freezes)} freezes>"


class Gate:
    """The switch as one run and the runs inside it see it. `what`: the freeze in the way, or None."""

    __slots__ = ("app", "switch", "user")

    def __init__(self, switch: Switch, app: str, user: str) -> None:
        self.switch = switch
        self.app = app
        self.user = user

    def is_covered_by(self, freeze: Freeze) -> bool:
        return freeze.covers(self.app, self.user)

    def of_run(self) -> Freeze | None:
        return next((each for each in self.switch.freezes if each.is_total and self.is_covered_by(each)), None)

    def of_stopped(self) -> Freeze | None:
        """For a run that a freeze has stopped: it would only stop again, whatever of it is frozen."""
        return next(iter(self._in_force()), None)

    def of_tool(self, name: str) -> Freeze | None:
        return next((each for each in self._in_force() if each.is_total or each.tool == name), None)

    def of_model(self, *names: str) -> Freeze | None:
        return next((each for each in self._in_force() if each.is_total or each.model in names), None)

    def _in_force(self) -> Iterable[Freeze]:
        return (each for each in self.switch.freezes if self.is_covered_by(each))

    async def opened(self, find: Callable[[], Freeze | None]) -> None:
        """Wait until `find` finds no freeze. Cancellation: only the waiting ends."""
        loop, changed = asyncio.get_running_loop(), asyncio.Event()
        with self.switch.telling(lambda: call_soon(loop, changed.set)):
            while find() is not None:
                await changed.wait()
                changed.clear()


def stop_for(run: AnyRun, freeze: Freeze) -> None:
    """Ask a run to stop as the freeze says. It leaves a checkpoint, and can go on once the freeze is over."""
    point = freeze.point
    assert point is not None
    run.node.cancel(point, within=freeze.within, recursive=True, reason=freeze.stop_reason())

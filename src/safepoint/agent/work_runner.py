"""Performs a run's work: everything that may wait is a supervised piece of work, and the run waits for a wake-up.

Work begins in the step that asks for it: work that needs no turn of the loop takes none, and the run continues at once.

Invariant: the run's own task suspends only in `wait` and `give_way`. NOW and FORCE reach the current piece of work
through `push`; work that they do not stop is on the orphan list before `perform` returns.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextvars import Context, copy_context
from functools import partial
from typing import Any, TypeVar

from msgspec.structs import replace

from safepoint._core.asks import Ask
from safepoint._core.holds import Stay
from safepoint._core.ladder import Rung
from safepoint._core.points import BETWEEN, HELD, Level, SafePoint
from safepoint._core.reasons import Reason, Source
from safepoint._core.work import Abandoned, Cut, Failed, NeverRan, Work, WorkResult
from safepoint.agent.checkpoint import OpenCall, Question
from safepoint.agent.events import CancelRequested, HoldEnded, HoldStarted, HookFailed, RungReached
from safepoint.agent.freeze import Freeze
from safepoint.agent.hooks import (
    WORDS_UNWRAPPED,
    hook_failure,
    in_context,
    is_being_cut,
    is_its_own,
    leaves,
    overridden,
)
from safepoint.agent.run_context import RunContext
from safepoint.agent.tool_context import ToolContext
from safepoint.errors import AskPerson, StopTool
from safepoint.history.rendering import render_error
from safepoint.tools.call_state import CallState

T = TypeVar("T")

# Asks announced without a pause: each emits an event and may begin hooks, and other tasks on the loop must not wait.
ANNOUNCED_AT_ONCE = 64

_log = logging.getLogger("safepoint")


class WorkRunner:
    """Performs a run's work, one piece at a time, with hooks beside it."""

    def __init__(self, record: RunContext) -> None:
        self._record = record
        self._node = record.node
        self.work: Work[object] | None = None
        # Work on the run's own record: FORCE gives it the time that a sub-agent has to record its end.
        self._owed: Work[object] | None = None
        # Hooks that hear of an ask. They run beside the work, do not delay it, and are awaited after the end.
        self._asides: list[Work[None]] = []
        # How far the log of asks was announced, and which asks were announced ahead of their turn.
        self._announced = 0
        self._announced_ahead: set[str] = set()
        # Pushes the rest when NOW or FORCE comes: the children of a composite.
        self.push_more: Callable[[Level], object] = _nothing_for
        # Whether the run's own task has suspended in this step.
        self.has_waited = False
        # Work is begun in the run's context, even where a foreign ask or timer begins it.
        self._context = Context()

    def open(self) -> None:
        """From now on announce asks and push the current work. Call it in the run's own task."""
        self._context = copy_context()
        self._node.on_push = self._push
        self._node.on_change = self._changed
        self._changed()

    def works(self) -> Iterator[Work[object]]:
        """The work that runs now; hooks that only hear of an ask are left out, as they do not delay the run."""
        for work in dict.fromkeys((self.work, self._owed)):
            if work is not None and not work.ended:
                yield work

    async def wait(self) -> None:
        """Wait until something changes. Cancellation: foreign code cancelled the task; it counts as the caller's."""
        if self._record.wakeup.is_rung:  # work may have ended in its first step
            self._record.wakeup.clear()
            return
        self.has_waited = True
        try:
            await self._record.wakeup.wait()
        except asyncio.CancelledError:
            self._cancelled()

    async def give_way(self) -> None:
        """Let the loop turn once if it has not since the last call. Cancellation: as in `wait`.

        A model and tools that never suspend would otherwise hold the loop for the whole run, and no ask could stop it.
        """
        if not self.has_waited:
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                self._cancelled()
        self.has_waited = False

    async def pass_gate(self, find: Callable[[], Freeze | None]) -> bool:
        """Wait until no freeze is in the way; False if the run is to stop. Cancellation: as in `wait`."""
        record, gate = self._record, self._record.gate
        if gate is None:
            return True
        for meter in record.meters():
            meter.suspend()
        with gate.switch.telling(self._ring):
            while (freeze := find()) is not None:
                record.obey(freeze)
                # No work is under way here, so every request to stop is carried out.
                if self._node.check_safe_point(BETWEEN) is not None:
                    break
                await self.wait()
        for meter in record.meters():
            meter.go_on()
        record.held = None
        return self._node.stop is None

    async def wait_at(self, freeze: Freeze, *, idle: bool) -> None:
        """Wait until something changes, a thaw included. `idle`: no call runs. Cancellation: as in `wait`."""
        gate = self._record.gate
        assert gate is not None
        with gate.switch.telling(self._ring):
            for meter in self._record.meters() if idle else ():
                meter.suspend()
            if freeze in gate.switch.freezes:
                await self.wait()
            for meter in self._record.meters() if idle else ():
                meter.go_on()

    def _ring(self) -> None:
        self._node.call_soon(self._record.wakeup.ring)

    def _cancelled(self) -> None:
        self._node.cancel(SafePoint.NOW, reason=Reason("the task of the run was cancelled", Source.CALLER))

    async def stand(self, *places: str, in_work: bool = False) -> None:
        """The run stands at these places: wait here for as long as it is held. Cancellation: as in `wait`.

        `in_work`: a piece of its work waits, not the run's own task.
        """
        node, record = self._node, self._record
        if not node.has_holds:
            return
        stay = node.stand(*record.standing_at(node, *places))
        while stay is not None:
            for meter in record.meters():
                meter.suspend()
            record.emit(HoldStarted, place=stay.held.place, reason=stay.held.reason)
            stay.over.when_set(record.wakeup.ring)
            while not stay.over.is_set:
                await (stay.over.wait() if in_work else self.wait())
            for meter in record.meters():
                meter.go_on()
            # Every request that ended the hold stops the run here: nothing is under way.
            stopped = (node.check_safe_point(stay.held.place) or node.check_safe_point(HELD)) is not None
            record.emit(HoldEnded, place=stay.held.place, stopped=stopped)
            stay = node.stand(*record.standing_at(node, *places))

    async def perform(
        self,
        make: Callable[[], Awaitable[T]],
        name: str,
        *,
        owed: bool = False,
        meanwhile: Callable[[], object] | None = None,
    ) -> WorkResult[T]:
        """Do one piece of work, unless NOW or FORCE stands already. `owed`: it is part of the run's own record.

        `meanwhile`: called whenever the run wakes while the work goes on.

        Cancellation: as in `wait`.
        """
        if not self._node.may_start():
            return NeverRan()
        work: Work[T] = self._prepare(name)
        work.may_start = self._node.may_start
        self.work = work  # type: ignore[assignment]  # only ever stopped, its value is read from `work`
        self._owed = self.work if owed else None
        try:
            self._record.supervisor.start(work, make, self._context.copy())
            return await self._outcome(work, meanwhile)
        finally:
            self.work = None

    async def perform_last(self, make: Callable[[], Awaitable[T]], name: str) -> WorkResult[T]:
        """Do work that is due although the run is stopped, bounded, also for FORCE. Cancellation: as in `wait`."""
        work = self._begin(make, name, self._record.ladder.task)
        self._owed = work  # type: ignore[assignment]  # as above
        if self._node.pushed is Level.FORCE:
            self._hurry()
        return await self._outcome(work)

    async def perform_due(self, make: Callable[[], Awaitable[T]], name: str) -> WorkResult[T]:
        """Do work that a stopped run owes too: if NOW cuts it, it is repeated once. Cancellation: as in `wait`."""
        outcome = await self.perform(make, name, owed=True)
        return await self.perform_last(make, name) if isinstance(outcome, Cut | NeverRan) else outcome

    async def run_hooks(self, name: str, *args: object) -> BaseException | None:
        """Run all hooks of this name as one piece of work; how one of them left, if any. Cancellation: as in `wait`."""
        outcome = await self.perform(partial(self.call_hooks, name, *args), name)
        if not isinstance(outcome, Failed):
            return None
        if leaves(name, outcome.error):
            return outcome.error
        self._hook_failed(name, outcome.error)
        return None

    @property
    def tells_hooks(self) -> bool:
        """Whether hooks that hear of an ask still run."""
        return bool(self._asides)

    async def tell_the_end(self, result: object, *, stopped: bool) -> None:
        """Everything is recorded: wait, bounded, for the hooks that hear of it. Cancellation: as in `wait`."""
        if stopped and self.has_hooks("on_stopped"):
            self._beside("on_stopped", result)
        for aside in self._asides:
            outcome = await self._outcome(aside)
            if isinstance(outcome, Failed):
                self._hook_failed(aside.name, outcome.error)
            elif isinstance(outcome, Abandoned):  # too late for the result's list
                _log.warning("the hook %s of %s does not end: %r", aside.name, self._node.path, outcome.orphan)

    async def quieten(self) -> None:
        """End the runs that hooks have started: none may run below a sealed run. Cancellation: as in `wait`."""
        if not self._node.children:
            return
        clock, ring, ladder = self._record.supervisor.clock, self._record.wakeup.ring, self._record.ladder
        limit = clock.call_at(clock.now() + (ladder.kill if self._node.pushed is Level.FORCE else ladder.cap), ring)
        for child in tuple(self._node.children):
            child.cancel(reason=Reason("the run that started it has ended", Source.PARENT))
            child.ended.when_set(lambda: self._node.call_soon(ring))
        while self._node.children and clock.now() < limit.when():
            await self.wait()
        limit.cancel()
        for child in tuple(self._node.children):
            self._record.leave(child)

    async def _outcome(self, work: Work[T], meanwhile: Callable[[], object] | None = None) -> WorkResult[T]:
        while work.outcome is None:
            await self.wait()
            if meanwhile is not None:
                meanwhile()
        if isinstance(work.outcome, Abandoned):
            self._record.name_orphan(work.outcome.orphan)
        self._record.heed(work.outcome)
        work.let_go()
        return work.outcome

    def _begin(self, make: Callable[[], Awaitable[T]], name: str, limit: float | None = None) -> Work[T]:
        work: Work[T] = self._prepare(name, limit)
        self._record.supervisor.start(work, make, self._context.copy())
        return work

    def _prepare(self, name: str, limit: float | None = None) -> Work[Any]:  # Any: known at its start
        record = self._record
        work = record.supervisor.prepare(
            name=name,
            path=f"{record.node.path}/{name}",
            ladder=record.ladder,
            on_end=record.wakeup.ring,
            limit=limit,
        )
        work.on_rung = partial(self._tell_rung, name)
        return work

    def _push(self, level: Level) -> None:
        self._announce_push(level)
        self._wake_if_held()
        force = level is Level.FORCE
        if self.work is not None:
            self.work.stop(force=force and self.work is not self._owed)
        if force:
            self._hurry()
        self.push_more(level)

    def _hurry(self) -> None:
        if self._owed is not None:
            clock, ladder = self._record.supervisor.clock, self._record.ladder
            self._owed.stop_at(clock.now() + ladder.kill, force=True)

    def _tell_rung(self, name: str, rung: Rung) -> None:
        self._record.emit(RungReached, name=name, rung=rung)

    def _changed(self) -> None:
        """The node read its log: announce new asks. The effects of an ask wake the run by themselves."""
        if self._record.held_back:
            self._record.wakeup.ring()
        asks, self._announced = self._node.log.asks_from(self._announced, most=ANNOUNCED_AT_ONCE)
        for ask in asks:
            if ask.id not in self._announced_ahead:
                self._announce(ask)
        if self.is_announcing:
            self._node.wake()
        self._wake_if_held()

    def _wake_if_held(self) -> None:
        """A run that waits for a thaw has no work whose end would wake it."""
        if self._record.held is not None:
            self._record.wakeup.ring()

    @property
    def is_announcing(self) -> bool:
        """Whether there are asks that were not announced yet."""
        return self._announced < len(self._node.log)

    def _announce_push(self, level: Level) -> None:
        """Announce an ask before its effects, even if thousands wait before it."""
        pushing = self._node.log.first_ask(level, self._announced)
        if pushing is not None and pushing.id not in self._announced_ahead:
            self._announced_ahead.add(pushing.id)
            self._announce(pushing)

    def _announce(self, ask: Ask) -> None:
        self._record.emit(CancelRequested, ask=ask)
        if self.has_hooks("on_cancel_requested"):
            self._beside("on_cancel_requested", ask)

    async def announce_all(self) -> None:
        """Announce every ask made so far, before the end is announced. Cancellation: as in `wait`."""
        length = len(self._node.log)
        self._changed()
        while self._announced < length:
            self._node.call_soon(self._record.wakeup.ring)
            await self.wait()
            self._changed()

    # -- hooks ---------------------------------------------------------------------------------------------------------

    def has_hooks(self, name: str) -> bool:
        hooks = self._record.agent.hooks
        return bool(hooks) and any(overridden(each, name) for each in hooks)

    def _beside(self, name: str, *args: object) -> None:
        self._asides.append(self._begin(partial(self.call_hooks, name, *args), name, self._record.ladder.task))

    async def call_hooks(self, name: str, *args: object) -> None:
        """Call all hooks of this name, inside a piece of work. Cancellation: cuts the hook."""
        context = self._context_of(name)
        for hooks in self._record.agent.hooks:
            if not overridden(hooks, name) or is_being_cut():
                continue
            try:
                with in_context(context), WORDS_UNWRAPPED:
                    answer: object = getattr(hooks, name)(self._record.run, *args)
                    if inspect.isawaitable(answer):
                        await answer
            except BaseException as error:
                if leaves(name, error):
                    self._keep(name, error)
                    raise
                if not is_its_own(error):
                    raise
                self._hook_failed(name, error)

    def _context_of(self, name: str) -> ToolContext[Any] | None:  # Any: of every run
        """The value of `self.ctx` in such a hook; hooks that only hear of a stop have none."""
        if name.startswith("on_") or self.work is None:
            return None
        record, node = self._record, self._node
        memory = record.hooked[name].memory if name in record.hooked else CallState()
        if name.startswith("before_"):
            record.hooked[name] = OpenCall(name, "", memory)
        context = ToolContext(
            deps=record.deps, run=record.run, call_id="", node=node, ladder=record.ladder, memory=memory
        )
        context.bind(self.work, self)
        return context

    def tell(self, text: str) -> None:
        """Nothing: a hook is no call."""

    async def remember(self) -> None:
        """Nothing: what a hook has saved is in the checkpoint. Cancellation: it never waits."""

    def places_at(self, place: str) -> tuple[str, ...]:
        """This place, and every condition that holds there."""
        return self._record.standing_at(self._node, place)

    def held(self, stay: Stay) -> None:
        """A hook waits at a point of its own."""
        place, record = stay.held.place, self._record
        record.emit(HoldStarted, place=place, reason=stay.held.reason)
        stay.over.when_set(lambda: record.emit(HoldEnded, place=place, stopped=self._node.request() is not None))

    def _keep(self, name: str, error: BaseException) -> None:
        """A hook leaves: its saved state or its question goes into the checkpoint."""
        hook = self._record.hooked.get(name)
        if hook is not None and isinstance(error, StopTool):
            hook.memory.saved = error.saved
        elif hook is not None and isinstance(error, AskPerson):
            question = Question(f"{name}:{len(hook.memory.answers) + 1}", name, error.payload)
            self._record.hooked[name] = replace(hook, question=question)

    def _hook_failed(self, name: str, error: BaseException) -> None:
        error = hook_failure(name, error)
        _log.warning("the hook %s of %s failed: %s", name, self._node.path, render_error(error))
        self._record.emit(HookFailed, hook=name, error=error)


def _nothing_for(_level: Level) -> None:
    pass

"""Where a run's work is performed: all that may wait is a supervised piece of work, and the run waits for a bell.

Invariant: the run's own task suspends in `wait` and nowhere else. NOW and FORCE reach the piece of work that is under
way through `push`; what they do not stop is on the orphan list before `perform` returns.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextvars import Context, copy_context
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from safepoint._core.asks import Ask
from safepoint._core.ladder import Rung
from safepoint._core.points import Level, SafePoint
from safepoint._core.reasons import Reason, Source
from safepoint._core.work import Abandoned, Cut, Failed, NeverRan, Work, WorkResult
from safepoint.agent.checkpoint import OpenCall, Question
from safepoint.agent.events import CancelRequested, HookFailed, RungReached
from safepoint.agent.hooks import in_context, is_being_cut, is_its_own, leaves, overridden, told, words_unwrapped
from safepoint.agent.run_context import RunContext
from safepoint.agent.tool_context import ToolContext
from safepoint.errors import AskPerson, StopTool
from safepoint.history.rendering import render_error
from safepoint.tools.call_state import CallState

T = TypeVar("T")

# Asks that are told without a pause: each makes an event and may begin hooks, and nobody else on the loop shall wait.
ANNOUNCED_AT_ONCE = 64

_log = logging.getLogger("safepoint")


class WorkRunner:
    """Performs a run's work, one piece at a time, with hooks beside it."""

    def __init__(self, record: RunContext) -> None:
        self._record = record
        self._node = record.node
        self.work: Work[object] | None = None
        # What goes on of the run's own record: FORCE gives it as long as a sub-agent has to record its end.
        self._owed: Work[object] | None = None
        # Hooks that hear of an ask. They run beside the work, hold nothing, and are waited for after the end.
        self._asides: list[Work[None]] = []
        # How far the log of asks was announced, and what was announced ahead of its turn.
        self._announced = 0
        self._announced_ahead: set[str] = set()
        # What else NOW and FORCE push: the children of a composite.
        self.push_more: Callable[[Level], object] = _nothing_for
        # Work is begun on behalf of the run, also where somebody else's ask or timer is what begins it.
        self._context = Context()

    def open(self) -> None:
        """From now on asks are announced, and push what is under way. Call it in the run's own task."""
        self._context = copy_context()
        self._node.on_push = self._push
        self._node.on_change = self._changed
        self._changed()

    def works(self) -> Iterator[Work[object]]:
        """Whatever runs right now; hooks that only hear of an ask do not hold the run."""
        for work in dict.fromkeys((self.work, self._owed)):
            if work is not None and not work.ended:
                yield work

    async def wait(self) -> None:
        """Until something changes. Cancellation: somebody's hand on our task; it counts as the caller's own."""
        try:
            await self._record.wakeup.wait()
        except asyncio.CancelledError:
            self._node.cancel(SafePoint.NOW, reason=Reason("the task of the run was cancelled", Source.CALLER))

    async def perform(self, make: Callable[[], Awaitable[T]], name: str, *, owed: bool = False) -> WorkResult[T]:
        """Do one piece of work, unless NOW or FORCE already stands. `owed`: it is part of the run's own record.

        Cancellation: as in `wait`.
        """
        if not self._node.may_start():
            return NeverRan()
        work = self._begin(make, name)
        work.may_start = self._node.may_start
        self.work = work  # type: ignore[assignment]  # only ever stopped, its value is read from `work`
        self._owed = self.work if owed else None
        try:
            return await self._outcome(work)
        finally:
            self.work = None

    async def perform_last(self, make: Callable[[], Awaitable[T]], name: str) -> WorkResult[T]:
        """Work that is due although the run is stopped, bounded, for FORCE as well. Cancellation: as in `wait`."""
        work = self._begin(make, name, self._record.ladder.task)
        self._owed = work  # type: ignore[assignment]  # as above
        if self._node.pushed is Level.FORCE:
            self._hurry()
        return await self._outcome(work)

    async def perform_due(self, make: Callable[[], Awaitable[T]], name: str) -> WorkResult[T]:
        """Work that a stopped run owes as well: if NOW cuts it, it is done once more. Cancellation: as in `wait`."""
        outcome = await self.perform(make, name, owed=True)
        return await self.perform_last(make, name) if isinstance(outcome, Cut | NeverRan) else outcome

    async def run_hooks(self, name: str, *args: object) -> BaseException | None:
        """All hooks of this name, as one piece of work; how one of them left, if it did. Cancellation: as in `wait`."""
        outcome = await self.perform(partial(self.call_hooks, name, *args), name) if self.has_hooks(name) else None
        if not isinstance(outcome, Failed):
            return None
        if leaves(name, outcome.error):
            return outcome.error
        self._hook_failed(name, outcome.error)
        return None

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
        """Nothing goes on below a sealed run: end what its hooks have started. Cancellation: as in `wait`."""
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

    async def _outcome(self, work: Work[T]) -> WorkResult[T]:
        while work.outcome is None:
            await self.wait()
        if isinstance(work.outcome, Abandoned):
            self._record.name_orphan(work.outcome.orphan)
        self._record.heed(work.outcome)
        return work.outcome

    def _begin(self, make: Callable[[], Awaitable[T]], name: str, limit: float | None = None) -> Work[T]:
        record = self._record
        path = f"{record.node.path}/{name}"
        work = record.supervisor.begin(
            make,
            name=name,
            path=path,
            ladder=record.ladder,
            context=self._context.copy(),
            on_end=record.wakeup.ring,
            limit=limit,
        )
        work.on_rung = partial(self._tell_rung, name)
        return work

    def _push(self, level: Level) -> None:
        self._announce_push(level)
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
        """The node looked at its log: announce asks that are new. What an ask brings about wakes the run by itself."""
        asks, self._announced = self._node.log.asks_from(self._announced, most=ANNOUNCED_AT_ONCE)
        for ask in asks:
            if ask.id not in self._announced_ahead:
                self._announce(ask)
        if self.is_announcing:
            self._node.wake()

    @property
    def is_announcing(self) -> bool:
        """Are there asks that were not announced yet?"""
        return self._announced < self._node.log.standing().length

    def _announce_push(self, level: Level) -> None:
        """An ask is told before what it brings about, also if thousands wait before it."""
        pushing = self._node.log.first_ask(level, self._announced)
        if pushing is not None and pushing.id not in self._announced_ahead:
            self._announced_ahead.add(pushing.id)
            self._announce(pushing)

    def _announce(self, ask: Ask) -> None:
        self._record.emit(CancelRequested, ask=ask)
        if self.has_hooks("on_cancel_requested"):
            self._beside("on_cancel_requested", ask)

    async def announce_all(self) -> None:
        """Every ask that was made so far is told before the end is. Cancellation: as in `wait`."""
        length = self._node.log.standing().length
        self._changed()
        while self._announced < length:
            self._node.call_soon(self._record.wakeup.ring)
            await self.wait()
            self._changed()

    # -- hooks ---------------------------------------------------------------------------------------------------------

    def has_hooks(self, name: str) -> bool:
        return any(overridden(hooks, name) for hooks in self._record.agent.hooks)

    def _beside(self, name: str, *args: object) -> None:
        self._asides.append(self._begin(partial(self.call_hooks, name, *args), name, self._record.ladder.task))

    async def call_hooks(self, name: str, *args: object) -> None:
        """All hooks of this name, inside a piece of work. Cancellation: cuts the hook."""
        context = self._context_of(name)
        for hooks in self._record.agent.hooks:
            if not overridden(hooks, name) or is_being_cut():
                continue
            try:
                with in_context(context), words_unwrapped():
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
        """What `self.ctx` is in such a hook; those that only hear of a stop have none."""
        if name.startswith("on_") or self.work is None:
            return None
        record, node = self._record, self._node
        memory = record.hooked[name].memory if name in record.hooked else CallState()
        if name.startswith("before_"):
            record.hooked[name] = OpenCall(name, "", memory)
        context = ToolContext(
            deps=record.deps, run=record.run, call_id="", node=node, ladder=record.ladder, memory=memory
        )
        context.bind(self.work, None)
        return context

    def _keep(self, name: str, error: BaseException) -> None:
        """A hook leaves: what it saved or asked goes into the checkpoint."""
        hook = self._record.hooked.get(name)
        if hook is not None and isinstance(error, StopTool):
            hook.memory.saved = error.saved
        elif hook is not None and isinstance(error, AskPerson):
            question = Question(f"{name}:{len(hook.memory.answers) + 1}", name, error.payload)
            self._record.hooked[name] = replace(hook, question=question)

    def _hook_failed(self, name: str, error: BaseException) -> None:
        error = told(name, error)
        _log.warning("the hook %s of %s failed: %s", name, self._node.path, render_error(error))
        self._record.emit(HookFailed, hook=name, error=error)


def _nothing_for(_level: Level) -> None:
    pass

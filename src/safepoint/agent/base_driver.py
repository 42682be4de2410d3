"""How every run begins and ends: a plain loop over a closed union of next steps.

    Begin ──▶ steps of its own ──an answer──▶ Finalize ──▶ Close ──▶ Done
                     └──stopped, failed, out of steps────────▲

Safepoint never cancels the driver's own task. The driver decides in plain functions, hands all work that may wait to
its work runner, and waits there. So NOW interrupts the work and never the bookkeeping, and closing needs no shield.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Generic, TypeAlias, TypeVar

from safepoint._core.latch import Latch
from safepoint._core.reasons import Reason, Source
from safepoint._core.receipts import current_node
from safepoint._core.work import Failed, NeverRan, Returned, Work
from safepoint.agent.ending import Closed, close, close_anyway
from safepoint.agent.events import RunEnded, RunStarted
from safepoint.agent.journal import Ended, Fact, Opened
from safepoint.agent.ledger import LedgerEntry
from safepoint.agent.open_calls import OpenCalls
from safepoint.agent.partial_reply import PartialReply
from safepoint.agent.preview import CancelQuery, Preview
from safepoint.agent.result import RunResult, StopReason
from safepoint.agent.resume import Resume, continued, remembered_by_hooks
from safepoint.agent.run_context import RunContext
from safepoint.agent.session_protocol import ConversationMoved, SessionProtocol
from safepoint.agent.steps import Begin, Close, Done, Finalize
from safepoint.agent.telemetry import describe
from safepoint.agent.work_runner import WorkRunner
from safepoint.errors import AskPerson, CheckpointError, StoreError

_log = logging.getLogger("safepoint")

OwnT = TypeVar("OwnT")
# The steps of every run, beside the steps of its own kind.
Frame: TypeAlias = Begin | Finalize | Close | Done


class BaseDriver(ABC, Generic[OwnT]):
    """Drives one run from its first step to its seal. Subclasses supply the steps in between."""

    def __init__(self, record: RunContext, resume: Resume | None) -> None:
        self._record = record
        self._node = record.node
        self.runner = WorkRunner(record)
        self.result: RunResult[str] | None = None
        # Set when nothing but the end of its task is left to do.
        self.last_step = Latch()
        self._resume = resume
        # Why the session has no part of this run, if the run was stopped before it entered the session.
        self._shut_out: BaseException | None = None
        if resume is not None:
            record.hooked = remembered_by_hooks(resume)

    @abstractmethod
    def _first(self) -> OwnT | Frame:
        """The first step: of a new run, or of a run that continues a checkpoint."""

    @abstractmethod
    async def _act(self, step: OwnT) -> OwnT | Frame:
        """Take one step of the driver's own kind. Cancellation: as in `WorkRunner.wait`."""

    def _carried(self) -> Iterable[Fact]:
        """The facts that a continuing run brings along, for the journal."""
        return ()

    @abstractmethod
    def _remains(self, reason: str | None) -> OpenCalls:
        """The calls that are left open once no work runs any more. `reason`: why the run was stopped."""

    @abstractmethod
    def _value(self, text: str) -> object:
        """The typed answer, of a run that ended with an answer."""

    @abstractmethod
    def preview(self, query: CancelQuery) -> Preview:
        """What such a cancel would do to this run's work and, with NOW or FORCE, to the runs inside that work."""

    @property
    def ledger(self) -> tuple[LedgerEntry, ...]:
        return tuple(self._record.ledger)

    def make_room(self) -> None:
        """A message cannot wait for the next model call: get there sooner, at a safe point."""

    def works(self) -> Iterator[Work[object]]:
        """The work that runs now."""
        yield from self.runner.works()

    def entry_of(self, work: Work[object]) -> LedgerEntry | None:
        """The ledger's entry of the tool call that this work belongs to; None for all other work."""
        return None

    async def drive(self) -> None:
        """Run to the end. Cancellation: counts as the caller's; the run closes itself and returns."""
        token = current_node.set(self._node)
        try:
            self._record.emit(RunStarted, agent=self._record.agent.name)
            describe(self._record.run)
            self.runner.open()
            step: OwnT | Frame = Begin()
            while not isinstance(step, Done):
                step = await self._take(step)
            stopped = self._node.stop is not None
            if stopped or self.runner.tells_hooks:
                await self.runner.tell_the_end(self.result, stopped=stopped)
            pause = self._record.run.pause
            if pause is not None and pause.clearing is not None:  # the waiters of the run find its session settled
                await self.runner.perform_last(pause.clearing.wait, "clearing")
        except GeneratorExit:
            raise  # the loop is gone and the interpreter is exiting: no waiter is left
        except BaseException as error:
            if self.result is not None:
                raise
            self.end_anyway(error)
            if isinstance(error, KeyboardInterrupt):  # Ctrl-C is for the whole process
                raise
        finally:
            current_node.reset(token)
            self._node.owner = None
            if self._record.gate is not None:
                self._record.gate.switch.leave(self._record.run)
            self.last_step.set()

    async def _take(self, step: OwnT | Frame) -> OwnT | Frame:
        match step:
            case Begin():
                return await self._begin()
            case Finalize(stop_reason):
                if self.runner.has_hooks("after_run"):
                    await self.runner.run_hooks("after_run", self._record.messages[-1].text)
                return Close(stop_reason)
            case Close():
                return await self._close(step)
            case Done():
                return step
            case _:
                return await self._act(step)

    async def _begin(self) -> OwnT | Frame:
        failed = await self._enter() if self._record.is_kept else None
        if failed is not None:
            return failed
        gate = self._record.gate
        if gate is not None and gate.switch.freezes and not await self.runner.pass_gate(gate.of_run):
            return Close(StopReason.CANCELLED)
        since = self._resume.checkpoint.since if self._resume is not None else ()
        if since:
            from safepoint.agent.going_back import undo_since

            await undo_since(self.runner, self._record, since)
        if self.runner.has_hooks("before_run") and isinstance(await self.runner.run_hooks("before_run"), AskPerson):
            return self._interrupted()
        return self._unless_stopped(self._first())

    def _interrupted(self) -> Close:
        """The run asks a person: it ends here, unless an ask to stop stands."""
        return Close(StopReason.INTERRUPTED if self._node.pause() is None else StopReason.CANCELLED)

    async def _enter(self) -> Frame | None:
        """Enter the session, if there is one, and write that this run has begun; the next step if that fails."""
        record, session, resume = self._record, self._record.session, self._resume
        if session is None:
            return await self._open(None) if record.join_inside() else None
        continues = resume.checkpoint.id if resume is not None else None
        before = list(record.messages)
        while True:
            step = await self._enter_once(session, continues)
            if not (isinstance(step, Close) and isinstance(step.error, ConversationMoved)):
                return step
            record.messages[:] = before  # on the next try the session stays taken, so this loop ends

    async def _enter_once(self, session: SessionProtocol, continues: str | None) -> Frame | None:
        record, resume = self._record, self._resume
        # A run that is stopped before its start enters the session all the same, so that its input is in the history.
        entered = await self.runner.perform_due(partial(session.enter, record.run, continues), "session")
        if isinstance(entered, Failed):
            return self._fail_to_enter(entered.error)
        if not isinstance(entered, Returned):
            self._shut_out = StoreError("the session was not taken before the run was stopped: it has nothing of it")
            return Close(StopReason.CANCELLED)
        if resume is not None and resume.edit is not None:
            older = list(entered.value.messages[: entered.value.index])
            if record.messages[: len(older)] != older:
                return self._fail(
                    CheckpointError("edit=… may not rewrite an older turn of a session: leave it as it is"), None
                )
        record.join(entered.value, resumed=resume is not None)
        return await self._open(continues)

    async def _open(self, continues: str | None) -> Frame | None:
        """Write how the run begins. A run inside another one need not write it. Cancellation: as for `_act`."""
        record, resume = self._record, self._resume
        new = tuple(record.messages[record.started_at :])
        ledger, now = tuple(record.ledger), self._node.clock.wall()
        base = record.based_on(resume.answered()) if resume is not None else None
        opened = Opened(record.node.id, record.agent.name, record.started_at, new, continues, ledger, now, base)
        perform = self.runner.perform if record.session is None else self.runner.perform_due
        saved = await perform(partial(record.note, opened, *self._carried()), "journal")
        if isinstance(saved, Failed):
            record.journal = None  # the run never began there, so it cannot end there
            if isinstance(saved.error, ConversationMoved):  # also for a stopped run: its input belongs in the session
                return Close(StopReason.ERROR, error=saved.error)
            return self._fail_to_enter(saved.error)
        if continues is not None and resume is not None and isinstance(saved, Returned):
            continued.note(resume)
        return None

    def _fail_to_enter(self, error: BaseException) -> Close:
        """A run that was stopped in the meantime ends cancelled, and says that its session has no part of it."""
        step = self._fail(error, None)
        if step.error is None and self._record.session is not None:
            self._shut_out = error
        return step

    async def _save(self) -> Frame | None:
        """Make the recorded facts durable. If that fails, the run fails before any step builds on them."""
        record = self._record
        if record.journal is None:
            return None
        outcome = await self.runner.perform(partial(record.note, *record.unsaved()), "journal", owed=True)
        return self._fail(outcome.error, None) if isinstance(outcome, Failed) else None

    def _unless_stopped(self, step: OwnT | Frame) -> OwnT | Frame:
        return step if self._node.check_stop() is None else Close(StopReason.CANCELLED)

    def _fail(self, error: BaseException, incoming: PartialReply | None) -> Close:
        if self._node.answer() is not None:
            return Close(StopReason.CANCELLED, incoming=incoming)
        return Close(StopReason.ERROR, incoming=incoming, error=error)

    # -- the end -------------------------------------------------------------------------------------------------------

    def task_done(self, task: asyncio.Task[None]) -> None:
        if self.result is None:
            self.end_anyway(None if task.cancelled() else task.exception())
            self._node.owner = None
            self.last_step.set()

    def end_anyway(self, error: BaseException | None) -> None:
        """The last resort for a run that has not ended and no longer has a driving task: its waiters must not hang.

        `error` is the failure that broke it; None if the task was cancelled before its first step.
        """
        try:
            for work in tuple(self.works()):
                work.stop(force=True)
            if error is None:
                self._record.emit(RunStarted, agent=self._record.agent.name)
                self._node.cancel(reason=Reason("the task of the run was cancelled", Source.CALLER))
            stopped = self._node.check_stop() is not None
            closed = self._closed(Close(StopReason.CANCELLED if stopped else StopReason.ERROR, error=error))
            # There is no task left in which the session could be written.
            closed = closed if self._record.session is None else closed.unless_saved(NeverRan())
        except BaseException as broken:  # the last resort: the run ends in any case
            _log.exception("%s could not be closed", self._node.path)
            closed = close_anyway(self._record, error or broken).unless_saved(NeverRan())
        self._seal(closed)

    async def _close(self, step: Close) -> Frame:
        """Close, save, seal, emit the end, and wake the waiters, in this order."""
        record = self._record
        if self._node.children:
            await self.runner.quieten()
        if not self._node.log.is_quiet:
            await self.runner.announce_all()
        closed = self._closed(step)
        if record.journal is not None and record.session is not None:
            ended = Ended.of(closed.result, record.started_at, self._node.clock.wall())
            saved = await self.runner.perform_last(partial(record.note, ended), "journal")
            closed = closed.unless_saved(saved)
        elif self._shut_out is not None:
            closed = closed.unless_saved(Failed(self._shut_out))
        self._seal(closed)
        return Done()

    def _closed(self, step: Close) -> Closed:
        record = self._record
        record.closed = True
        record.steering.close()
        if record.meter is not None:
            record.meter.close()
        stop = record.node.stop if step.stop_reason is StopReason.CANCELLED else None
        remains = self._remains(stop.reason.text if stop is not None else None)
        return close(record, step, remains, self._value)

    def _seal(self, closed: Closed) -> None:
        """Seal the run: it writes nothing more. The end is emitted and the waiters are woken without a pause."""
        result, run, session = closed.result, self._record.run, self._record.session
        self.result = result
        if result.stop_reason is StopReason.INTERRUPTED:
            run.await_person(result.checkpoint)  # before the seal: a later ask finds the pause
        self._node.seal()
        try:
            self._record.emit(
                RunEnded,
                stop_reason=result.stop_reason,
                usage=result.usage,
                cancellation=result.cancellation,
                error=result.error,
            )
            self._record.sealed = True
            if session is not None:
                session.left(run)
            run.clear_for_late_asks()
        finally:  # the waiters are woken even if a user's own session raises
            self._node.finish(closed.ending)

"""One child of a composite: queued, running, or over.

It is a run of its own, with its node below the composite's, and it is asked, not cancelled: it closes its own history
and leaves its own checkpoint. The composite's ledger has its state, under its key:

| the child ended with                  | ledger    | on resume                                            |
|---------------------------------------|-----------|------------------------------------------------------|
| end_turn                              | finished  | its answer is used again                             |
| cancelled, budget, max_steps, refused | stopped   | goes on inside                                       |
| interrupted                           | waiting   | goes on inside, with the answers                     |
| error                                 | failed    | goes on inside, from where it failed                 |
| nothing: it did not stop in time      | cut       | `on_unknown`: it is told, a person is asked, or rerun |
"""

from __future__ import annotations

from contextvars import copy_context
from typing import Any, NamedTuple

from msgspec.structs import replace

from safepoint._core.endings import Touched
from safepoint._core.ladder import CUT_AT_ONCE, Rung, StopPolicy, WorkKind
from safepoint._core.points import Level
from safepoint._core.work import Abandoned, Failed, Work
from safepoint.agent.checkpoint import Checkpoint, OpenCall
from safepoint.agent.events import RungReached
from safepoint.agent.journal import Called
from safepoint.agent.ledger import LedgerEntry
from safepoint.agent.nested_journal import NestedJournal
from safepoint.agent.preview import CancelQuery, Fate, Preview, PreviewedCall
from safepoint.agent.result import ChildResult, RunResult, StopReason
from safepoint.agent.run import Run, RunSetup
from safepoint.agent.run_context import RunContext
from safepoint.compose.child_codec import dump_result
from safepoint.compose.child_resume import RestoredChild
from safepoint.compose.plan import Child
from safepoint.errors import SafepointError, StoreError
from safepoint.history.rendering import render_error, render_result
from safepoint.history.states import LedgerState
from safepoint.tools.call_state import CallState

_CHILD = StopPolicy(WorkKind.CHILD)


class Left(NamedTuple):
    """`open`: what it needs to go on, or what it has left, for the composite's checkpoint."""

    open: OpenCall
    touched: Touched
    result: ChildResult | None


class ChildRun:
    """Only the body of its own task waits; `harvest` advances it after every change."""

    def __init__(self, record: RunContext, child: Child, restored: RestoredChild | None) -> None:
        self.child = child
        self.work: Work[object] | None = None
        self.run: Run[Any, Any] | None = None  # Any: a run of any agent
        self.result: RunResult[Any] | None = None  # Any: likewise
        self.over = False
        # Whether another branch failed before this child's run was made: then it is never made.
        self.held_back = False
        self._error: BaseException | None = None
        # Kept in the checkpoint: the whole result, once it has finished.
        self._memory = CallState()
        self._left: Left | None = None
        self._inside = NestedJournal(record, child.key)
        self._record = record
        self._restored = restored
        if child.key not in record.ledger:
            record.ledger.open(LedgerEntry(child.key, child.agent.name))

    @property
    def entry(self) -> LedgerEntry:
        return self._record.ledger[self.child.key]

    @property
    def queued(self) -> bool:
        return self.work is None and not self.over

    @property
    def running(self) -> bool:
        return self.work is not None and not self.over

    @property
    def failed(self) -> bool:
        return self.entry.state is LedgerState.FAILED

    @property
    def stopped(self) -> bool:
        return self.result is not None and self.result.cancellation is not None

    @property
    def waits(self) -> bool:
        """Whether it asks a person, or a question about it is open."""
        return self.asks or self.entry.state is LedgerState.WAITING

    @property
    def asks(self) -> bool:
        """Whether a person has to decide first if it may run again."""
        return self._restored is not None and self._restored.question is not None

    @property
    def error(self) -> BaseException:
        """Why it failed."""
        if self.result is not None and self.result.error is not None:
            return self.result.error
        return self._error or SafepointError(self.entry.error or "no error is known")

    @property
    def was_asked_by_composite(self) -> bool:
        """Whether it was stopped by an ask to the composite, and not alone."""
        stop = self.run.node.stop if self.run is not None else None
        asked = self._record.node.request()
        return stop is not None and asked is not None and bool(stop.request.ids & asked.ids)

    def start(self) -> None:
        record = self._record
        self.work = record.supervisor.begin(
            self._perform,
            name=self.child.key,
            path=f"{record.node.path}/{self.child.key}",
            ladder=record.ladder,
            context=copy_context(),
            on_end=record.wakeup.ring,
        )
        self.work.on_rung = self._tell_rung
        self.work.may_start = lambda: record.node.check_stop() is None

    # -- inside its own task -------------------------------------------------------------------------------------------

    async def _perform(self) -> object:
        """Cancellation: cuts a write to the journal; the run itself is asked, closes itself and returns."""
        await self._make_durable(state=LedgerState.RUNNING)
        if self._being_stopped() or self.held_back or self._record.node.check_stop() is not None:
            return None
        assert self.work is not None
        self.work.stop_policy = _CHILD
        self._settle(LedgerState.RUNNING, started_at=self._record.supervisor.clock.wall())
        self.run = Run(self.child.agent, self._options())
        if self.child.speaks:
            self._record.hub.let_speak(self.run.id)
        result = await self.run.drive_inside()
        if isinstance(self.work.outcome, Abandoned):
            return result  # abandoned long ago; the result goes only to the orphan
        self._keep(result)
        self.work.stop_policy = CUT_AT_ONCE
        if self._record.node.stop is None:  # otherwise the composite's own end reports it, without a second wait
            await self._make_durable()
        return result

    def _options(self) -> RunSetup[Any]:  # Any: the caller's own dependencies
        agent, restored, record = self.child.agent, self._restored, self._record
        resume = restored.resume if restored is not None else None
        messages = list(self.child.messages)
        if resume is not None:
            messages = resume.messages()
        elif restored is not None and restored.remark is not None:
            messages[-1] = restored.remarked(messages[-1])
        return RunSetup(
            messages,
            record.deps,
            resume,
            ladder=agent.ladder,
            budget=agent.budget,
            parent=record.node,
            label=self.child.key,
            above=record,
            inside=self._inside,
        )

    async def _make_durable(self, **changes: Any) -> None:  # Any: the entry's own fields
        """Write the entry, with these changes, if there is a journal. Cancellation: it is written whole or not."""
        if self._record.journal is not None:
            now = self._record.supervisor.clock.wall()
            inside = self._inside.end(self.result, now) if self.result is not None else ()
            await self._record.note(Called(replace(self.entry, **changes), self._memory), *inside)

    def _keep(self, result: RunResult[Any]) -> None:  # Any: of any output type
        self.result = result
        self._record.orphans.extend(result.orphans)
        if result.stop_reason is StopReason.END_TURN:
            self._memory.saved = dump_result(result)  # once, and not in the way of a stop
            self._settle(LedgerState.FINISHED, content=render_result(result.text).text)
            self.left()  # likewise
        elif result.stop_reason is StopReason.INTERRUPTED:
            self._settle(LedgerState.WAITING)
        elif result.stop_reason is StopReason.ERROR:
            self._settle(LedgerState.FAILED, error=render_error(result.error or Exception("no error is known")))
        else:
            self._settle(LedgerState.STOPPED, content=result.text)

    def _settle(self, state: LedgerState, **changes: Any) -> None:  # Any: the entry's own fields
        if state is not LedgerState.RUNNING:
            changes.setdefault("ended_at", self._record.supervisor.clock.wall())
        self._record.ledger.move(self.child.key, state, **changes)

    def _being_stopped(self) -> bool:
        return self.work is not None and self.work.rung is not None

    # -- in the loop, never waiting ------------------------------------------------------------------------------------

    def push(self, *, force: bool) -> None:
        if self.work is not None:
            self.work.stop(force=force)

    def _tell_rung(self, rung: Rung) -> None:
        self._record.emit(RungReached, name=self.child.key, rung=rung)

    def harvest(self) -> None:
        """Check whether it has ended. Call it after every change."""
        if self.work is None or self.over or not self.work.ended:
            return
        self.over = True
        outcome, record = self.work.outcome, self._record
        record.heed(outcome)
        if isinstance(outcome, Abandoned):
            record.name_orphan(outcome.orphan)
            if self.run is not None:
                record.node.part_with(self.run.node)
        elif isinstance(outcome, Failed) and self.result is None and not isinstance(outcome.error, StoreError):
            self._broke(outcome.error)
        self.give_up()

    def _broke(self, error: BaseException) -> None:
        """The run inside failed in a way that it could not close by itself."""
        if self.entry.state is LedgerState.RUNNING:
            self.result = self.run.result if self.run is not None and self.run.ended else None
            self._error = error
            self._settle(LedgerState.FAILED, error=render_error(error))

    def give_up(self) -> None:
        """No caller waits for it any longer: if it still runs, its outcome is unknown."""
        self.over = True
        if self.entry.state is LedgerState.RUNNING:
            orphan = self.work.orphan if self.work is not None else None
            self._settle(LedgerState.CUT, still_running=orphan is None or orphan.still_running)

    def preview(self, query: CancelQuery) -> Preview:
        """The effect of such a cancel on it. With NOW or FORCE its run stops inside, with a checkpoint."""
        if self.queued:
            return Preview((self._previewed(Fate.NEVER_STARTS, 0.0),))
        if not self.running or self.work is None:
            return Preview()
        inside = query.of_run(self.run.node) if self.run is not None else Preview()
        if query.at.level is Level.SAFE:
            return Preview((self._previewed(Fate.FINISHES, None), *inside.calls), None)
        seconds = min(self.work.stops_within(query.now, force=query.force), inside.seconds or 0.0)
        return Preview((self._previewed(Fate.CONTINUES, seconds), *inside.calls), seconds)

    def _previewed(self, fate: Fate, seconds: float | None) -> PreviewedCall:
        key, path = self.child.key, f"{self._record.node.path}/{self.child.key}"
        return PreviewedCall(key, key, path, self.entry.effect, WorkKind.CHILD, fate, seconds)

    # -- what is left --------------------------------------------------------------------------------------------------

    def left(self) -> Left:
        """The final state for the checkpoint, once nothing of it can change. Made once."""
        if self._left is None:
            path = f"{self._record.node.path}/{self.child.key}"
            self._left = Left(
                self._opened(),
                Touched(path, self.child.key, self.entry.state),
                ChildResult(self.child.key, path, self.result) if self.result is not None else None,
            )
        return self._left

    def _opened(self) -> OpenCall:
        waits = self._restored if self.run is None else None
        question, decided = (waits.question, waits.decided) if waits is not None else (None, None)
        return OpenCall(self.child.key, "", self._memory, question, self._checkpoint(), decided)

    def _checkpoint(self) -> Checkpoint | None:
        if self.result is not None:
            return self.result.checkpoint
        resume = self._restored.resume if self._restored is not None else None
        return resume.answered() if resume is not None and not self.running else None

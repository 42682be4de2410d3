"""A tool call that runs: its node, its task, its result, and its state when it is cut.

    WORKING ──work ended──────────────────▶ LEAVING ──every run inside it ended──▶ OVER
       └──cut, and there is an undo──▶ UNDOING ──▶ ▲

The result is recorded inside the call's own task, the moment it exists: a cancel that follows finds it recorded.
`running` is recorded before the tool's first line. Everything else is decided in `harvest`, a plain function.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextvars import copy_context
from enum import StrEnum
from typing import Any, cast

from msgspec.structs import replace

from safepoint._core.endings import Ending, Touched
from safepoint._core.holds import Stay
from safepoint._core.ladder import CUT_AT_ONCE, Ladder, Rung, WorkKind
from safepoint._core.points import AFTER_STEP, HELD, NAMED, WHEN, Level
from safepoint._core.reasons import Reason, Source
from safepoint._core.receipts import current_node
from safepoint._core.tree import Node
from safepoint._core.work import Abandoned, Cut, Failed, NeverRan, Returned, Work
from safepoint.agent.call_hooks import Allowed, CallHooks, Unanswered, decide
from safepoint.agent.checkpoint import Checkpoint, Question
from safepoint.agent.events import (
    HoldEnded,
    HoldStarted,
    HookFailed,
    RungReached,
    ToolCallEnded,
    ToolCallStarted,
    ToolOutputStreamed,
)
from safepoint.agent.hooks import WORDS_UNWRAPPED, Deny, Replace
from safepoint.agent.journal import Called, Fact
from safepoint.agent.ledger import LedgerEntry
from safepoint.agent.nested_journal import NestedJournal
from safepoint.agent.output import OutputTool
from safepoint.agent.result import RunResult, StopReason
from safepoint.agent.resume import Restored
from safepoint.agent.run_context import RunContext
from safepoint.agent.telemetry import describe
from safepoint.agent.tool_context import ToolContext
from safepoint.errors import AskPerson, CutShort, InternalError, Retry, StopTool, StoreError
from safepoint.history.parts import ToolCall
from safepoint.history.plain_text import clean, cut
from safepoint.history.rendering import MAX_ERROR_CHARS, refuse_coroutine, render_error, render_result
from safepoint.history.states import LedgerState
from safepoint.tools.bad_arguments import BadArguments
from safepoint.tools.base import BaseTool
from safepoint.tools.call_state import CallState
from safepoint.tools.content import content_of


class Phase(StrEnum):
    WORKING = "working"
    UNDOING = "undoing"
    LEAVING = "leaving"
    OVER = "over"


# A call with a node that never ran a line was stopped before its first.
_CANCELLED = frozenset({LedgerState.NOT_STARTED, LedgerState.CUT, LedgerState.STOPPED, LedgerState.COMPENSATED})
_DENIED = "This call was not run, it was denied: "


class ToolExecution:
    """One call under way. `start` it once; `harvest` advances it after every change; nothing here waits."""

    def __init__(self, record: RunContext, call: ToolCall, tool: BaseTool, restored: Restored | None) -> None:
        self.phase = Phase.WORKING
        self._record = record
        self._call = call
        self.tool = tool
        self.ladder: Ladder = tool.ladder or record.ladder
        self.node = Node(call.id, tool.name, "tool_call", parent=record.node, propagation=tool.propagation)
        self._inside = NestedJournal(record, call.id)
        # The end of the run inside, until it is written.
        self._left_inside: list[Fact] = []
        self._context = ToolContext(
            deps=record.deps,
            run=record.run,
            call_id=call.id,
            node=self.node,
            ladder=self.ladder,
            memory=restored.memory if restored is not None else None,
            child=restored.child if restored is not None else None,
            inside=self._inside,
        )
        # Kept here as well: a tool may change or replace attributes of the context it is given.
        self.memory: CallState = self._context.memory
        # The question to a person, and a sub-agent's own checkpoint: both go into the checkpoint of this run.
        self.question: Question | None = None
        resume = restored.child if restored is not None else None
        self.child: Checkpoint | None = resume.answered() if resume is not None else None
        # Why a sub-agent was stopped, if it was not stopped through this call.
        self._why_inside: str | None = None
        self._args: dict[str, Any] = {}  # Any: typed by the tool's signature
        self._undo: Work[object] | None = None
        self._timeout: asyncio.TimerHandle | None = None
        self._leave_by: asyncio.TimerHandle | None = None
        record.supervisor.enrol(self.node)
        self.work: Work[object] = record.supervisor.prepare(
            name=tool.name, path=self.node.path, ladder=self.ladder, on_end=record.wakeup.ring
        )
        self.work.on_rung = self._tell_rung
        self.work.may_start = self._may_start
        self._context.bind(self.work, self)
        self.node.on_push = self._push

    def start(self) -> None:
        """Take the first step. All calls of a batch exist before the first of them runs a line of its tool."""
        context = copy_context()
        context.run(current_node.set, self.node)
        self._record.supervisor.start(self.work, self._perform, context)

    def _may_start(self) -> bool:
        return self.node.check_stop() is None

    @property
    def under_way(self) -> Work[object] | None:
        """The part that still runs: the tool, or its undo."""
        return next((work for work in (self.work, self._undo) if work is not None and not work.ended), None)

    @property
    def has_undo(self) -> bool:
        return self.tool.options.undo is not None

    def stops_within(self, now: float, *, force: bool) -> float:
        """How long a stop asked for now may take at most, including the undo."""
        if self._undo is not None and not self._undo.ended:
            return self._undo.stops_within(now, force=True) if force else self._undo.limited_to(now)
        undo = 0.0
        if self.has_undo and not force and self.phase is Phase.WORKING:
            undo = self.ladder.undo + self.ladder.task  # its own time, and what it takes to stop it after that
        return self.work.stops_within(now, force=force) + undo

    @property
    def why(self) -> str | None:
        """Why it was stopped, if the ask was for this call or the run inside it."""
        return self.node.stop.reason.text if self.node.stop is not None else self._why_inside

    @property
    def _entry(self) -> LedgerEntry:
        return self._record.ledger[self._call.id]

    # -- inside the call's own task ------------------------------------------------------------------------------------

    async def _perform(self) -> object:
        """Cancellation: cuts the hook or the tool, whichever is running; what is recorded stays recorded."""
        if not (await self._allowed() if self._record.agent.hooks else self._fit(self._call.args)):
            return None
        # Write `running` first: a crash in between makes the call `cut` although it never ran a line. The reverse order
        # could lose a call that had run.
        if self._record.journal is not None:
            await self._make_durable(state=LedgerState.RUNNING)
        if self._being_stopped() or self.node.check_stop() is not None:
            return None
        self._mark_running()
        self.work.stop_policy = self.tool.stop_policy
        try:
            with WORDS_UNWRAPPED:
                value = refuse_coroutine(await self.tool.body(self._context, self._args))
        except Exception as error:
            if self._being_stopped():
                raise  # the ledger will say `cut`, with this error attached
            self._record_failure(error)
            value = None
        else:
            if self._late():
                return value  # abandoned long ago; the value goes only to the orphan
            self._record_value(value)
        self.work.stop_policy = CUT_AT_ONCE  # the tool has ended: only Safepoint's code and hooks follow
        if self._record.journal is not None:
            await self._make_result_durable()
        if self._record.agent.hooks and not self._being_stopped():
            await self._run_hooks("after_tool", self._entry)
        return value

    async def _run_hooks(self, name: str, subject: object) -> list[object]:
        """Cancellation: cuts the hook."""
        return await CallHooks(self._record, self._context, self._being_stopped).run(name, subject)

    async def _make_durable(self, **changes: Any) -> None:  # Any: the entry's own fields
        """Write the entry, with these changes, if there is a journal. Cancellation: it is written whole or not."""
        if self._record.journal is not None:
            called = Called(replace(self._entry, **changes), self.memory.copy())
            await self._record.note(called, *self._left_inside)

    async def _make_result_durable(self) -> None:
        """As above. A stopped sub-agent has used its time already, and the end of the stopping run records its result.

        Cancellation: as above.
        """
        is_run = self.tool.stop_policy.kind is WorkKind.CHILD
        if is_run and self._record.node.stop is not None:
            return
        async with asyncio.timeout(self.ladder.task if is_run and self._being_stopped() else None):
            await self._make_durable()

    async def remember(self) -> None:
        """Store the state that the call has saved. Cancellation: as above."""
        if not self._late():  # an ended run writes nothing
            await self._make_durable()

    async def _allowed(self) -> bool:
        """Run the checks; False if they or the arguments have settled the call."""
        verdicts = await self._run_hooks("before_tool", self._call)
        match decide(verdicts, self._call.args, self.memory.approvals):
            case Allowed(args):
                return self._fit(args)
            case Deny(reason):
                self._settle(LedgerState.FAILED, error=cut(f"{_DENIED}{reason}", MAX_ERROR_CHARS))
            case Unanswered(number, question):
                self.question = Question(f"{self._call.id}:check{number}", self.tool.name, question, "check")
                self._settle(LedgerState.WAITING)
            case Replace(result=result):
                self._settle(LedgerState.RUNNING)
                self._settle(LedgerState.FINISHED, content=content_of(result))
        return False

    def _fit(self, args: Mapping[str, Any]) -> bool:  # Any: decoded JSON
        try:
            self._args = self.tool.validate(args)
        except BadArguments as error:
            self._settle(LedgerState.FAILED, error=f"The arguments do not fit, the tool was not run:\n{error}")
            return False
        return True

    def _being_stopped(self) -> bool:
        return self.work.rung is not None

    def _late(self) -> bool:
        return isinstance(self.work.outcome, Abandoned)

    def _mark_running(self) -> None:
        clock = self._record.supervisor.clock
        self._settle(LedgerState.RUNNING, started_at=clock.wall())
        self._record.emit(ToolCallStarted, path=self.node.path, call=self._call)
        describe(self.tool.spec)
        if self.tool.options.timeout is not None:
            self._arm_timeout(self.tool.options.timeout)

    def _arm_timeout(self, seconds: float) -> None:
        clock = self._record.supervisor.clock
        why = Reason(f"timed out after {self.tool.options.timeout:g} s", Source.DEADLINE)
        self._timeout = clock.call_at(clock.now() + seconds, lambda: self.node.cancel(reason=why))

    def _record_value(self, value: object) -> None:
        if issubclass(type(value), RunResult):  # isinstance would ask the value for its class, and it may raise
            self._record_run(cast("RunResult[Any]", value))  # Any: of any output type
        elif isinstance(self.tool, OutputTool):
            self._settle(LedgerState.FINISHED, content=str(value))  # an answer is never shortened
        else:
            self._settle(LedgerState.FINISHED, content=content_of(value))

    def _record_run(self, result: RunResult[Any]) -> None:  # Any: a sub-agent's output type
        self._record.pay(result.run_id, result.usage)
        self._record.orphans.extend(result.orphans)
        self.child = result.checkpoint
        self._left_inside = self._inside.end(result, self._record.supervisor.clock.wall())
        if result.cancellation is not None:
            self._why_inside = result.cancellation.reason.text
            self.node.check_safe_point(result.cancellation.place)  # the run inside has carried out the ask to the call
            self._settle(LedgerState.STOPPED, content=result.text)
        elif result.stop_reason is StopReason.INTERRUPTED:
            self._settle(LedgerState.WAITING)
        elif result.stop_reason is StopReason.ERROR and result.error is not None:
            self._settle(LedgerState.FAILED, error=f"The sub-agent failed: {render_error(result.error)}")
        else:
            self._settle(LedgerState.FINISHED, content=render_result(result.text).text)

    def _record_failure(self, error: Exception) -> None:
        text = cut(f"Please try again: {error}", MAX_ERROR_CHARS) if isinstance(error, Retry) else render_error(error)
        self._settle(LedgerState.FAILED, error=text)

    def _settle(self, state: LedgerState, **changes: Any) -> None:  # Any: the entry's own fields
        if state is not LedgerState.RUNNING:
            changes["ended_at"] = self._record.supervisor.clock.wall()
        self._record.ledger.move(self._call.id, state, **changes)

    # -- in the loop, never waiting ------------------------------------------------------------------------------------

    def _push(self, level: Level) -> None:
        force = level is Level.FORCE
        self.work.stop(force=force)
        if self._undo is not None and force:
            self._undo.stop(force=True)
        if self._leave_by is not None and force:
            self._arm_leaving(min(self._leave_by.when(), self.node.clock.now() + self.ladder.kill))

    def tell(self, text: str) -> None:
        if text and not self.work.ended:
            self._record.emit(ToolOutputStreamed, call_id=self._call.id, text=clean(text))

    def places_at(self, place: str) -> tuple[str, ...]:
        """This place, and every condition that holds there."""
        return self._record.standing_at(self.node, place)

    def held(self, stay: Stay) -> None:
        """The tool waits at a point of its own: its time limit waits with it."""
        clock, path, place = self._record.supervisor.clock, self.node.path, stay.held.place
        left = self._timeout.when() - clock.now() if self._timeout is not None else None
        if self._timeout is not None:
            self._timeout.cancel()
        self._record.emit(HoldStarted, path=path, place=place, reason=stay.held.reason)

        def go_on() -> None:
            if left is not None and not self.work.ended:
                self._arm_timeout(left)
            self._record.emit(HoldEnded, path=path, place=place, stopped=self.node.request() is not None)

        stay.over.when_set(go_on)

    def _tell_rung(self, rung: Rung) -> None:
        self._record.emit(RungReached, path=self.node.path, name=self._call.name, rung=rung, call_id=self._call.id)

    def harvest(self) -> None:
        """Advance the call by every phase that has ended. Call it after every change."""
        if self.phase is Phase.WORKING and self.work.ended:
            self._harvest_work()
        if self.phase is Phase.UNDOING and self._undo is not None and self._undo.ended:
            self._harvest_undo(self._undo)
        if self.phase is Phase.LEAVING:
            self._leave()

    def _harvest_work(self) -> None:
        if self._timeout is not None:
            self._timeout.cancel()
        self.phase = Phase.LEAVING
        outcome = self.work.outcome
        self._record.heed(outcome)
        if isinstance(outcome, Abandoned):
            self._record.name_orphan(outcome.orphan)
        if self._entry.state is not LedgerState.RUNNING:  # recorded in its own task, or never ran a line
            if isinstance(outcome, Failed):
                self._hook_left(outcome.error)
            return
        match outcome:
            case Failed(error) | Cut(error) if isinstance(error, StopTool):
                self._stopped_itself(error)
            case Failed(error) | Cut(error) if isinstance(error, AskPerson):
                self._ask(error)
            case Failed(asyncio.CancelledError() | KeyboardInterrupt()) if self.node.check_stop() is not None:
                # A task other than Safepoint's cancelled all tasks, or Ctrl-C was pressed, before an ask arrived.
                self._settle(LedgerState.CUT)
                self._begin_undo()
            case Failed(error):
                self._settle(LedgerState.FAILED, error=_unasked(error))
            case Cut(CutShort() as short):
                self._settle(LedgerState.CUT, content=render_result(short.output).text if short.output else None)
                self._begin_undo()
            case Cut(error):
                self._settle(LedgerState.CUT, error=None if error is None else render_error(error))
                self._begin_undo()
            case Abandoned(orphan):
                self._settle(LedgerState.CUT, still_running=orphan.still_running)
            case Returned() | NeverRan() | None:
                raise InternalError(f"the call {self._call.id} ended with {outcome} and no record")

    def _hook_left(self, error: BaseException) -> None:
        """A hook before or after the tool has ended the call's work."""
        started = self._entry.state is not LedgerState.NOT_STARTED
        if isinstance(error, StopTool) and error.point is not None:
            if not started:
                self.memory.saved = error.saved
            self._record.check_safe_point(NAMED + error.point)
        elif isinstance(error, AskPerson) and not started:
            self._ask(error)
        elif not isinstance(error, StoreError):
            self._record.emit(HookFailed, hook="after_tool" if started else "before_tool", error=error)

    def _ask(self, asked: AskPerson) -> None:
        number = len(self.memory.answers) + 1
        self.question = Question(f"{self._call.id}:{number}", self.tool.name, asked.payload)
        self._settle(LedgerState.WAITING)

    def _stopped_itself(self, stop: StopTool) -> None:
        if stop.point is None:
            self._settle(LedgerState.CUT)
            self._begin_undo()
        else:
            self.memory.saved = stop.saved
            # If the run was asked to stop at this point, it stops too; and if at a condition, it held here.
            place = self.node.stop.place if self.node.stop is not None else HELD
            met = (place,) if place.startswith((WHEN, AFTER_STEP)) else ()
            self._record.check_safe_point(NAMED + stop.point, *met)
            self._settle(LedgerState.STOPPED, point=stop.point)

    def _begin_undo(self) -> None:
        tool = self.tool
        if not self.has_undo or self.node.pushed is Level.FORCE:
            return
        self._undo = self._record.supervisor.begin(
            lambda: tool.undo(self._context, self._args),
            name=f"undo of {tool.name}",
            path=f"{self.node.path}/undo",
            ladder=self.ladder,
            on_end=self._record.wakeup.ring,
            limit=self.ladder.undo,
        )
        self._undo.rung = Rung.UNDO
        self.phase = Phase.UNDOING
        self._tell_rung(Rung.UNDO)

    def _harvest_undo(self, undo: Work[object]) -> None:
        self._record.heed(undo.outcome)
        match undo.outcome:
            case Returned():
                self._settle(LedgerState.COMPENSATED)
            case Failed(error):
                self._record.ledger.note(self._call.id, error=f"its undo failed: {render_error(error)}")
            case Abandoned(orphan):
                self._record.name_orphan(orphan)
                self._record.ledger.note(self._call.id, error="its undo did not end in time")
            case _:
                self._record.ledger.note(self._call.id, error="its undo was cut")
        self.phase = Phase.LEAVING

    def _leave(self) -> None:
        """The call is over once every run that the tool started inside itself has ended, or has used its time."""
        clock = self._record.supervisor.clock
        now = clock.now()
        if self.node.children and self._leave_by is None:
            self._arm_leaving(min(now + self.ladder.cap, self.work.last_moment))
            for child in tuple(self.node.children):
                child.cancel(reason=Reason("the tool that started it has ended", Source.PARENT))
                child.ended.when_set(lambda: self.node.call_soon(self._record.wakeup.ring))
        if self._leave_by is not None:
            if self.node.children and now < self._leave_by.when():
                return
            self._leave_by.cancel()
            for child in tuple(self.node.children):
                self._record.leave(child)
        self.phase = Phase.OVER
        self.work.let_go()
        del self._context  # it refers to this call; only the undo could still need it
        self.node.seal()
        entry, wall = self._entry, clock.wall()
        cancelled = entry.state in _CANCELLED
        cut = self.node.stop.recorded(wall) if self.node.stop is not None and cancelled else None
        self._record.emit(ToolCallEnded, path=self.node.path, entry=entry, cancellation=cut)
        orphans = (self.work.orphan,) if self.work.orphan is not None and self.work.orphan.matters else ()
        touched = (Touched(self.node.path, entry.name, entry.state),)
        self.node.finish(Ending(cancelled, wall, touched=touched, orphans=orphans))

    def _arm_leaving(self, when: float) -> None:
        if self._leave_by is not None:
            self._leave_by.cancel()
        self._leave_by = self.node.clock.call_at(when, self._record.wakeup.ring)


def _unasked(error: BaseException) -> str:
    if isinstance(error, asyncio.CancelledError):
        return "The tool raised CancelledError although it had not been asked to stop."
    return render_error(error)

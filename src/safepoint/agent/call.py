"""One tool call, from the model's wish to its entry in the ledger.

    QUEUED ──start──▶ WORKING ──work ended──▶ LEAVING ──runs inside ended──▶ OVER
       │                 └──cut, and there is an undo──▶ UNDOING ──▶ LEAVING ▲
       └──refuse (unknown tool, bad arguments) / skip (never started)────────┘

The result is recorded inside the call's own task, the moment it exists: a cancel that comes a moment later finds it
recorded. `running` is recorded before the tool's first line. Everything else is decided in `harvest`, a plain function.
"""

from __future__ import annotations

import asyncio
import inspect
from contextvars import copy_context
from enum import StrEnum
from typing import Any

from safepoint._core.endings import Ending
from safepoint._core.ladder import Ladder, Rung
from safepoint._core.points import Level, SafePoint
from safepoint._core.reasons import Reason, Source
from safepoint._core.receipts import current_node
from safepoint._core.tree import Node
from safepoint._core.work import Abandoned, Cut, Done, Failed, NeverRan, Work
from safepoint.agent.events import HookFailed, RungReached, ToolCallEnded, ToolCallStarted
from safepoint.agent.hooks import Deny, Replace, overridden
from safepoint.agent.ledger import LedgerEntry
from safepoint.agent.record import Record
from safepoint.agent.result import RunResult, StopReason
from safepoint.errors import InternalError, Retry, StopTool
from safepoint.history.closing import ClosedCall
from safepoint.history.parts import ToolCall
from safepoint.history.states import LedgerState
from safepoint.tools.bad_arguments import BadArguments
from safepoint.tools.base import BaseTool
from safepoint.tools.context import ToolContext
from safepoint.tools.function import Tool
from safepoint.tools.options import Effect
from safepoint.tools.rendering import render_error, render_result


class Phase(StrEnum):
    QUEUED = "queued"
    WORKING = "working"
    UNDOING = "undoing"
    LEAVING = "leaving"
    OVER = "over"


_CANCELLED = frozenset({LedgerState.CUT, LedgerState.STOPPED, LedgerState.COMPENSATED})


class Call:
    """One call of a batch. The batch starts and harvests it; nothing here waits."""

    def __init__(self, record: Record, call: ToolCall, tool: BaseTool | None) -> None:
        self.call = call
        self.tool = tool
        self.phase = Phase.QUEUED
        self.work: Work[object] | None = None
        self.interrupt: KeyboardInterrupt | None = None
        self._record = record
        self._undo: Work[object] | None = None
        self._node: Node | None = None
        self._context: ToolContext[Any] | None = None  # Any: the run's dependencies
        self._args: dict[str, Any] = {}  # Any: typed by the tool's signature
        self._timeout: asyncio.TimerHandle | None = None
        self._leave_by: asyncio.TimerHandle | None = None
        effect = tool.options.effect if tool is not None else Effect.EFFECTFUL
        record.ledger.open(LedgerEntry(call.id, call.name, call.args, effect=effect))

    @property
    def entry(self) -> LedgerEntry:
        return self._record.ledger[self.call.id]

    @property
    def mild(self) -> bool:
        """Running it again does no harm."""
        return self.entry.effect in (Effect.PURE, Effect.IDEMPOTENT)

    @property
    def ladder(self) -> Ladder:
        return (self.tool.ladder if self.tool is not None else None) or self._record.ladder

    def closed(self, reason: str | None) -> ClosedCall:
        """What the conversation says of this call."""
        entry = self.entry
        stop = self._node.stop if self._node is not None else None
        why = stop.reason.text if stop is not None else reason
        return ClosedCall(
            call=self.call,
            state=entry.state,
            content=entry.content or "",
            error=entry.error,
            reason=why or None,
            point=entry.point,
            still_running=entry.still_running,
        )

    # -- starting ------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Give the call its node and its task; or its result, if it cannot be made at all."""
        if self.phase is not Phase.QUEUED:
            raise InternalError(f"the call {self.call.id} is {self.phase} and cannot be started")
        tool = self.tool
        if tool is None:
            names = ", ".join(sorted(self._record.agent.tools)) or "none"
            self._refuse(f"There is no tool named {self.call.name!r}. The tools are: {names}.")
            return
        if self.call.invalid is not None:
            self._refuse(f"The arguments are not a JSON object: {self.call.invalid}")
            return
        run_node = self._record.node
        node = self._node = Node(self.call.id, tool.name, "tool_call", parent=run_node, passing=tool.passing)
        self._context = ToolContext(
            deps=self._record.deps, run=self._record.run, call_id=self.call.id, node=node, ladder=self.ladder
        )
        context = copy_context()
        context.run(current_node.set, node)
        self._record.supervisor.enrol(node)
        work: Work[object] = self._record.supervisor.begin(
            self._perform,
            name=tool.name,
            path=node.path,
            ladder=self.ladder,
            manner=tool.manner,
            context=context,
            on_end=self._record.bell.ring,
        )
        work.on_rung = self._tell_rung
        self.work = work
        self._context.bind(work)
        node.on_push = self._push
        self.phase = Phase.WORKING

    def skip(self) -> None:
        """The run stopped before this call was started."""
        self.phase = Phase.OVER
        self._record.emit(ToolCallEnded, entry=self.entry)

    def _refuse(self, why: str) -> None:
        self._record.ledger.move(self.call.id, LedgerState.FAILED, error=why)
        self.skip()

    # -- inside the call's own task --------------------------------------------------------------------------------------

    async def _perform(self) -> object:
        """Cancellation: cuts the hook or the tool, whichever is running; what is recorded stays recorded."""
        tool, context = self.tool, self._context
        assert tool is not None and context is not None
        if not await self._allowed(tool):
            return None
        self._mark_running()
        try:
            value = await tool.body(context, self._args)
        except Exception as error:
            if self._being_stopped():
                raise  # the ledger will say `cut`, with this error attached
            self._record_failure(error)
            value = None
        else:
            if self._late():
                return value  # abandoned long ago; it goes to the orphan and nowhere else
            self._record_value(value)
        await self._run_hooks("after_tool", self.entry)
        return value

    async def _allowed(self, tool: BaseTool) -> bool:
        """Run the checks; False if they, or the arguments, have settled what becomes of the call."""
        args = self.call.args
        for verdict in await self._run_hooks("before_tool", self.call):
            if isinstance(verdict, Deny):
                self._settle(LedgerState.FAILED, error=f"This call was not run, it was denied: {verdict.reason}")
                return False
            if isinstance(verdict, Replace) and verdict.result is not None:
                self._settle(LedgerState.RUNNING)
                self._settle(LedgerState.FINISHED, content=render_result(verdict.result).text)
                return False
            if isinstance(verdict, Replace) and verdict.args is not None:
                args = verdict.args
        try:
            self._args = tool.validate(args)
        except BadArguments as error:
            self._settle(LedgerState.FAILED, error=f"The arguments do not fit, the tool was not run:\n{error}")
            return False
        return True

    async def _run_hooks(self, name: str, subject: object) -> list[object]:
        verdicts: list[object] = []
        for hooks in self._record.agent.hooks:
            if not overridden(hooks, name):
                continue
            try:
                verdict: object = getattr(hooks, name)(self._record.run, subject)
                if inspect.isawaitable(verdict):
                    verdict = await verdict
            except Exception as error:
                if self._being_stopped():
                    raise
                self._record.emit(HookFailed, hook=name, error=error)
                verdict = Deny(f"the check {type(hooks).__name__}.{name} failed") if name == "before_tool" else None
            verdicts.append(verdict)
        return verdicts

    def _being_stopped(self) -> bool:
        assert self.work is not None
        return self.work.rung is not None

    def _late(self) -> bool:
        assert self.work is not None
        return isinstance(self.work.outcome, Abandoned)

    def _mark_running(self) -> None:
        node, clock = self._node, self._record.supervisor.clock
        assert node is not None and self.tool is not None
        self._settle(LedgerState.RUNNING, started_at=clock.wall())
        self._record.emit(ToolCallStarted, call=self.call)
        seconds = self.tool.options.timeout
        if seconds is not None:
            why = Reason(f"timed out after {seconds:g} s", Source.DEADLINE)
            self._timeout = clock.call_at(clock.now() + seconds, lambda: node.cancel(SafePoint.NOW, reason=why))

    def _record_value(self, value: object) -> None:
        if isinstance(value, RunResult):
            self._record_run(value)
        else:
            self._settle(LedgerState.FINISHED, content=render_result(value).text)

    def _record_run(self, result: RunResult[Any]) -> None:  # Any: a sub-agent's output type
        self._record.spend(result.usage)
        self._record.orphans.extend(result.orphans)
        if result.stop_reason is StopReason.CANCELLED:
            self._settle(LedgerState.STOPPED, content=result.text)
        elif result.stop_reason is StopReason.ERROR and result.error is not None:
            self._settle(LedgerState.FAILED, error=f"The sub-agent failed: {render_error(result.error)}")
        else:
            self._settle(LedgerState.FINISHED, content=render_result(result.text).text)

    def _record_failure(self, error: Exception) -> None:
        text = f"Please try again: {error}" if isinstance(error, Retry) else render_error(error)
        self._settle(LedgerState.FAILED, error=text)

    def _settle(self, state: LedgerState, **changes: Any) -> None:  # Any: the entry's own fields
        if state is not LedgerState.RUNNING:
            changes.setdefault("ended_at", self._record.supervisor.clock.wall())
        self._record.ledger.move(self.call.id, state, **changes)

    # -- in the loop, never waiting ----------------------------------------------------------------------------------------

    def _push(self, level: Level) -> None:
        force = level is Level.FORCE
        if self.work is not None:
            self.work.stop(force=force)
        if self._undo is not None and force:
            self._undo.stop(force=True)

    def _tell_rung(self, rung: Rung) -> None:
        self._record.emit(RungReached, name=self.call.name, rung=rung)

    def harvest(self) -> None:
        """Take whatever has ended a phase further. Call it after every change."""
        if self.phase is Phase.WORKING and self.work is not None and self.work.outcome is not None:
            self._harvest_work()
        if self.phase is Phase.UNDOING and self._undo is not None and self._undo.outcome is not None:
            self._harvest_undo()
        if self.phase is Phase.LEAVING:
            self._leave()

    def _harvest_work(self) -> None:
        assert self.work is not None
        if self._timeout is not None:
            self._timeout.cancel()
        self.phase = Phase.LEAVING
        outcome = self.work.outcome
        if isinstance(outcome, Abandoned):
            self._record.orphans.append(outcome.orphan)
        if self.entry.state is not LedgerState.RUNNING:
            return  # recorded in its own task, or never ran a line
        match outcome:
            case Failed(error) | Cut(StopTool() as error) if isinstance(error, StopTool):
                self._stopped_itself(error)
            case Failed(error):
                self._settle(LedgerState.FAILED, error=_unasked(error))
                self.interrupt = error if isinstance(error, KeyboardInterrupt) else None
            case Cut(error):
                self._settle(LedgerState.CUT, error=None if error is None else render_error(error))
                self._begin_undo()
            case Abandoned():
                self._settle(LedgerState.CUT, still_running=True)
            case Done() | NeverRan() | None:
                raise InternalError(f"the call {self.call.id} ended with {outcome} and no record")

    def _stopped_itself(self, stop: StopTool) -> None:
        if stop.point is None:
            self._settle(LedgerState.CUT)
            self._begin_undo()
        else:
            self._settle(LedgerState.STOPPED, point=stop.point)

    def _begin_undo(self) -> None:
        tool, context, node = self.tool, self._context, self._node
        assert context is not None and node is not None
        if not isinstance(tool, Tool) or tool.options.undo is None or node.pushed is Level.FORCE:
            return
        self._undo = self._record.supervisor.begin(
            lambda: tool.undo(context, self._args),
            name=f"undo of {tool.name}",
            path=f"{node.path}/undo",
            ladder=self.ladder,
            on_end=self._record.bell.ring,
            limit=self.ladder.undo,
        )
        self.phase = Phase.UNDOING

    def _harvest_undo(self) -> None:
        assert self._undo is not None
        match self._undo.outcome:
            case Done():
                self._settle(LedgerState.COMPENSATED)
            case Failed(error):
                self._record.ledger.note(self.call.id, error=f"its undo failed: {render_error(error)}")
            case Abandoned(orphan):
                self._record.orphans.append(orphan)
                self._record.ledger.note(self.call.id, error="its undo did not end in time")
            case _:
                self._record.ledger.note(self.call.id, error="its undo was cut")
        self.phase = Phase.LEAVING

    def _leave(self) -> None:
        """The call is over once every run that the tool started inside itself has ended, or has had its time."""
        node, clock = self._node, self._record.supervisor.clock
        assert node is not None
        if node.children and self._leave_by is None:
            self._leave_by = clock.call_at(clock.now() + self.ladder.cap, self._record.bell.ring)
            for child in tuple(node.children):
                child.cancel(SafePoint.NOW, reason=Reason("the tool that started it has ended", Source.PARENT))
                child.ended.when_set(lambda: node.call_soon(self._record.bell.ring))
        if node.children and self._leave_by is not None and clock.now() < self._leave_by.when():
            return
        if self._leave_by is not None:
            self._leave_by.cancel()
        self.phase = Phase.OVER
        entry = self.entry
        node.seal()
        self._record.emit(ToolCallEnded, entry=entry)
        orphan = self.work.orphan if self.work is not None else None
        node.finish(
            Ending(entry.state in _CANCELLED, clock.wall(), orphans=(orphan,) if orphan is not None else ())
        )


def _unasked(error: BaseException) -> str:
    if isinstance(error, asyncio.CancelledError):
        return "The tool raised CancelledError although nobody had asked it to stop."
    return render_error(error)

"""The tool calls of one reply: which of them may start now, which must wait, and which never start.

`advance` is the whole decision, in one plain function: harvest the calls that have ended, check whether a safe point
was reached, start the calls that may start. The driver calls it, waits for a change, and calls it again.
"""

from __future__ import annotations

from safepoint._core.endings import Touched
from safepoint._core.points import BETWEEN, Level, SafePoint
from safepoint._core.reasons import Reason, Source
from safepoint.agent.freeze import Freeze, Gate
from safepoint.agent.open_calls import OpenCalls
from safepoint.agent.output import OutputTool
from safepoint.agent.resume import Resume, restore
from safepoint.agent.run_context import RunContext
from safepoint.agent.tool_call import BatchedCall
from safepoint.history.closing import ClosedCall
from safepoint.history.parts import Message, ToolCall
from safepoint.history.states import LedgerState

# Why a call gave way, in its result.
NEW_MESSAGE = "a new message came"


class ToolBatch:
    """All calls of one assistant message."""

    def __init__(self, record: RunContext, message: Message, limit: int | None, resume: Resume | None = None) -> None:
        self._record = record
        self._limit = limit
        self.calls = [_call(record, call, resume) for call in message.tool_calls]
        # The calls that are not over, each in one of two lists; a call that may not start stays queued.
        self._queued = [call for call in self.calls if call.queued]
        self._running: list[BatchedCall] = []
        # The freeze that keeps a call from beginning, while the run would otherwise begin it.
        self.held: Freeze | None = None
        # Whether this run has any of them to make. If not, the run before it already reached the end of this batch.
        self.is_made_here = bool(self._queued)
        # A message cannot wait until all of them are made.
        self.gives_way = False

    def make_room(self) -> None:
        """Ask the calls that run to stop at points of their own; the queued ones never start."""
        self.gives_way = True
        for call in self._running:
            if call.execution is not None:
                call.execution.node.cancel(SafePoint.ANY, reason=Reason(NEW_MESSAGE, Source.PREEMPT))

    @property
    def has_given_way(self) -> bool:
        """Whether a call was left out, or stopped before its end."""
        return any(call.entry.state in (LedgerState.NOT_STARTED, LedgerState.STOPPED) for call in self.calls)

    def advance(self) -> bool:
        """Take every call as far as it can go; True once none is running."""
        before = len(self._running)
        self._running = [call for call in self._running if not call.harvest()]
        if len(self._running) < before and (self._running or self._queued):
            self._record.check_safe_point("after_tool")
        heeds_holds = not self._record.node.is_quiet
        if heeds_holds:
            self._look_for_hold(ended=len(self._running) < before)
        begun: list[BatchedCall] = []
        gate = self._record.gate
        is_frozen = gate is not None and bool(gate.switch.freezes)
        for call in self._queued:
            if not self._has_room():
                break
            if is_frozen and self._is_frozen(call):
                if self._limit == 1:
                    break  # they are made one by one, in their order
                continue
            if heeds_holds and self._is_held_back(call):
                continue
            for meter in self._record.meters() if self._record.node.stop is None else ():
                meter.calling(call.call)
            if self._may_start(call):
                call.begin()
                if call.running:
                    self._running.append(call)
                    begun.append(call)
        self._queued = [call for call in self._queued if call.queued]
        for call in begun:
            call.take_first_step()
        if gate is not None:
            self._tell_held(gate)
        return not self._running and self.held is None

    @property
    def is_idle(self) -> bool:
        return not self._running

    def _is_frozen(self, call: BatchedCall) -> bool:
        gate = self._record.gate
        return gate is not None and gate.of_tool(call.call.name) is not None

    def _tell_held(self, gate: Gate) -> None:
        """Whether calls wait for a thaw: not once the run is to stop, which may be here, where none is under way."""
        record, node = self._record, self._record.node
        frozen = (gate.of_tool(call.call.name) for call in self._queued) if gate.switch.freezes else ()
        self.held = next((freeze for freeze in frozen if freeze is not None), None)
        if self.held is not None:
            record.obey(self.held)
            if not self._running:
                node.check_safe_point(BETWEEN)
        if node.stop is not None or record.broken is not None or self.gives_way:
            self.held = None
        record.held = self.held

    def end(self) -> None:
        """No call runs any more: the queued ones never started."""
        for call in self.calls:
            call.put_back()
            if call.queued:
                call.skip()

    @property
    def waits(self) -> bool:
        """Whether one of the calls asks a person."""
        return any(call.waits for call in self.calls)

    def answer(self) -> str | None:
        """The result of a tool that is declared to give the answer."""
        for call in self.calls:
            if call.tool is not None and call.tool.options.final and call.entry.state is LedgerState.FINISHED:
                return call.entry.content
        return None

    @property
    def hands_over(self) -> bool:
        """Whether a call hands the conversation to another agent."""
        return any(
            call.tool is not None and call.tool.hands_over and call.entry.state is LedgerState.FINISHED
            for call in self.calls
        )

    def unfit_answer(self) -> str | None:
        """Why the model's typed answer does not fit."""
        tried = [call.entry for call in self.calls if isinstance(call.tool, OutputTool)]
        failed = [entry.error for entry in tried if entry.state is LedgerState.FAILED]
        return failed[0] if failed and len(failed) == len(tried) else None

    def closed(self, reason: str | None) -> list[ClosedCall]:
        return [call.closed(reason) for call in self.calls]

    def remains(self, reason: str | None) -> OpenCalls:
        """The calls that are left open, now that none of them runs."""
        return OpenCalls(
            {call.call.id: call.opened() for call in self.calls},
            tuple(self.closed(reason)),
            tuple(Touched(call.path, call.call.name, call.entry.state) for call in self.calls),
            tuple(call.call.name for call in self.calls if call.entry.state is LedgerState.NOT_STARTED),
        )

    def _look_for_hold(self, *, ended: bool) -> None:
        """Whether queued calls wait. `ended`: a call has just ended, so the run stands after a tool."""
        record, node = self._record, self._record.node
        if record.held_back and not node.holds_at(*record.held_back):
            record.held_back = ()
        if (
            ended
            and self._queued
            and node.has_holds
            and node.holds_at(*(places := record.standing_at(node, "after_tool")))
        ):
            record.held_back = places

    def _is_held_back(self, call: BatchedCall) -> bool:
        """Whether a hold keeps this call in the queue."""
        record = self._record
        if not record.held_back and not call.mild and record.node.has_holds:
            places = record.standing_at(record.node, "before_effect")
            record.held_back = places if record.node.holds_at(*places) else ()
        return "after_tool" in record.held_back or (bool(record.held_back) and not call.mild)

    def _may_start(self, call: BatchedCall) -> bool:
        node = self._record.node
        if self._record.broken is not None or self.gives_way:
            return False
        if node.stop is None and not call.mild:
            self._record.check_safe_point("before_effect")
        elif node.stop is None:
            node.check_stop()
        stop = node.stop
        if stop is None:
            return True
        # A stop before an effect still lets calls without an effect run, unless a harder ask came since.
        return stop.place == "before_effect" and call.mild and stop.level is Level.SAFE

    def _has_room(self) -> bool:
        return self._limit is None or len(self._running) < self._limit


def _call(record: RunContext, call: ToolCall, resume: Resume | None) -> BatchedCall:
    tool = record.agent.tools.get(call.name)
    return BatchedCall(record, call, tool, restore(resume, call, tool) if resume is not None else None)

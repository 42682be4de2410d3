"""One tool call of a reply, as its batch sees it: queued, running, or over."""

from __future__ import annotations

from msgspec.structs import replace

from safepoint._core.ladder import Ladder
from safepoint._core.work import Work
from safepoint.agent.checkpoint import OpenCall, Question
from safepoint.agent.events import ToolCallEnded
from safepoint.agent.ledger import LedgerEntry, closed_call
from safepoint.agent.resume import Restored
from safepoint.agent.run_context import RunContext
from safepoint.agent.tool_execution import Phase, ToolExecution
from safepoint.errors import InternalError
from safepoint.history.closing import ClosedCall
from safepoint.history.parts import ToolCall
from safepoint.history.states import LedgerState
from safepoint.tools.base import BaseTool
from safepoint.tools.call_state import CallState
from safepoint.tools.options import Effect


class BatchedCall:
    """The model's request, its entry in the ledger, and its execution once it has started."""

    def __init__(
        self, record: RunContext, call: ToolCall, tool: BaseTool | None, restored: Restored | None = None
    ) -> None:
        self.call = call
        self.tool = tool
        self.execution: ToolExecution | None = None
        self._record = record
        self._restored = restored
        self._skipped = restored is not None and not restored.runs
        effect = tool.options.effect if tool is not None else Effect.EFFECTFUL
        # Whether running it again does no harm.
        self.mild = (effect if restored is None else restored.entry.effect) in (Effect.PURE, Effect.IDEMPOTENT)
        fresh = LedgerEntry(call.id, call.name, call.args, effect=effect, remote=tool is not None and tool.remote)
        record.ledger.open(fresh if restored is None else restored.entry)

    @property
    def entry(self) -> LedgerEntry:
        return self._record.ledger[self.call.id]

    @property
    def path(self) -> str:
        """The path of its node, even if it never had one."""
        return f"{self._record.node.path}/{self.call.name}:{self.call.id}"

    @property
    def queued(self) -> bool:
        return self.execution is None and not self._skipped

    @property
    def over(self) -> bool:
        return self._skipped or (self.execution is not None and self.execution.phase is Phase.OVER)

    @property
    def running(self) -> bool:
        return self.execution is not None and self.execution.phase is not Phase.OVER

    @property
    def ladder(self) -> Ladder:
        return (self.tool.ladder if self.tool is not None else None) or self._record.ladder

    @property
    def work(self) -> Work[object] | None:
        """The part of the call that still runs."""
        return self.execution.under_way if self.execution is not None else None

    @property
    def memory(self) -> CallState:
        """What it remembers of the run before."""
        return self._restored.memory if self._restored is not None else CallState()

    def begin(self) -> None:
        """Prepare its first step; or settle its result, if it cannot be made at all."""
        if not self.queued:
            raise InternalError(f"the call {self.call.id} was started already")
        if self.tool is None:
            names = ", ".join(sorted(self._record.agent.tools)) or "none"
            self._refuse(f"There is no tool named {self.call.name!r}. The tools are: {names}.")
        elif self.call.invalid is not None:
            self._refuse(f"This call cannot be made: {self.call.invalid}")
        else:
            self.execution = ToolExecution(self._record, self.call, self.tool, self._restored)

    def take_first_step(self) -> None:
        if self.execution is not None:
            self.execution.start()

    def harvest(self) -> bool:
        """Advance it as far as possible; True once it is over."""
        if self.execution is not None:
            self.execution.harvest()
        return self.over

    def skip(self) -> None:
        """End it without having started it."""
        self._skipped = True
        self._record.emit(ToolCallEnded, path=self.path, entry=self.entry)

    def put_back(self) -> None:
        """No call runs any more: a call that was to be repeated, and was not, returns to its earlier entry."""
        if self._restored is not None and self.entry.state is LedgerState.NOT_STARTED:
            self._record.ledger.put_back(self._restored.before)

    def _refuse(self, why: str) -> None:
        self._record.ledger.move(self.call.id, LedgerState.FAILED, error=why)
        self.skip()

    @property
    def waits(self) -> bool:
        """Whether the call asks a person."""
        return self.entry.state is LedgerState.WAITING or self._question is not None

    @property
    def _question(self) -> Question | None:
        asked = self.execution or self._restored
        return asked.question if asked is not None else None

    def opened(self) -> OpenCall:
        """The state that this call needs to continue after the run has stopped."""
        tool = self.tool.fingerprint if self.tool is not None else ""
        execution, restored = self.execution, self._restored
        if execution is not None:
            return OpenCall(self.call.id, tool, execution.memory, execution.question, execution.child)
        if restored is None:
            return OpenCall(self.call.id, tool)
        if not restored.runs:
            return replace(restored.saved, question=restored.question)
        return replace(restored.saved, tool=tool)

    def closed(self, reason: str | None) -> ClosedCall:
        """The conversation's text for this call; `reason` is the run's, and the call's own takes precedence."""
        why = self.execution.why if self.execution is not None else None
        return closed_call(self.call, self.entry, (reason if why is None else why) or None)

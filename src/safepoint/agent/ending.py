"""How a run becomes its result: the closed conversation, the record of the stop, the sums. Plain functions only."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace

from safepoint._core.endings import Ending, Stop, Touched
from safepoint._core.reasons import Source
from safepoint._core.work import Done, Failed, Outcome
from safepoint.agent.batch import Batch
from safepoint.agent.checkpoint import Checkpoint
from safepoint.agent.record import Record
from safepoint.agent.result import NO_VALUE, RunResult, StopReason
from safepoint.agent.steering import joined
from safepoint.agent.steps import Close
from safepoint.errors import StoreError
from safepoint.history.closing import Draft, close_history, notice_text, quoted, remark
from safepoint.history.parts import Message
from safepoint.tools.rendering import render_error


@dataclass(frozen=True, slots=True)
class Closed:
    """The result, and what receipts say of it."""

    result: RunResult[str]
    ending: Ending

    def unless_saved(self, outcome: Outcome[None]) -> Closed:
        """The same, with the failure to save on result and receipt, if there was one."""
        if isinstance(outcome, Done):
            return self
        error = outcome.error if isinstance(outcome, Failed) else StoreError("the end of the run was not saved in time")
        return Closed(replace(self.result, save_error=error), replace(self.ending, save_error=error))


def close(record: Record, step: Close, batch: Batch | None) -> Closed:
    """Everything that is left of a run, computed from what was recorded. `batch`: calls whose results are open."""
    stop = record.node.stop if step.stop_reason is StopReason.CANCELLED else None
    draft = Draft(step.incoming.kept_text, step.incoming.kept_reasoning) if step.incoming is not None else None
    calls = batch.closed(stop.reason.text if stop is not None else None) if batch is not None else ()
    messages = close_history(
        joined(list(close_history(record.messages, batch=calls)), list(record.pending)),
        draft=draft,
        notice=_notice(step, stop, incomplete=draft is not None and draft.incomplete),
    )
    now = record.node.clock.wall()
    budget = stop is not None and stop.reason.source is Source.BUDGET
    result = RunResult(
        record.node.id,
        StopReason.BUDGET if budget else step.stop_reason,
        _last_words(messages),
        list(messages),
        tuple(record.ledger),
        record.usage,
        cancellation=stop.recorded(now) if stop is not None else None,
        checkpoint=_checkpoint(record, step, batch, messages, budget=budget),
        value=_value(record, step, messages),
        orphans=tuple(record.orphans),
        error=step.error,
    )
    return Closed(result, _ending(record, result, batch, now, cancelled=stop is not None))


def _checkpoint(
    record: Record, step: Close, batch: Batch | None, closed: tuple[Message, ...], *, budget: bool
) -> Checkpoint | None:
    """From where the run can go on; None if there is nothing left to do."""
    if step.stop_reason is StopReason.END_TURN:
        return None
    stop = record.node.stop
    return Checkpoint(
        f"checkpoint_{uuid.uuid4().hex}",
        record.agent.name,
        record.node.id,
        StopReason.BUDGET if budget else step.stop_reason,
        closed,
        tuple(record.messages),
        tuple(record.ledger),
        {call.call.id: call.opened() for call in batch.calls} if batch is not None else {},
        record.steps_done,
        record.spent,
        stop.reason if stop is not None else None,
        record.pending,
        record.meter.used() if record.meter is not None else {},
    )


def _value(record: Record, step: Close, messages: tuple[Message, ...]) -> object:
    """The typed answer of a run that has one."""
    output = record.agent.output_tool
    if step.stop_reason is not StopReason.END_TURN or output is None:
        return NO_VALUE
    return output.read(_last_words(messages))


def _ending(record: Record, result: RunResult[str], batch: Batch | None, now: float, *, cancelled: bool) -> Ending:
    touched = [Touched(call.path, call.call.name, call.entry.state) for call in batch.calls] if batch else []
    return Ending(
        cancelled,
        now,
        touched=tuple(touched),
        queued=batch.untouched if batch is not None else (),
        orphans=result.orphans,
        usage=result.usage,
    )


def _notice(step: Close, stop: Stop | None, *, incomplete: bool) -> str | None:
    """What the next model call is told, if the run did not end with an answer."""
    if stop is not None:
        why = stop.reason
        return notice_text(reason=why.text, source=why.source, by=why.by, incomplete=incomplete)
    if step.stop_reason is StopReason.ERROR:
        error = quoted(render_error(step.error or Exception("unknown")))
        return remark(f"This run failed before it was done: {error}.")
    told = _REMARKS.get(step.stop_reason)
    return remark(told) if told is not None else None


_REMARKS = {
    StopReason.MAX_TOKENS: "The answer was cut off: the limit of tokens was reached.",
    StopReason.MAX_STEPS: "This run ended before it was done: it has made all the steps that it may make.",
    StopReason.INTERRUPTED: "This run waits for the answer of a person.",
    StopReason.REFUSED: "The model refused to answer.",
}


def _last_words(messages: tuple[Message, ...]) -> str:
    last = messages[-1]
    return last.text if last.role == "assistant" else ""

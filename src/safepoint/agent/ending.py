"""How a run becomes its result: the closed conversation, the record of the stop, the sums. Plain functions only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from safepoint._core.endings import Ending, Stop
from safepoint._core.reasons import Source
from safepoint._core.work import Done, Failed, Outcome
from safepoint.agent.checkpoint import Checkpoint, OpenCall
from safepoint.agent.record import Record
from safepoint.agent.remains import Remains
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


def close(record: Record, step: Close, remains: Remains, value_of: Callable[[str], object]) -> Closed:
    """Everything that is left of a run, computed from what was recorded. `value_of`: the typed answer of a text."""
    stop = record.node.stop if step.stop_reason is StopReason.CANCELLED else None
    draft = remains.draft
    if step.incoming is not None:
        draft = Draft(step.incoming.kept_text, step.incoming.kept_reasoning)
    messages = list(record.messages if remains.messages is None else remains.messages)
    # What came before this run is closed already, and may be long. A session that has moved on may be longer still.
    start = min(record.started_at, len(messages) - 1) if remains.messages is None else 0
    calls, said = remains.calls, messages[start:]
    if record.pending:
        calls, said = (), joined(list(close_history(said, batch=calls)), list(record.pending))
    notice = _notice(step, stop, remains.told, incomplete=draft is not None and draft.incomplete)
    messages[start:] = close_history(said, batch=calls, draft=draft, notice=notice)
    now = record.node.clock.wall()
    budget = stop is not None and stop.reason.source is Source.BUDGET
    text = _last_words(messages)
    result = RunResult(
        record.node.id,
        StopReason.BUDGET if budget else step.stop_reason,
        text,
        messages,
        tuple(record.ledger),
        record.usage,
        cancellation=stop.recorded(now) if stop is not None else None,
        checkpoint=_checkpoint(record, step, remains, messages, budget=budget),
        value=value_of(text) if step.stop_reason is StopReason.END_TURN else NO_VALUE,
        orphans=tuple(record.orphans),
        error=step.error,
        children=remains.children,
    )
    return Closed(result, _ending(result, remains, now, cancelled=stop is not None))


def _checkpoint(
    record: Record, step: Close, remains: Remains, closed: list[Message], *, budget: bool
) -> Checkpoint | None:
    """From where the run can go on; None if there is nothing left to do."""
    if step.stop_reason is StopReason.END_TURN:
        return None
    stop = record.node.stop
    return Checkpoint(
        f"checkpoint_of_{record.node.id}",  # a run ends once
        record.agent.name,
        record.node.id,
        StopReason.BUDGET if budget else step.stop_reason,
        tuple(closed),
        tuple(record.messages),
        tuple(record.ledger),
        remains.open,
        record.steps_done,
        record.spent,
        stop.reason if stop is not None else None,
        record.pending,
        record.meter.used() if record.meter is not None else {},
        {name: hook for name, hook in record.hooked.items() if hook != OpenCall(name, "")},
    )


def _ending(result: RunResult[str], remains: Remains, now: float, *, cancelled: bool) -> Ending:
    return Ending(
        cancelled,
        now,
        touched=remains.touched,
        queued=remains.queued,
        orphans=result.orphans,
        usage=result.usage,
    )


def _notice(step: Close, stop: Stop | None, told: str, *, incomplete: bool) -> str | None:
    """What the next model call is told, if the run did not end with an answer."""
    if stop is not None:
        why = stop.reason
        return notice_text(reason=why.text, source=why.source, by=why.by, incomplete=incomplete, told=told)
    if step.stop_reason is StopReason.ERROR:
        error = quoted(render_error(step.error or Exception("unknown")))
        return remark(f"This run failed before it was done: {error}. {told}".strip())
    why_not = _REMARKS.get(step.stop_reason)
    return remark(f"{why_not} {told}".strip()) if why_not is not None else None


_REMARKS = {
    StopReason.MAX_TOKENS: "The answer was cut off: the limit of tokens was reached.",
    StopReason.MAX_STEPS: "This run ended before it was done: it has made all the steps that it may make.",
    StopReason.INTERRUPTED: "This run waits for the answer of a person.",
    StopReason.REFUSED: "The model refused to answer.",
}


def _last_words(messages: list[Message]) -> str:
    last = messages[-1]
    return last.text if last.role == "assistant" else ""

"""How a run becomes its result: the closed conversation, the record of the stop, the sums. Plain functions only."""

from __future__ import annotations

from dataclasses import dataclass

from safepoint._core.endings import Cancellation, Ending, Stop, Touched
from safepoint.agent.batch import Batch
from safepoint.agent.record import Record
from safepoint.agent.result import RunResult, StopReason
from safepoint.agent.steps import Close
from safepoint.history.closing import Draft, close_history, notice_text, quoted
from safepoint.history.parts import Message
from safepoint.tools.rendering import render_error


@dataclass(frozen=True, slots=True)
class Closed:
    """The result, and what receipts say of it."""

    result: RunResult[str]
    ending: Ending


def close(record: Record, step: Close) -> Closed:
    """Everything that is left of a run, computed from what was recorded."""
    stop = record.node.stop if step.stop_reason is StopReason.CANCELLED else None
    draft = Draft(step.incoming.kept_text, step.incoming.kept_reasoning) if step.incoming is not None else None
    messages = close_history(
        record.messages,
        batch=step.batch.closed(stop.reason.text if stop is not None else None) if step.batch is not None else (),
        draft=draft,
        notice=_notice(step, stop, incomplete=draft is not None and draft.incomplete),
    )
    now = record.node.clock.wall()
    result = RunResult(
        record.node.id,
        step.stop_reason,
        _last_words(messages),
        list(messages),
        tuple(record.ledger),
        record.usage,
        cancellation=_cancellation(stop, now) if stop is not None else None,
        orphans=tuple(record.orphans),
        error=step.error,
    )
    return Closed(result, _ending(record, result, step.batch, now))


def _ending(record: Record, result: RunResult[str], batch: Batch | None, now: float) -> Ending:
    touched = [Touched(record.node.path, call.call.name, call.entry.state) for call in batch.calls] if batch else []
    return Ending(
        result.stop_reason is StopReason.CANCELLED,
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
    match step.stop_reason:
        case StopReason.ERROR:
            return f"This run failed before it was done: {quoted(render_error(step.error or Exception('unknown')))}."
        case StopReason.MAX_TOKENS:
            return "The answer was cut off: the limit of tokens was reached."
        case StopReason.REFUSED:
            return "The model refused to answer."
        case _:
            return None


def _cancellation(stop: Stop, now: float) -> Cancellation:
    asks = stop.request.asks
    return Cancellation(
        stop.reason,
        tuple(ask.reason for ask in asks),
        stop.place,
        stop.level,
        stop.escalated,
        stop.timed_out,
        min(ask.asked_at for ask in asks),
        now,
    )


def _last_words(messages: tuple[Message, ...]) -> str:
    last = messages[-1]
    return last.text if last.role == "assistant" else ""

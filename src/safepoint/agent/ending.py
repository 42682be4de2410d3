"""How a run becomes its result: the closed conversation, the record of the stop, the sums. Plain functions only."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from msgspec.structs import replace

from safepoint._core.endings import Cancellation, Ending
from safepoint._core.orphans import Orphan
from safepoint._core.reasons import Source
from safepoint._core.work import Failed, Returned, WorkResult
from safepoint.agent.checkpoint import Checkpoint, Counted, OpenCall, Stopped, checkpoint_at
from safepoint.agent.ledger import LedgerEntry, closed_call
from safepoint.agent.open_calls import OpenCalls
from safepoint.agent.result import NO_VALUE, RunResult, StopReason
from safepoint.agent.run_context import RunContext
from safepoint.agent.steering import joined
from safepoint.agent.steps import Close
from safepoint.agent.usage import NO_USAGE, Usage
from safepoint.errors import StoreError
from safepoint.history.check import check_history
from safepoint.history.closing import WAITS, Draft, close_history, notice_text, quoted, remark
from safepoint.history.estimate import estimate_messages
from safepoint.history.parts import Message, Notice, Text
from safepoint.history.rendering import render_error
from safepoint.history.states import LedgerState

if TYPE_CHECKING:
    from safepoint.agent.base import BaseAgent

T = TypeVar("T")

_log = logging.getLogger("safepoint")


class Closed(NamedTuple):
    """The result, and the ending for the receipts."""

    result: RunResult[str]
    ending: Ending

    def unless_saved(self, outcome: WorkResult[None]) -> Closed:
        """The same, with the error of a failed save on result and receipt."""
        if isinstance(outcome, Returned):
            return self
        error = outcome.error if isinstance(outcome, Failed) else StoreError("the end of the run was not saved in time")
        return Closed(replace(self.result, save_error=error), self.ending._replace(save_error=error))


def close(record: RunContext, step: Close, remains: OpenCalls, value_of: Callable[[str], object]) -> Closed:
    """Compute a run's end from its record. `value_of` makes the typed answer from a text."""
    now = record.node.clock.wall()
    stop = record.node.stop if step.stop_reason is StopReason.CANCELLED else None
    cancellation = stop.recorded(now) if stop is not None else None
    messages = _closed_messages(record, step, remains, cancellation)
    text = _last_words(messages[record.answers_at :])
    why = step.stop_reason
    if cancellation is not None and cancellation.reason.source is Source.BUDGET:
        why = StopReason.BUDGET
    ledger, orphans = tuple(record.ledger), tuple(record.orphans)
    result = RunResult(
        record.node.id,
        why,
        text,
        messages,
        ledger,
        record.usage,
        cancellation,
        _checkpoint(record, why, remains, tuple(messages), ledger),
        orphans,
        step.error,
        value=value_of(text) if why is StopReason.END_TURN else NO_VALUE,
        children=remains.children,
        steps=record.steps_done,
        agent=record.agent.name,
        taken_back=record.taken_back,
    )
    cancelled, made = cancellation is not None, result.checkpoint
    ending = Ending(
        cancelled,
        now,
        remains.touched,
        remains.queued,
        orphans,
        record.usage,
        unheard=record.steering.unheard(),
        cut_usage=record.cut_usage,
        next_usage=None if made is None else partial(_next_usage, made, record.agent),
    )
    return Closed(result, ending)


def _next_usage(checkpoint: Checkpoint, agent: BaseAgent[Any, Any]) -> Usage:  # Any: every agent
    """Instructions that a function makes come on top: it is not called for an estimate."""
    given = getattr(agent, "instructions", None)
    tools = [tool.spec for tool in agent.tools.values()]
    messages = (*checkpoint.open_messages, *checkpoint.pending)
    tokens = estimate_messages(messages, given if isinstance(given, str) else None, tools)
    return Usage(tokens, 0, 1, True)


def close_anyway(record: RunContext, error: BaseException) -> Closed:
    """The certain facts of a run that could not be closed: it failed with this error and cannot be continued.

    This function must not raise, even if code inside the run has damaged its record.
    """
    ledger = tuple(_attempt(lambda: [_over(entry) for entry in record.ledger], list[LedgerEntry]()))
    orphans = tuple(_attempt(lambda: list(record.orphans), list[Orphan]()))
    usage = _attempt(lambda: record.usage + NO_USAGE, NO_USAGE)
    messages = _certain_messages(record, ledger, error)
    result = RunResult(
        record.node.id, StopReason.ERROR, _last_words(messages), messages, ledger, usage, orphans=orphans, error=error
    )
    return Closed(result, Ending(False, record.node.clock.wall(), orphans=orphans, usage=usage))


def _attempt(make: Callable[[], T], otherwise: T) -> T:
    try:
        return make()
    except Exception:
        _log.exception("a part of a run that could not be closed is lost")
        return otherwise


def _over(entry: LedgerEntry) -> LedgerEntry:
    """The outcome of a call that was running is unknown."""
    return replace(entry, state=LedgerState.CUT) if entry.state is LedgerState.RUNNING else entry


def _certain_messages(record: RunContext, ledger: Sequence[LedgerEntry], error: BaseException) -> list[Message]:
    """The conversation, closed by the ledger; if that is no valid conversation, the run's opening messages."""
    notice = remark(f"This run failed before it was done: {quoted(render_error(error))}.")
    known = {entry.call_id: entry for entry in ledger}
    for said in (record.messages, record.opening):
        try:
            calls = [closed_call(call, known[call.id], None) for call in said[-1].tool_calls if call.id in known]
            messages = list(close_history(said, batch=calls, notice=notice))
            check_history(messages)
        except Exception as broken:
            _log.error("%s left a conversation that can't be closed: %s", record.node.path, render_error(broken))
        else:
            return messages
    return [Message("user", (Text("(what was asked is lost)"),)), Message("assistant", (Notice(notice),))]


def _closed_messages(
    record: RunContext, step: Close, remains: OpenCalls, cancellation: Cancellation | None
) -> list[Message]:
    draft = remains.draft
    if step.incoming is not None:
        draft = Draft(step.incoming.kept_text, step.incoming.kept_reasoning)
    messages = list(record.messages if remains.messages is None else remains.messages)
    # Earlier messages are closed already, and may be many.
    start = len(messages) - 1 if remains.messages is None else 0
    calls, said, pending = remains.calls, messages[start:], record.pending
    if pending:
        calls, said = (), joined(list(close_history(said, batch=calls)), list(pending))
    notice = _notice(step, cancellation, remains.report, incomplete=_is_incomplete(draft, remains.messages))
    messages[start:] = close_history(said, batch=calls, draft=draft, notice=notice)
    return messages


def _checkpoint(
    record: RunContext,
    why: StopReason,
    remains: OpenCalls,
    closed: tuple[Message, ...],
    ledger: tuple[LedgerEntry, ...],
) -> Checkpoint | None:
    """The checkpoint from which the run can continue; None if there is nothing left to do."""
    if why is StopReason.END_TURN:
        return None
    stop = record.node.stop
    reason = stop.reason if stop is not None else None
    name, id = record.agent.name, record.node.id
    made = checkpoint_at(
        Stopped(name, id, why, closed, tuple(record.messages), ledger, reason),
        Counted(record.steps_done, record.spent, record.used(), record.pending),
        calls=remains.open,
        hooks={name: hook for name, hook in record.hooked.items() if hook != OpenCall(name, "")},
    )
    return replace(made, since=record.since) if record.since else made


def _notice(step: Close, cancellation: Cancellation | None, report: str, *, incomplete: bool) -> str | None:
    """The notice to the next model call, if the run did not end with an answer."""
    if cancellation is not None:
        why = cancellation.reason
        return notice_text(reason=why.text, source=why.source, by=why.by, incomplete=incomplete, report=report)
    if step.stop_reason is StopReason.ERROR:
        error = quoted(render_error(step.error or Exception("unknown")))
        return remark(f"This run failed before it was done: {error}. {report}".strip())
    why_not = _REMARKS.get(step.stop_reason)
    return remark(f"{why_not} {report}".strip()) if why_not is not None else None


_REMARKS = {
    StopReason.MAX_TOKENS: "The answer was cut off: the limit of tokens was reached.",
    StopReason.MAX_STEPS: "This run ended before it was done: it has made all the steps that it may make.",
    StopReason.INTERRUPTED: WAITS,
    StopReason.REFUSED: "The model refused to answer.",
}


def _is_incomplete(draft: Draft | None, carried: Sequence[Message] | None) -> bool:
    """Whether the last words were cut short: the run's own, or those of a child that continued the conversation."""
    if draft is not None or not carried:
        return draft is not None and draft.incomplete
    return any(part.kind == "text" and part.incomplete for part in carried[-1].parts)


def _last_words(messages: list[Message]) -> str:
    """The model's last words, even if calls with their results, or only a notice, follow them."""
    for message in reversed(messages):
        if message.role == "assistant" and (text := message.text).strip():
            return text
    return ""

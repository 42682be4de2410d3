"""What a dead process leaves behind, and how it becomes a valid conversation again. Pure.

The order of the journal shows what happened: a call without an entry never ran, a `running` call was cut, a finished
call has its result. A sub-agent, or a child of a composite, was stopped where its own facts end. A run that continued
another one leaves the calls that it had not reached yet unchanged. The run is sealed as if it had been stopped NOW, and
can be continued from there.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from safepoint._core.clock import current_clock
from safepoint._core.reasons import Reason, Source
from safepoint.agent.checkpoint import Checkpoint, Counted, OpenCall, Stopped, checkpoint_at
from safepoint.agent.journal import Ended
from safepoint.agent.ledger import LedgerEntry, closed_call
from safepoint.agent.result import StopReason
from safepoint.agent.usage import NO_USAGE, Usage
from safepoint.history.closing import close_history, notice_text
from safepoint.history.parts import Message
from safepoint.history.states import LedgerState
from safepoint.storage.session_data import Stored, StoredRun

CRASH = Reason("the process that ran it died", Source.SHUTDOWN)
# For a reader of a session that another process has, or whose storage can't be written.
NOT_ENDED = Reason("when this was read it had not ended, or its end was not stored yet", Source.SHUTDOWN)


def sealed(stored: Stored, run: StoredRun, reason: Reason = CRASH) -> Ended:
    """The end of a run whose process died, or of which no more is known."""
    messages = stored.messages[run.index :]
    inside = {key: left for key, inner in run.inside.items() if (left := _left_inside(inner)) is not None}
    ledger = {entry.call_id: _settled(entry, run.continued, inside) for entry in run.ledger}
    last = messages[-1] if messages else None
    open_calls = last.tool_calls if last is not None else ()
    for call in open_calls:
        ledger.setdefault(call.id, LedgerEntry(call.id, call.name, call.args))
    batch = [closed_call(call, ledger[call.id], reason.text) for call in open_calls]
    notice = notice_text(reason=reason.text, source=reason.source)
    closed = close_history(stored.messages, batch=batch, notice=notice)
    entries = tuple(ledger.values())
    checkpoint = checkpoint_at(
        Stopped(run.agent, run.run_id, StopReason.CANCELLED, closed, stored.messages, entries, reason),
        _counted(run, messages),
        calls=_open_calls(run, messages, inside),
        hooks=_hooks(run),
    )
    usage, now = Usage(estimated=True), current_clock().wall()
    return Ended(run.run_id, StopReason.CANCELLED, run.index, closed[run.index :], entries, usage, checkpoint, now)


def _open_calls(run: StoredRun, messages: tuple[Message, ...], inside: Mapping[str, Checkpoint]) -> dict[str, OpenCall]:
    """Open calls, and the children of a composite, which are no part of the conversation."""
    over = {call.id for message in messages[:-1] for call in message.tool_calls}
    calls = {
        id: OpenCall(id, "", memory, child=inside.get(id)) for id, memory in run.memories.items() if id not in over
    }
    base = run.continued
    before: Mapping[str, OpenCall] = base.calls if base is not None else {}
    for entry in run.ledger:
        call = before.get(entry.call_id)
        if call is not None and _is_untouched(entry, base, inside):
            calls[entry.call_id] = replace(call, memory=run.memories.get(entry.call_id, call.memory))
    return calls


def _counted(run: StoredRun, messages: tuple[Message, ...]) -> Counted:
    """What the run has used: as it was last written, or else as it began, with the steps that can be seen."""
    steps, base = _steps(messages), run.continued
    if run.counted is not None:
        return replace(run.counted, step=max(steps, run.counted.step))
    if base is not None:
        return Counted(max(steps, base.step), base.spent, base.used, base.pending)
    return Counted(steps, NO_USAGE)


def _hooks(run: StoredRun) -> dict[str, OpenCall]:
    """What hooks remember. Those before a model call ask anew before the next one."""
    base = run.continued
    if base is None:
        return {}
    moved = run.counted is not None and run.counted.step > base.step
    return {name: hook for name, hook in base.hooks.items() if name != "before_model" or not moved}


def _left_inside(inner: Stored) -> Checkpoint | None:
    """From where the run inside goes on: where it had ended, or else as the one around it."""
    run = inner.runs[-1]
    return run.checkpoint if run.ended else sealed(inner, run).checkpoint


def _settled(entry: LedgerEntry, base: Checkpoint | None, inside: Mapping[str, Checkpoint]) -> LedgerEntry:
    if _is_untouched(entry, base, inside):
        before = base.ledger if base is not None else ()
        return next((known for known in before if known.call_id == entry.call_id), entry)
    if entry.state is not LedgerState.RUNNING:
        return entry
    return replace(entry, state=LedgerState.STOPPED if entry.call_id in inside else LedgerState.CUT)


def _is_untouched(entry: LedgerEntry, base: Checkpoint | None, inside: Mapping[str, Checkpoint]) -> bool:
    """Is the call as the run before has left it? A run that was to go on inside, and had not begun to, is."""
    if entry.state is not LedgerState.RUNNING:
        return entry.state is LedgerState.NOT_STARTED
    call = base.calls.get(entry.call_id) if base is not None else None
    return call is not None and call.child is not None and entry.call_id not in inside


def _steps(messages: tuple[Message, ...]) -> int:
    return sum(message.role == "assistant" for message in messages)

"""What a dead process leaves behind, and how it becomes a valid conversation again. Pure.

The journal's order makes it possible to tell: a call without an entry never ran, one that is `running` was cut, a
finished one has its result. A run that continued another one, and died before it came to a call, has left that call as
it found it. The run is sealed as if it had been stopped NOW, and can be continued from there.
"""

from __future__ import annotations

import uuid
from dataclasses import replace

from safepoint._core.clock import current_clock
from safepoint._core.reasons import Reason, Source
from safepoint.agent.checkpoint import Checkpoint, OpenCall
from safepoint.agent.journal import Ended
from safepoint.agent.ledger import LedgerEntry
from safepoint.agent.result import StopReason
from safepoint.agent.usage import Usage
from safepoint.history.closing import ClosedCall, close_history, notice_text
from safepoint.history.parts import Message
from safepoint.history.states import LedgerState
from safepoint.sessions.store import Stored, StoredRun

CRASH = Reason("the process that ran it died", Source.SHUTDOWN)


def sealed(stored: Stored, run: StoredRun) -> Ended:
    """The end of a run whose process died."""
    own = stored.messages[run.index :]
    before = {entry.call_id: entry for entry in run.continued.ledger} if run.continued is not None else {}
    ledger = {entry.call_id: _settled(entry, before) for entry in run.ledger}
    last = own[-1] if own else None
    open_calls = last.tool_calls if last is not None else ()
    for call in open_calls:
        ledger.setdefault(call.id, LedgerEntry(call.id, call.name, call.args))
    batch = [
        ClosedCall(
            call=call,
            state=ledger[call.id].state,
            content=ledger[call.id].content or "",
            error=ledger[call.id].error,
            reason=CRASH.text,
            point=ledger[call.id].point,
            still_running=ledger[call.id].still_running,
            remote=ledger[call.id].remote,
        )
        for call in open_calls
    ]
    notice = notice_text(reason=CRASH.text, source=CRASH.source)
    closed = close_history(stored.messages, batch=batch, notice=notice)
    checkpoint = _checkpoint(stored, run, closed, ledger)
    usage, now = Usage(estimated=True), current_clock().wall()
    entries = tuple(ledger.values())
    return Ended(run.run_id, StopReason.CANCELLED, run.index, closed[run.index :], entries, usage, checkpoint, now)


def _checkpoint(
    stored: Stored, run: StoredRun, closed: tuple[Message, ...], ledger: dict[str, LedgerEntry]
) -> Checkpoint:
    own = stored.messages[run.index :]
    # Open calls, and the children of a composite, which are no part of the conversation.
    over = {call.id for message in own[:-1] for call in message.tool_calls}
    calls = {id: OpenCall(id, "", memory) for id, memory in run.memories.items() if id not in over}
    base = run.continued
    checkpoint = Checkpoint(
        f"checkpoint_{uuid.uuid4().hex}",
        run.agent,
        run.run_id,
        StopReason.CANCELLED,
        closed,
        stored.messages,
        tuple(ledger.values()),
        calls,
        _steps(own),
        reason=CRASH,
    )
    if base is None:
        return checkpoint
    untouched = {entry.call_id for entry in run.ledger if entry.state is LedgerState.NOT_STARTED}
    for id, call in base.calls.items():
        if id in untouched:
            calls[id] = replace(call, memory=run.memories.get(id, call.memory))
    moved = stored.messages != base.open_messages
    hooks = {name: hook for name, hook in base.hooks.items() if name != "before_model" or not moved}
    return replace(
        checkpoint,
        step=max(checkpoint.step, base.step),
        spent=base.spent,
        used=base.used,
        pending=() if moved else base.pending,
        hooks=hooks,
    )


def _settled(entry: LedgerEntry, before: dict[str, LedgerEntry]) -> LedgerEntry:
    if entry.state is LedgerState.NOT_STARTED:
        return before.get(entry.call_id, entry)
    return replace(entry, state=LedgerState.CUT) if entry.state is LedgerState.RUNNING else entry


def _steps(messages: tuple[Message, ...]) -> int:
    return sum(message.role == "assistant" for message in messages)

"""What calls brought that came back after their run had ended, and how the next run learns of it. Pure.

A new run is told in the remark that closes the conversation; one that continues takes it for the result of its own
call, which then is not made again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from safepoint._core.orphans import Orphan
from safepoint.agent.checkpoint import Checkpoint
from safepoint.agent.journal import Opened, Said
from safepoint.agent.ledger import LedgerEntry
from safepoint.errors import CutShort, StopTool
from safepoint.history.closing import quoted
from safepoint.history.parts import Message, Notice
from safepoint.history.states import LedgerState
from safepoint.sessions.store import Change, LateResult, LateSet, Stored
from safepoint.tools.rendering import render_error, render_result

# How an abandoned call ends that heard of the stop in the end: it brings nothing.
_STOPPED_AFTER_ALL = (asyncio.CancelledError, StopTool, CutShort)


def late_result(orphan: Orphan) -> LateResult | None:
    """What it brought, if it is a tool call and has come back."""
    call_id = orphan.path.rpartition(f"/{orphan.name}:")[2]
    if orphan.still_running or "/" in call_id or isinstance(orphan.error, _STOPPED_AFTER_ALL):
        return None  # it still runs; or it is a hook or an undo; or it stopped after all, and brings nothing
    content = f"it failed: {render_error(orphan.error)}" if orphan.error else render_result(orphan.result).text
    return LateResult(call_id, orphan.name, content)


def late_change(stored: Stored, opened: Opened) -> list[Change]:
    """What the beginning of a run changes: it is told of late results, or takes those of its own calls."""
    if opened.continues is not None:
        taken = {entry.call_id for entry in opened.ledger if entry.state is LedgerState.FINISHED_LATE}
        left = tuple(late for late in stored.late if late.call_id not in taken)
        return [LateSet(left)] if left != stored.late else []
    if not _is_told(stored):
        return []
    return [Said(opened.index - 1, with_late_notes(stored)[-1], opened.at), LateSet(())]


def with_late_notes(stored: Stored) -> Sequence[Message]:
    """The conversation, its last remark completed with what came back late."""
    if not _is_told(stored):
        return stored.messages
    messages = list(stored.messages)
    told = " ".join(f"The call {late.name} finished after all: {quoted(late.content, 2000)}." for late in stored.late)
    before = " ".join(part.text for part in messages[-1].parts if isinstance(part, Notice))
    others = tuple(part for part in messages[-1].parts if not isinstance(part, Notice))
    messages[-1] = Message("assistant", (*others, Notice(f"{before} {told}".strip())))
    return messages


def completed(checkpoint: Checkpoint, late: Iterable[LateResult]) -> Checkpoint:
    """The checkpoint, its cut calls finished by what they brought."""
    came = {(each.call_id, each.name): each.content for each in late}
    return replace(checkpoint, ledger=tuple(_completed(entry, came) for entry in checkpoint.ledger))


def _completed(entry: LedgerEntry, came: Mapping[tuple[str, str], str]) -> LedgerEntry:
    content = came.get((entry.call_id, entry.name))
    if content is None or entry.state is not LedgerState.CUT:
        return entry
    return replace(entry, state=LedgerState.FINISHED_LATE, content=content, still_running=False)


def _is_told(stored: Stored) -> bool:
    return bool(stored.late and stored.messages) and stored.messages[-1].role == "assistant"

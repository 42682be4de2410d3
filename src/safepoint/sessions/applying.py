"""What a change does to a stored session. Pure: every store means the same by the same change."""

from __future__ import annotations

from dataclasses import replace

from safepoint.agent.journal import Called, Ended, Opened, Said
from safepoint.errors import CheckpointError
from safepoint.history.parts import Message
from safepoint.sessions.store import Change, LateSet, StateSet, Stored, StoredRun, Truncated


def apply(stored: Stored, change: Change) -> Stored:
    """The session after the change."""
    match change:
        case Opened():
            return _open(stored, change)
        case Said(index, message):
            return replace(stored, messages=_with(stored, index, (message,)) + stored.messages[index + 1 :])
        case Called(entry, memory):
            run = stored.runs[-1]
            ledger = {**{old.call_id: old for old in run.ledger}, entry.call_id: entry}
            memories = {**run.memories, entry.call_id: memory} if memory is not None else run.memories
            return _with_last(stored, replace(run, ledger=tuple(ledger.values()), memories=memories))
        case Ended():
            return _end(stored, change)
        case Truncated(index):
            runs = tuple(run for run in stored.runs if run.index < index)
            return replace(stored, messages=stored.messages[:index], runs=runs)
        case StateSet(state):
            return replace(stored, state=dict(state))
        case LateSet(late):
            return replace(stored, late=late)


def _open(stored: Stored, opened: Opened) -> Stored:
    """A run begins; one that continues takes the place of the run it continues."""
    before = stored.state
    runs = stored.runs
    if opened.continues is not None:
        last = runs[-1] if runs else None
        if last is None or last.checkpoint is None or last.checkpoint.id != opened.continues:
            raise CheckpointError(
                f"the session has moved on from the checkpoint {opened.continues}: it was continued already, "
                "or a new message came after it"
            )
        before, runs = last.state_before, runs[:-1]
    run = StoredRun(
        opened.run_id, opened.agent, opened.index, ended=False, ledger=opened.ledger, state_before=dict(before)
    )
    return replace(stored, messages=_with(stored, opened.index, opened.messages), runs=(*runs, run))


def _end(stored: Stored, ended: Ended) -> Stored:
    run = replace(
        stored.runs[-1],
        ended=True,
        stop_reason=str(ended.stop_reason),
        checkpoint=ended.checkpoint,
        ledger=ended.ledger,
    )
    return _with_last(replace(stored, messages=_with(stored, ended.index, ended.messages)), run)


def _with(stored: Stored, index: int, messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """The conversation up to there, then these. One quick copy of what may be long; `(*a, *b)` makes three."""
    return stored.messages[:index] + messages


def _with_last(stored: Stored, run: StoredRun) -> Stored:
    return replace(stored, runs=(*stored.runs[:-1], run))

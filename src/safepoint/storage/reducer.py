"""What a change does to a stored session. Pure: every store means the same by the same change."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice, zip_longest

from msgspec.structs import replace

from safepoint.agent.checkpoint import Checkpoint
from safepoint.agent.journal import Called, Counted, Ended, Fact, Inside, Opened, Said
from safepoint.errors import CheckpointError
from safepoint.history.parts import Message
from safepoint.storage.session_data import Change, LateSet, Released, StateSet, Stored, StoredRun, Truncated


def apply(stored: Stored, change: Change) -> Stored:
    """The session after the change."""
    match change:
        case Opened():
            return _open(stored, change)
        case Said(index, message, at):
            said = _saying(stored, index, (message,), at, runs=stored.runs)
            messages, times = said.messages + stored.messages[index + 1 :], said.times + stored.times[index + 1 :]
            return replace(said, messages=messages, times=times)
        case Called(entry, memory):
            run = stored.runs[-1]
            ledger = {**{old.call_id: old for old in run.ledger}, entry.call_id: entry}
            memories = {**run.memories, entry.call_id: memory} if memory is not None else run.memories
            return _with_last(stored, replace(run, ledger=tuple(ledger.values()), memories=memories))
        case Counted():
            return _with_last(stored, replace(stored.runs[-1], counted=change))
        case Inside(key, fact):
            return _inside(stored, key, fact)
        case Ended():
            return _end(stored, change)
        case Truncated(index):
            runs = tuple(run for run in stored.runs if run.index < index)
            return replace(stored, messages=stored.messages[:index], times=stored.times[:index], runs=runs)
        case StateSet(state):
            return replace(stored, state=dict(state))
        case LateSet(late):
            return replace(stored, late=late)
        case Released():
            return stored


def mark_known(stored: Stored, changes: Sequence[Change]) -> Sequence[Change]:
    """The changes; a checkpoint among them is marked with how many of its first messages the session stores anyway.

    It is not marked if several changes of the conversation come at once: each would have to be applied before the next.
    """
    facts = [change for change in changes if isinstance(change, Opened | Said | Ended)]
    if len(facts) != 1:
        return changes
    [fact] = facts
    if isinstance(fact, Opened) and fact.base is not None and _begins(fact.base, stored, fact.index):
        return [replace(fact, known=fact.index) if change is fact else change for change in changes]
    if isinstance(fact, Ended) and fact.checkpoint is not None and _begins(fact.checkpoint, stored, fact.index):
        new_messages = fact.checkpoint.messages[fact.index :]
        known = fact.index + (len(new_messages) if new_messages == fact.messages else 0)
        return [replace(fact, known=known) if change is fact else change for change in changes]
    return changes


def _begins(checkpoint: Checkpoint, stored: Stored, index: int) -> bool:
    return len(stored.messages) >= index and checkpoint.messages[:index] == stored.messages[:index]


def _open(stored: Stored, opened: Opened) -> Stored:
    """A run begins. It takes the place of the run that it continues; if it continues none, the open one is dropped."""
    before, origin, runs = stored.state, opened.run_id, stored.runs
    if opened.continues is not None:
        last = runs[-1] if runs else None
        if last is None or last.checkpoint is None or last.checkpoint.id != opened.continues:
            raise CheckpointError(
                f"the session has moved on from the checkpoint {opened.continues}: it was continued already, "
                "or a new message came after it"
            )
        before, origin, runs = last.state_before, last.origin, runs[:-1]
    elif runs and runs[-1].checkpoint is not None:
        runs = (*runs[:-1], replace(runs[-1], checkpoint=runs[-1].checkpoint.drop()))
    run = StoredRun(
        opened.run_id,
        opened.agent,
        opened.index,
        ended=False,
        ledger=opened.ledger,
        state_before=dict(before),
        origin=origin,
        continued=opened.base,
    )
    return _saying(stored, opened.index, opened.messages, opened.at, runs=(*runs, run))


def _inside(stored: Stored, key: str, fact: Fact) -> Stored:
    """A run inside the last run is stored like that run, apart, and begins with the same messages."""
    run = stored.runs[-1]
    inner = Stored(stored.messages, {}, times=stored.times) if isinstance(fact, Opened) else run.inside.get(key)
    if inner is None or run.ended:
        return stored  # how it began is not recorded
    return _with_last(stored, replace(run, inside={**run.inside, key: apply(inner, fact)}))


def _end(stored: Stored, ended: Ended) -> Stored:
    run = replace(
        stored.runs[-1],
        ended=True,
        stop_reason=str(ended.stop_reason),
        checkpoint=ended.checkpoint,
        ledger=ended.ledger,
        continued=None,
        counted=None,
        inside={},
    )
    return _saying(stored, ended.index, ended.messages, ended.at, runs=(*stored.runs[:-1], run))


def _saying(
    stored: Stored, index: int, messages: tuple[Message, ...], at: float, *, runs: tuple[StoredRun, ...]
) -> Stored:
    """The conversation up to there, then these. One quick copy of what may be long; `(*a, *b)` makes three."""
    before = zip(stored.messages[index:], stored.times[index:], strict=True)
    known = zip_longest(messages, islice(before, len(messages)), fillvalue=(None, at))
    times = tuple(time if old == new else at for new, (old, time) in known)
    said = (stored.messages[:index] + messages, stored.times[:index] + times)
    return Stored(said[0], stored.state, runs, stored.late, stored.epoch, said[1], stored.number)


def _with_last(stored: Stored, run: StoredRun) -> Stored:
    return replace(stored, runs=(*stored.runs[:-1], run))

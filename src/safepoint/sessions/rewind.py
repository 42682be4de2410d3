"""Rewinding the last turn. Pure: what changes in the store, and which effects remain."""

from __future__ import annotations

from dataclasses import dataclass

from safepoint.agent.checkpoint import Checkpoint
from safepoint.agent.journal import Said
from safepoint.agent.ledger import LedgerEntry, has_effect
from safepoint.errors import CheckpointError
from safepoint.history.parts import Message, common
from safepoint.storage.session_data import Change, StateSet, Stored, Truncated


@dataclass(frozen=True, slots=True)
class Rewound:
    """What a rewind took back, and which effects of tools remain in the world all the same."""

    messages: tuple[Message, ...]
    effects: tuple[LedgerEntry, ...]


def last_turn_taken_back(stored: Stored, turn: str | None) -> tuple[Rewound, list[Change]]:
    """`turn`: the run that has to have made it, or begun it."""
    last = stored.runs[-1] if stored.runs else None
    if last is None or turn not in (None, last.run_id, last.origin):
        return Rewound((), ()), []
    rewound = Rewound(stored.messages[last.index :], tuple(filter(has_effect, last.ledger)))
    return rewound, [Truncated(last.index), StateSet(last.state_before)]


def messages_up_to(stored: Stored, at: Checkpoint | None) -> list[Said]:
    """All messages of the session; or those of a checkpoint of its last run, each with its time if it is stored."""
    if at is None:
        return [Said(place, *each) for place, each in enumerate(zip(stored.messages, stored.times, strict=True))]
    shared = common(stored.messages, at.messages)
    if shared < len(at.open_messages):
        raise CheckpointError("the checkpoint is of no run of this session: write result.at(step) of one of its own")
    times = [*stored.times[:shared], *[stored.times[shared - 1]] * (len(at.messages) - shared)]
    return [Said(place, *each) for place, each in enumerate(zip(at.messages, times, strict=True))]

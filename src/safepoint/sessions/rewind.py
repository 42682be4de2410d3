"""Rewinding the last turn. Pure: what changes in the store, and which effects remain."""

from __future__ import annotations

from dataclasses import dataclass

from safepoint.agent.ledger import LedgerEntry
from safepoint.history.parts import Message
from safepoint.history.states import LedgerState
from safepoint.storage.session_data import Change, StateSet, Stored, Truncated
from safepoint.tools.options import Effect

_HAPPENED = frozenset(
    {
        LedgerState.FINISHED,
        LedgerState.FINISHED_LATE,
        LedgerState.FAILED,
        LedgerState.CUT,
        LedgerState.STOPPED,
        LedgerState.WAITING,
    }
)


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


def has_effect(entry: LedgerEntry) -> bool:
    """Did the call reach the world, or may it have? A call that was denied or refused never ran a line."""
    ran = entry.started_at is not None or entry.state not in (LedgerState.FAILED, LedgerState.WAITING)
    return ran and entry.state in _HAPPENED and entry.effect is not Effect.PURE

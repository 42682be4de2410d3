"""The ledger's words for one tool call. The same in code, events, JSON and history.

    not_started ──▶ running ──┬─▶ finished
                      ▲ │     ├─▶ failed
                      │ ▼     ├─▶ stopped        at its own safe point, or a sub-agent with a checkpoint
                    waiting   └─▶ cut ──┬─▶ compensated     its undo completed
                (for a person)          └─▶ finished_late   an orphan came back after the run had ended

A closed history never says `running`: once a run writes nothing more, such a call was cut. `waiting` stays,
because a run that waits for a person has ended too. Only `finished` and `finished_late` carry a real result.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class LedgerState(StrEnum):
    """What really happened to a call."""

    NOT_STARTED = "not_started"
    RUNNING = "running"
    WAITING = "waiting"
    FINISHED = "finished"
    FAILED = "failed"
    CUT = "cut"
    STOPPED = "stopped"
    COMPENSATED = "compensated"
    FINISHED_LATE = "finished_late"


CLOSED_STATES: Final = frozenset(LedgerState) - {LedgerState.RUNNING}
"""The states that a result in a closed history may have."""

"""Loops of turns: push items to a running agent, preempt it at a safe point, and stop without losing one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from safepoint.turns.events import EventsMissed, ItemsDropped, LoopEnded, LoopEvent, LoopReader, TurnEnded, TurnStarted
from safepoint.turns.exit import ExitReason, ExitState, Saved, SavedState
from safepoint.turns.loop import TurnLoop
from safepoint.turns.options import PushOptions
from safepoint.turns.plan import Plan, PlanContext, Previous, ResumePlan
from safepoint.turns.receipts import PushOutcome, PushReceipt, StopOutcome, StopReceipt
from safepoint.turns.record import ItemCodec
from safepoint.turns.store import MemoryTurnStore, TurnStore
from safepoint.turns.turn import Turn, TurnOutcome, TurnPhase

if TYPE_CHECKING:
    from safepoint.turns.sqlite import SqliteTurnStore

__all__ = [
    "EventsMissed",
    "ExitReason",
    "ExitState",
    "ItemCodec",
    "ItemsDropped",
    "LoopEnded",
    "LoopEvent",
    "LoopReader",
    "MemoryTurnStore",
    "Plan",
    "PlanContext",
    "Previous",
    "PushOptions",
    "PushOutcome",
    "PushReceipt",
    "ResumePlan",
    "Saved",
    "SavedState",
    "SqliteTurnStore",
    "StopOutcome",
    "StopReceipt",
    "Turn",
    "TurnEnded",
    "TurnLoop",
    "TurnOutcome",
    "TurnPhase",
    "TurnStarted",
    "TurnStore",
]


def __getattr__(name: str) -> object:
    """SQLite is loaded by those who use it."""
    if name == "SqliteTurnStore":
        from safepoint.turns.sqlite import SqliteTurnStore

        return SqliteTurnStore
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

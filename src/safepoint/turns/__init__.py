"""Loops of turns: push items to a running agent, preempt it at a safe point, and stop without losing one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from safepoint.turns.codec import ItemCodec
from safepoint.turns.events import EventsMissed, ItemsDropped, LoopEnded, LoopEvent, LoopReader, TurnEnded, TurnStarted
from safepoint.turns.exit import ExitReason, ExitState, FailedTurn, Saved, SavedState
from safepoint.turns.loop import TurnLoop
from safepoint.turns.options import PushOptions
from safepoint.turns.plan import Plan, PlanContext, Previous, ResumePlan
from safepoint.turns.receipts import ItemOutcome, PushOutcome, PushReceipt, StopOutcome, StopReceipt
from safepoint.turns.retry import Retry
from safepoint.turns.store import MemoryTurnStore, TurnStore
from safepoint.turns.turn import Turn, TurnOutcome, TurnPhase
from safepoint.turns.view import LoopView, TurnView

if TYPE_CHECKING:
    from safepoint.turns.sqlite import SqliteTurnStore

__all__ = [
    "EventsMissed",
    "ExitReason",
    "ExitState",
    "FailedTurn",
    "ItemCodec",
    "ItemOutcome",
    "ItemsDropped",
    "LoopEnded",
    "LoopEvent",
    "LoopReader",
    "LoopView",
    "MemoryTurnStore",
    "Plan",
    "PlanContext",
    "Previous",
    "PushOptions",
    "PushOutcome",
    "PushReceipt",
    "ResumePlan",
    "Retry",
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
    "TurnView",
]


def __getattr__(name: str) -> object:
    """Load SQLite only on first use."""
    if name == "SqliteTurnStore":
        from safepoint.turns.sqlite import SqliteTurnStore

        return SqliteTurnStore
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

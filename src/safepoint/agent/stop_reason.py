"""Why runs end, as results and checkpoints say it."""

from __future__ import annotations

from enum import StrEnum


class StopReason(StrEnum):
    """Why a run ended."""

    END_TURN = "end_turn"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"
    MAX_STEPS = "max_steps"
    MAX_TOKENS = "max_tokens"
    BUDGET = "budget"
    REFUSED = "refused"
    ERROR = "error"

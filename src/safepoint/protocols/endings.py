"""How a run ended, in the words of each protocol: one table, with a column for each wire.

A column maps every `Ending`, so a protocol cannot forget one; a test holds each cell to what it says here.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from safepoint._core.reasons import Source
from safepoint.agent.stop_reason import StopReason


class Ending(StrEnum):
    """A row of the table: why a run ended, as far as any client can tell the difference."""

    END_TURN = "end_turn"
    CANCELLED_BY_CLIENT = "cancelled_by_client"
    CANCELLED_OTHERWISE = "cancelled_otherwise"
    INTERRUPTED = "interrupted"
    MAX_STEPS = "max_steps"
    BUDGET = "budget"
    MAX_TOKENS = "max_tokens"
    REFUSED = "refused"
    ERROR = "error"

    @staticmethod
    def of(stop_reason: StopReason, source: Source | None) -> Ending:
        """`source`: who asked a cancelled run to stop."""
        if stop_reason is not StopReason.CANCELLED:
            return Ending(stop_reason.value)
        return Ending.CANCELLED_BY_CLIENT if source in CLIENT_SOURCES else Ending.CANCELLED_OTHERWISE


# A client stops a run by saying so, by sending the message that replaces it, or by leaving.
CLIENT_SOURCES: Final = frozenset({Source.USER, Source.PREEMPT, Source.DISCONNECT})

REQUEST_CANCELLED: Final = -32800
INTERNAL_ERROR: Final = -32603

# The stop reason of the answer to `session/prompt`, or the code of the error that takes its place. A question that the
# client can show as a permission request does not end the turn; any other is told as text.
ACP: Final[Mapping[Ending, str | int]] = MappingProxyType(
    {
        Ending.END_TURN: "end_turn",
        Ending.CANCELLED_BY_CLIENT: "cancelled",
        Ending.CANCELLED_OTHERWISE: REQUEST_CANCELLED,
        Ending.INTERRUPTED: "end_turn",
        Ending.MAX_STEPS: "max_turn_requests",
        Ending.BUDGET: "max_turn_requests",
        Ending.MAX_TOKENS: "max_tokens",
        Ending.REFUSED: "refusal",
        Ending.ERROR: INTERNAL_ERROR,
    }
)

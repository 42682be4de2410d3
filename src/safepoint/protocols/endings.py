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

# The last event of a run, and its outcome or its code. Clients before 1.0 get RUN_ERROR `abort` for `cancelled`. What a
# client can not tell from an answer, as that it is too long, is in the event's metadata.
AG_UI: Final[Mapping[Ending, tuple[str, str]]] = MappingProxyType(
    {
        Ending.END_TURN: ("RUN_FINISHED", "success"),
        Ending.CANCELLED_BY_CLIENT: ("RUN_FINISHED", "cancelled"),
        Ending.CANCELLED_OTHERWISE: ("RUN_FINISHED", "cancelled"),
        Ending.INTERRUPTED: ("RUN_FINISHED", "interrupt"),
        Ending.MAX_STEPS: ("RUN_ERROR", "max_steps"),
        Ending.BUDGET: ("RUN_ERROR", "budget"),
        Ending.MAX_TOKENS: ("RUN_FINISHED", "success"),
        Ending.REFUSED: ("RUN_FINISHED", "success"),
        Ending.ERROR: ("RUN_ERROR", "error"),
    }
)

# The finish reason of the message; `error` is a chunk of its own in the place of `finish`. Before `interrupted` comes
# an `abort` with the reason.
UI_STREAM: Final[Mapping[Ending, str]] = MappingProxyType(
    {
        Ending.END_TURN: "stop",
        Ending.CANCELLED_BY_CLIENT: "interrupted",
        Ending.CANCELLED_OTHERWISE: "interrupted",
        Ending.INTERRUPTED: "tool-calls",
        Ending.MAX_STEPS: "other",
        Ending.BUDGET: "other",
        Ending.MAX_TOKENS: "length",
        Ending.REFUSED: "content-filter",
        Ending.ERROR: "error",
    }
)

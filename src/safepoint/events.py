"""The events of a run, for `match` and `isinstance`: see `safepoint.agent.events` for what each one says.

`to_json` and `from_json` carry an event to another process.
"""

from safepoint.agent.event_json import from_json, to_json
from safepoint.agent.events import (
    CancelRequested,
    Event,
    HoldEnded,
    HoldStarted,
    HookFailed,
    Lagged,
    ModelCallEnded,
    ModelCallStarted,
    ReasoningStreamed,
    RetryScheduled,
    RunEnded,
    RungReached,
    RunStarted,
    TextStreamed,
    ToolCallEnded,
    ToolCallStarted,
    ToolOutputStreamed,
)

__all__ = [
    "CancelRequested",
    "Event",
    "HoldEnded",
    "HoldStarted",
    "HookFailed",
    "Lagged",
    "ModelCallEnded",
    "ModelCallStarted",
    "ReasoningStreamed",
    "RetryScheduled",
    "RunEnded",
    "RunStarted",
    "RungReached",
    "TextStreamed",
    "ToolCallEnded",
    "ToolCallStarted",
    "ToolOutputStreamed",
    "from_json",
    "to_json",
]

"""All events that a run emits, as one closed union.

Each event has the id of its run, the path of its node in the tree, a sequence number that is unique in the tree and
increases, and a time. Starts and ends are paired on every path, and `RunEnded` comes exactly once, last.
"""

from __future__ import annotations

from typing import TypeAlias

from safepoint._core.asks import Ask
from safepoint._core.endings import Cancellation
from safepoint._core.ladder import Rung
from safepoint._core.reasons import Reason
from safepoint._values import Value
from safepoint.agent.ledger import LedgerEntry
from safepoint.agent.usage import Usage
from safepoint.history.parts import Message, ToolCall


class EventOrigin(Value, frozen=True, kw_only=True, tag_field="kind"):
    """The fields that every event has: where and when it happened."""

    run_id: str
    path: str
    seq: int
    time: float


class RunStarted(EventOrigin, frozen=True, kw_only=True, tag="run_started"):
    agent: str


class ModelCallStarted(EventOrigin, frozen=True, kw_only=True, tag="model_call_started"):
    """`model` is the name that chooses the model; `model_name` and `provider_name` are the provider's own names."""

    step: int
    model: str
    model_name: str | None = None
    provider_name: str | None = None


class TextStreamed(EventOrigin, frozen=True, kw_only=True, tag="text_streamed"):
    """More words of the answer. A slow reader gets several pieces as one."""

    step: int
    text: str


class ReasoningStreamed(EventOrigin, frozen=True, kw_only=True, tag="reasoning_streamed"):
    step: int
    text: str


class ModelCallEnded(EventOrigin, frozen=True, kw_only=True, tag="model_call_ended"):
    """`message` is the reply or, if it is not `complete`, the words that had arrived; None if there were none.

    `cancellation`: why the call was cut.
    """

    step: int
    message: Message | None
    usage: Usage
    complete: bool
    error: BaseException | None = None
    cancellation: Cancellation | None = None


class RetryScheduled(EventOrigin, frozen=True, kw_only=True, tag="retry_scheduled"):
    step: int
    delay: float
    error: BaseException


class ToolCallStarted(EventOrigin, frozen=True, kw_only=True, tag="tool_call_started"):
    call: ToolCall


class ToolOutputStreamed(EventOrigin, frozen=True, kw_only=True, tag="tool_output_streamed"):
    """More output of a running tool, sent with `ctx.tell(…)`. A slow reader gets several pieces as one."""

    call_id: str
    text: str


class ToolCallEnded(EventOrigin, frozen=True, kw_only=True, tag="tool_call_ended"):
    """The ledger's entry as recorded, also for a call that never started. `cancellation`: why the call was cut."""

    entry: LedgerEntry
    cancellation: Cancellation | None = None


class CancelRequested(EventOrigin, frozen=True, kw_only=True, tag="cancel_requested"):
    """An ask arrived. Later events say whether it stops anything."""

    ask: Ask


class HoldStarted(EventOrigin, frozen=True, kw_only=True, tag="hold_started"):
    """A run, or a tool at a point of its own, waits at this place until it is released or stopped."""

    place: str
    reason: Reason


class HoldEnded(EventOrigin, frozen=True, kw_only=True, tag="hold_ended"):
    """It waits no longer: it goes on, or it is `stopped` there."""

    place: str
    stopped: bool


class RungReached(EventOrigin, frozen=True, kw_only=True, tag="rung_reached"):
    """A piece of work climbed a rung of the ladder. `call_id`: the id of the tool call, if the work is one."""

    name: str
    rung: Rung
    call_id: str | None = None


class HookFailed(EventOrigin, frozen=True, kw_only=True, tag="hook_failed"):
    hook: str
    error: BaseException


class Lagged(EventOrigin, frozen=True, kw_only=True, tag="lagged"):
    """This reader was too slow: `missed` pieces of text were dropped here. Only text is ever dropped."""

    missed: int


class RunEnded(EventOrigin, frozen=True, kw_only=True, tag="run_ended"):
    """The run's one terminal event."""

    stop_reason: str
    usage: Usage
    cancellation: Cancellation | None = None
    error: BaseException | None = None


Event: TypeAlias = (
    RunStarted
    | ModelCallStarted
    | TextStreamed
    | ReasoningStreamed
    | ModelCallEnded
    | RetryScheduled
    | ToolCallStarted
    | ToolOutputStreamed
    | ToolCallEnded
    | CancelRequested
    | HoldStarted
    | HoldEnded
    | RungReached
    | HookFailed
    | Lagged
    | RunEnded
)

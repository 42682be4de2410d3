"""Everything a run tells while it goes, as one closed union.

Each event has the id of the run it is about, the path of its node in the tree, a sequence number that is unique in the
tree and rises, and a time. Starts and ends are paired on every path, and `RunEnded` comes exactly once, last.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from safepoint._core.asks import Ask
from safepoint._core.endings import Cancellation
from safepoint._core.ladder import Rung
from safepoint.agent.ledger import LedgerEntry
from safepoint.agent.usage import Usage
from safepoint.history.parts import Message, ToolCall


@dataclass(frozen=True, slots=True, kw_only=True)
class EventOrigin:
    """Where and when: the fields that every event has."""

    run_id: str
    path: str
    seq: int
    time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted(EventOrigin):
    agent: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCallStarted(EventOrigin):
    """`model` is the name that chooses it; `model_name` and `provider_name` are what its provider calls both."""

    step: int
    model: str
    model_name: str | None = None
    provider_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TextStreamed(EventOrigin):
    """More words of the answer. A slow reader gets several pieces as one."""

    step: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningStreamed(EventOrigin):
    step: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCallEnded(EventOrigin):
    """`message` is the reply, or, if it is not `complete`, the words that had come; None if there were none.

    `cancellation`: why it was cut.
    """

    step: int
    message: Message | None
    usage: Usage
    complete: bool
    error: BaseException | None = None
    cancellation: Cancellation | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryScheduled(EventOrigin):
    step: int
    delay: float
    error: BaseException


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallStarted(EventOrigin):
    call: ToolCall


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOutputStreamed(EventOrigin):
    """More of what a running tool tells, with `ctx.tell(…)`. A slow reader gets several pieces as one."""

    call_id: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallEnded(EventOrigin):
    """The ledger's entry as recorded; also for a call that never started. `cancellation`: why it was cut."""

    entry: LedgerEntry
    cancellation: Cancellation | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelRequested(EventOrigin):
    """Somebody asked. Whether it stops anything is told by later events."""

    ask: Ask


@dataclass(frozen=True, slots=True, kw_only=True)
class RungReached(EventOrigin):
    """A piece of work climbed a rung of the ladder. `call_id`: of the tool call, if it is one."""

    name: str
    rung: Rung
    call_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HookFailed(EventOrigin):
    hook: str
    error: BaseException


@dataclass(frozen=True, slots=True, kw_only=True)
class Lagged(EventOrigin):
    """This reader was too slow: `missed` pieces of text were left out here. Nothing else ever is."""

    missed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded(EventOrigin):
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
    | RungReached
    | HookFailed
    | Lagged
    | RunEnded
)

"""The next steps of a run. The driver is a plain loop over this closed union."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from safepoint.agent.partial_reply import PartialReply
from safepoint.agent.result import StopReason
from safepoint.agent.tool_batch import ToolBatch


@dataclass(frozen=True, slots=True)
class Begin:
    """Run the hooks that come first."""


@dataclass(frozen=True, slots=True)
class CallModel:
    """Make a model call: try number `attempt`, with one of the agent's models."""

    attempt: int = 0
    model: int = 0

    @property
    def is_repeated(self) -> bool:
        """Whether the step was counted before, at its first try."""
        return self.attempt > 0 or self.model > 0


@dataclass(frozen=True, slots=True)
class BackOff:
    """Wait before trying again."""

    seconds: float
    then: CallModel


@dataclass(frozen=True, slots=True)
class RunTools:
    """Carry out the calls of the last reply."""

    batch: ToolBatch


@dataclass(frozen=True, slots=True)
class Finalize:
    """The answer is complete and recorded; run the hooks that follow it."""

    stop_reason: StopReason


@dataclass(frozen=True, slots=True)
class Close:
    """Close the history and seal the run. `incoming`: a reply that was cut."""

    stop_reason: StopReason
    incoming: PartialReply | None = None
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """Everything is recorded."""


OwnStep: TypeAlias = CallModel | BackOff | RunTools
Step: TypeAlias = Begin | OwnStep | Finalize | Close | Done

"""The next steps of a run. The driver is a plain loop over this closed union."""

from __future__ import annotations

from typing import TypeAlias

from safepoint._values import Value
from safepoint.agent.partial_reply import PartialReply
from safepoint.agent.result import StopReason
from safepoint.agent.tool_batch import ToolBatch


class Begin(Value, frozen=True):
    """Run the hooks that come first."""


class CallModel(Value, frozen=True):
    """Make a model call: try number `attempt`, with one of the agent's models."""

    attempt: int = 0
    model: int = 0

    @property
    def is_repeated(self) -> bool:
        """Whether the step was counted before, at its first try."""
        return self.attempt > 0 or self.model > 0


class BackOff(Value, frozen=True):
    """Wait before trying again."""

    seconds: float
    then: CallModel


class RunTools(Value, frozen=True):
    """Carry out the calls of the last reply."""

    batch: ToolBatch


class Finalize(Value, frozen=True):
    """The answer is complete and recorded; run the hooks that follow it."""

    stop_reason: StopReason


class Close(Value, frozen=True):
    """Close the history and seal the run. `incoming`: a reply that was cut."""

    stop_reason: StopReason
    incoming: PartialReply | None = None
    error: BaseException | None = None


class Done(Value, frozen=True):
    """Everything is recorded."""


OwnStep: TypeAlias = CallModel | BackOff | RunTools
Step: TypeAlias = Begin | OwnStep | Finalize | Close | Done

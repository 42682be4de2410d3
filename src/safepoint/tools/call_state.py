"""The state that a stopped tool call keeps in order to continue: answers, saved values, `once` values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class CallState:
    """Filled by the context while the call runs, written into the checkpoint, handed to the call that continues it.

    `answers` are matched to `ctx.interrupt(…)` by order. `approvals` are the answers to checks that asked a person.
    """

    saved: Any = None  # Any: the value that the tool saved at its safe point
    answers: tuple[Any, ...] = ()  # Any: people's answers
    once: dict[str, Any] = field(default_factory=dict[str, Any])  # Any: results of the tool's own functions
    approvals: tuple[Any, ...] = ()  # Any: True, False, or a reason

    def copy(self) -> CallState:
        return CallState(self.saved, self.answers, dict(self.once), self.approvals)

    def with_answer(self, value: Any) -> CallState:
        return CallState(self.saved, (*self.answers, value), dict(self.once), self.approvals)

    def with_approval(self, value: Any) -> CallState:
        return CallState(self.saved, self.answers, dict(self.once), (*self.approvals, value))

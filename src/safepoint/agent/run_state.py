"""What a test given to `SafePoint.when` sees of its run."""

from __future__ import annotations

from safepoint._values import Value
from safepoint.agent.ledger import LedgerEntry
from safepoint.agent.usage import Usage


class RunState(Value, frozen=True):
    """A run at one of its safe points, which is `place`.

    `step`: how many steps are complete, those before a resume included. `last_tool`: the call that ended last.
    `spent`: the tokens so far, those before a resume included; `cost` what they cost, if the budget has prices.
    """

    place: str
    step: int
    spent: Usage
    last_tool: LedgerEntry | None = None
    tool_calls: int = 0
    cost: float = 0.0

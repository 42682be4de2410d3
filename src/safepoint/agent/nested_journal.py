"""The journal of a run inside another one: a sub-agent's, or that of a child of a composite.

Everything such a run writes is a fact of the run around it, under its key, and so on outwards up to the session. After
a crash it continues inside, from its own last fact, like the run around it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from safepoint.agent.journal import Ended, Fact, Inside
from safepoint.agent.result import RunResult
from safepoint.errors import StoreError
from safepoint.history.parts import Message

if TYPE_CHECKING:
    from safepoint.agent.run_context import RunContext


class NestedJournal:
    """`key`: the id of the call, or the key of the child, that is the run. `index`: where its own messages begin."""

    def __init__(self, around: RunContext, key: str) -> None:
        self._around = around
        self._key = key
        self.index = 0

    @property
    def is_kept(self) -> bool:
        """Whether the chain of journals ends in a store."""
        return self._around.journal is not None

    def begin(self, messages: Sequence[Message]) -> None:
        """A child may begin with the conversation so far, which the run around it has written already."""
        self.index = self._around.has_written(messages)

    async def write(self, *facts: Fact) -> None:
        """As `Journal.write`. Cancellation: either all or none."""
        if self._around.closed:  # the next run in the session does not know this one
            raise StoreError("the run around this one has ended: nothing of it is kept any more")
        await self._around.note(*[Inside(self._key, fact) for fact in facts])

    def end(self, result: RunResult[Any], at: float) -> list[Fact]:  # Any: of every output type
        """The end of the run inside, unless only its answer is left of it, or the run around it ends as well."""
        if not self.is_kept or result.checkpoint is None or self._around.node.stop is not None:
            return []
        return [Inside(self._key, Ended.of(result, self.index, at))]

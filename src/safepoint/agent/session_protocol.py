"""What a run needs of a stored conversation: to get in, to write, and to be gone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from safepoint.agent.journal import Journal
from safepoint.errors import SafepointError
from safepoint.history.parts import Message

if TYPE_CHECKING:
    from safepoint.agent.run import Run


class ConversationMoved(SafepointError):
    """Somebody wrote to the conversation after the run had entered it, and before it began: enter it again."""


@dataclass(frozen=True, slots=True)
class Entered:
    """The conversation so far is the run's to continue, and the journal takes what it adds.

    `index`: where the run's own part begins. `call_ids`: the ids of all calls, which a new one must not repeat.
    """

    messages: Sequence[Message]
    journal: Journal
    index: int
    call_ids: set[str] = field(default_factory=set[str])


@runtime_checkable
class SessionProtocol(Protocol):
    """A session, as its run sees it."""

    async def enter(self, run: Run[Any, Any], continues: str | None) -> Entered:  # Any: a run of any agent
        """Wait for the session to be free, as far as its policy says, and take it.

        Cancellation: the session is not taken.
        """
        ...

    def left(self, run: Run[Any, Any]) -> None:  # Any: as above
        """The run has ended, whether or not its end could be saved."""
        ...

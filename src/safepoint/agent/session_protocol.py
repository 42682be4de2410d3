"""What a run needs of a session: to enter, to write, and to leave."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from msgspec import field

from safepoint._values import Value
from safepoint.agent.journal import Journal
from safepoint.errors import SafepointError
from safepoint.history.parts import Message

if TYPE_CHECKING:
    from safepoint.agent.run import Run


class ConversationMoved(SafepointError):
    """The conversation changed after the run had entered it and before it began: enter it again."""


class Entered(Value, frozen=True):
    """The run may continue the conversation so far, and the journal takes what it adds.

    `index`: where the run's own part begins. `call_ids`: the ids of all calls, which a new call must not repeat.
    """

    messages: Sequence[Message]
    journal: Journal
    index: int
    call_ids: set[str] = field(default_factory=set[str])


@runtime_checkable
class SessionProtocol(Protocol):
    """A session, as its run sees it."""

    async def enter(self, run: Run[Any, Any], continues: str | None) -> Entered:  # Any: a run of any agent
        """Wait for the session to be free, as far as its policy allows, and take it.

        Cancellation: the session is not taken.
        """
        ...

    def left(self, run: Run[Any, Any]) -> None:
        """The run has ended, whether or not its end could be saved."""
        ...

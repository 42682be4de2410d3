"""Everything about one run that is not control flow: who it is, what it has recorded so far, and how it tells.

The driver decides and acts; it writes here. Facts are written in plain functions, then told as events, so that no
callback ever runs between a fact and its record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from safepoint._core.bell import Bell
from safepoint._core.ladder import Ladder
from safepoint._core.orphans import Orphan
from safepoint._core.supervisor import Supervisor
from safepoint._core.tree import Node
from safepoint._core.work import Cut, Failed, Outcome
from safepoint.agent.events import Event, Place
from safepoint.agent.ledger import Ledger
from safepoint.agent.stream import Hub
from safepoint.agent.usage import Usage
from safepoint.history.parts import Message

if TYPE_CHECKING:
    from safepoint.agent.agent import Agent
    from safepoint.agent.run import Run

_EventT = TypeVar("_EventT", bound=Place)


class Record:
    """One run's facts."""

    def __init__(self, run: Run[Any, Any], node: Node, hub: Hub, messages: list[Message], ladder: Ladder) -> None:
        self.run = run
        self.node = node
        self.hub = hub
        self.ladder = ladder
        self.bell = Bell()
        self.ledger = Ledger()
        self.usage = Usage()
        self.orphans: list[Orphan] = []
        # Whole messages only. What is half done lives in the driver until it is recorded here.
        self.messages = messages
        self.step = 0
        # After the terminal event nothing more is told.
        self.sealed = False
        self.supervisor = Supervisor.current()

    @property
    def agent(self) -> Agent[Any, Any]:
        return self.run.agent

    @property
    def deps(self) -> Any:  # Any: the user's own type, given back to the user's own tools
        return self.run.deps

    def event(self, kind: type[_EventT], **fields: Any) -> _EventT:  # Any: the event's own fields
        """An event of this run, numbered and timed."""
        node = self.node
        return kind(run_id=node.id, path=node.path, seq=self.hub.number(), time=node.clock.wall(), **fields)

    def emit(self, kind: type[Event], **fields: Any) -> None:  # Any: as above
        if not self.sealed:
            self.hub.emit(self.event(kind, **fields))

    def heed(self, outcome: Outcome[Any] | None) -> None:  # Any: work of every kind
        """A KeyboardInterrupt that came up in a piece of work is meant for the caller, also if the work was cut."""
        error = outcome.error if isinstance(outcome, Failed | Cut) else None
        if isinstance(error, KeyboardInterrupt):
            self.run.interrupt(error)

    def spend(self, usage: Usage) -> None:
        self.usage = self.usage + usage

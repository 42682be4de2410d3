"""What a tool can use while it runs: its dependencies, its run, and whether it is being stopped.

A tool asks for it by annotating a parameter with `ToolContext` or `ToolContext[Deps]`; the model never sees that
parameter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from safepoint._core.ladder import Ladder
from safepoint._core.tree import Node
from safepoint.tools.call_state import CallState
from safepoint.tools.context import CallContext, DepsT

if TYPE_CHECKING:
    from safepoint.agent.nested_journal import NestedJournal
    from safepoint.agent.run import Run
    from safepoint.agent.session_protocol import SessionProtocol


class ToolContext(CallContext[DepsT]):
    """Passed to a tool for one call. Everything except `shield` and `safe_point` is safe in threads too."""

    def __init__(
        self,
        *,
        deps: DepsT,
        run: Run[Any, Any],  # Any: of every agent
        call_id: str,
        node: Node,
        ladder: Ladder,
        memory: CallState | None = None,
        child: object = None,
        inside: NestedJournal | None = None,
    ) -> None:
        super().__init__(deps=deps, call_id=call_id, node=node, ladder=ladder, memory=memory)
        self.run = run
        # A sub-agent's own checkpoint, if this call continues one.
        self.child = child
        # Where a sub-agent that is this call writes its facts.
        self.inside = inside

    @property
    def session(self) -> SessionProtocol | None:
        """The session of the run, or of the run that it is part of: for state that tools share."""
        return self.run.session_around

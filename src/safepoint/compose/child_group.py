"""Children that run side by side: which of them may start now, which must wait, and which never will.

`advance` is the whole decision, in one plain function: see what has ended, ask whether the composite stands between two
children, start what may start. A sequence is a crew of one.
"""

from __future__ import annotations

from safepoint._core.points import BETWEEN, SafePoint
from safepoint._core.reasons import Reason, Source
from safepoint.agent.run_context import RunContext
from safepoint.compose.child_run import ChildRun


class ChildGroup:
    """`limit`: how many run at once. `stop_others`: when one fails, the others are asked to stop at a safe point."""

    def __init__(self, record: RunContext, children: list[ChildRun], limit: int | None, *, stop_others: bool) -> None:
        self.children = children
        self._record = record
        self._limit = limit
        self._stop_others = stop_others
        self._has_failed = False

    def advance(self) -> bool:
        """Take every child as far as it can go; True once none is running."""
        for child in self.children:
            child.harvest()
        self._heed_failure()
        for child in self.children:
            if child.queued and self._has_room() and self._may_start():
                child.start()
        return not any(child.running for child in self.children)

    def push(self, *, force: bool) -> None:
        for child in self.children:
            child.push(force=force)

    @property
    def failed(self) -> ChildRun | None:
        for child in self.children:
            if child.failed:
                return child
        return None

    def _heed_failure(self) -> None:
        failed = self.failed if self._stop_others and not self._has_failed else None
        if failed is None:
            return
        self._has_failed = True
        why = Reason(f"the branch {failed.child.key!r} has failed", Source.POLICY)
        for child in self.children:
            if child.run is None:
                child.held_back = True
            elif child.running:
                child.run.node.cancel(SafePoint.ANY, recursive=True, reason=why)

    def _may_start(self) -> bool:
        node = self._record.node
        if self._record.broken is not None or self._has_failed:
            return False
        if any(child.over for child in self.children):
            return node.check_safe_point(BETWEEN) is None
        return node.check_stop() is None

    def _has_room(self) -> bool:
        return self._limit is None or sum([child.running for child in self.children]) < self._limit

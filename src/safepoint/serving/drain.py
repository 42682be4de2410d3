"""One budget for a shutdown: the wall clock of the whole drain, whatever ladders, graces and shields are declared.

0 ──any safe point──▶ NOW, per run ──▶ FORCE ──records──▶ shutdown_seconds
                       │                │
                       │                └─ what is left is forced, `finish` and shields too, and is listed
                       └─ as late as its ladder allows: a run that stops at once may look for a safe point longer
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from safepoint._core.points import SafePoint
from safepoint._core.reasons import Reason
from safepoint.serving.managed_run import ManagedRun
from safepoint.storage.run_records import RunState

_log = logging.getLogger("safepoint.server")

# What is kept for forced work to end and for the last records: this share of the budget, and at most so many seconds.
_SHARE, _RECORDS = 0.25, 1.0
# Records are written even if the budget is used up when the last run ends.
_LAST_WRITE = 0.25


class Drain:
    """`seconds`: all that there is; `begun`: when, on the loop's clock."""

    def __init__(self, seconds: float, begun: float) -> None:
        self.seconds = seconds
        self.begun = begun
        self.force_after = seconds - min(_RECORDS, seconds * _SHARE)

    def ask(self, managed: ManagedRun, reason: Reason) -> None:
        """Ask a live run to stop at a safe point, then NOW, early enough for its ladder if the budget has that."""
        if managed.state is RunState.QUEUED:
            managed.hand_over(reason, within=self.force_after)
            return
        wants = managed.run.preview_cancel(SafePoint.NOW).seconds
        if wants is None or wants > self.force_after / 2:
            length = "has no bound" if wants is None else f"may take {wants:.1f} s"
            _log.warning(
                "the run %s gets %.1f s to stop, and its stop %s: what is left then is forced",
                managed.id,
                self.force_after,
                length,
                extra={"event": "drain.wants_more", "run": managed.id, "seconds": wants},
            )
        needs = self.force_after if wants is None else wants
        within = max(self.force_after / 2, self.force_after - needs)
        managed.hand_over(reason, within=within)

    def list_forced(self, runs: Iterable[ManagedRun]) -> None:
        """Name what has not stopped in its time."""
        for managed in runs:
            for held in managed.run.why_not_stopped():
                _log.warning(
                    "forced at the end of the shutdown: %s of the run %s, on the rung %s",
                    held.path,
                    managed.id,
                    held.rung or "none",
                    extra={"event": "drain.forced", "run": managed.id, "path": held.path},
                )

    def until_force(self) -> float:
        return max(0.0, self.begun + self.force_after - asyncio.get_running_loop().time())

    def until_end(self) -> float:
        return max(_LAST_WRITE, self.begun + self.seconds - asyncio.get_running_loop().time())

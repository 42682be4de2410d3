"""Operators' view of every run: a log line for each fact of its life, and the numbers of `/metrics`.

    accepted ──▶ (asked)* ──▶ stopped | ended

`stopped` has the seconds from the ask to the outcome. A line has ids, names and numbers, and nothing of a conversation.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from functools import partial

from safepoint._core.orphans import Orphan
from safepoint._core.points import Level, SafePoint
from safepoint.agent.events import CancelRequested, Event, ReasoningStreamed, TextStreamed
from safepoint.history.estimate import estimate_tokens
from safepoint.serving.managed_run import ManagedRun
from safepoint.serving.metrics import Gauges, Metrics
from safepoint.storage.run_records import RunState

_log = logging.getLogger("safepoint.server")


class Operations:
    """The run manager reports accepted runs and runs that are over; the publisher of a run reports asks to stop it."""

    def __init__(self) -> None:
        self.metrics = Metrics()
        self._orphans: list[Orphan] = []
        self._hurried: set[str] = set()

    def accepted(self, managed: ManagedRun) -> None:
        managed.publisher.on_ask = partial(self._hear, managed)
        self._tell("accepted", managed, state=str(managed.state), by=managed.by)

    def over(self, managed: ManagedRun) -> None:
        """It is recorded, and its last event told."""
        outcome = managed.outcome or "lost"
        self.metrics.runs[outcome] += 1
        self._hurried.discard(managed.id)
        result = managed.run.result if managed.run.ended else None
        if result is not None and result.orphans:
            self.metrics.orphans += len(result.orphans)
            self._orphans = [*self.running(), *result.orphans]
        cancellation = result.cancellation if result is not None else None
        if cancellation is None:
            self._tell("ended", managed, outcome=outcome, seconds=_since(managed.accepted_at))
            return
        took = _since(cancellation.asked_at)
        self.metrics.stops[_kind(cancellation.level)].observe(took)
        orphans = len(result.orphans) if result is not None else 0
        self._tell("stopped", managed, outcome=outcome, stop_seconds=took, place=cancellation.place, orphans=orphans)

    def running(self) -> list[Orphan]:
        return [orphan for orphan in self._orphans if orphan.still_running]

    def gauges(self, live: Iterable[ManagedRun], *, is_pushed: bool = False) -> Gauges:
        """Of this moment. Call it on the loop."""
        runs = {str(state): 0 for state in (RunState.QUEUED, RunState.LIVE)}
        viewers = 0
        for managed in live:
            runs[str(managed.state)] = runs.get(str(managed.state), 0) + 1
            viewers += managed.feed.viewers
        return Gauges(runs, len(self.running()), viewers, len(asyncio.all_tasks()), is_pushed)

    def _hear(self, managed: ManagedRun, event: Event) -> None:
        if isinstance(event, CancelRequested) and event.run_id == managed.id:
            ask = event.ask
            self.metrics.asks[str(ask.reason.source)] += 1
            if ask.at in (SafePoint.NOW, SafePoint.FORCE):
                self._hurried.add(managed.id)
            at = sorted(ask.at.places)
            self._tell("asked", managed, ask=ask.id, at=at, source=str(ask.reason.source), by=ask.reason.by)
        elif managed.id in self._hurried and isinstance(event, TextStreamed | ReasoningStreamed):
            self.metrics.tokens_after_stop += estimate_tokens(event.text)

    def _tell(self, fact: str, managed: ManagedRun, **fields: object) -> None:
        if not _log.isEnabledFor(logging.INFO):
            return
        shown = " ".join(f"{name}={value}" for name, value in fields.items() if value not in (None, ""))
        key = managed.key
        ids = {"run": managed.id, "app": key.app, "user": key.user, "session": key.session}
        extra = {"event": f"run_{fact}", **ids, **fields}
        _log.info("run %s %s session=%s %s", fact, managed.id, key.stored_as, shown, extra=extra)


def _kind(level: Level) -> str:
    return {Level.NOW: "now", Level.FORCE: "force"}.get(level, "safe_point")


def _since(then: float) -> float:
    return round(max(0.0, time.time() - then), 6)

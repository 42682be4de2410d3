"""How a run ended, with everything that a front end is told about it: the reason, the ledger, usage, questions."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

from safepoint._core.reasons import Reason
from safepoint.agent.checkpoint import Question
from safepoint.agent.ledger import LedgerEntry
from safepoint.agent.result import StopReason
from safepoint.agent.usage import Usage
from safepoint.errors import StoreError
from safepoint.protocols.endings import Ending
from safepoint.serving.cancel_requests import reason_json, reason_of
from safepoint.serving.events import Failure, RunEnd
from safepoint.serving.feed import Feed
from safepoint.serving.managed_run import ManagedRun
from safepoint.serving.run_manager import RunManager
from safepoint.serving.stored_events import usage_json

Json: TypeAlias = dict[str, Any]  # Any: JSON values


@dataclass(frozen=True, slots=True)
class RunFacts:
    """`turn_id`: the run that began the turn. `text`: what the runtime says about an end without an answer."""

    run_id: str
    turn_id: str
    ending: Ending
    stop_reason: str
    text: str = ""
    reason: Reason | None = None
    failure: Failure | None = None
    ledger: tuple[LedgerEntry, ...] = ()
    usage: Usage | None = None
    questions: tuple[Question, ...] = ()
    inner_questions: tuple[Question, ...] = ()
    orphans: tuple[str, ...] = ()

    @property
    def message(self) -> str:
        """For a person: why it ended as it did."""
        if self.failure is not None:
            return f"{self.failure.kind}: {self.failure.text}"
        if self.ending is Ending.CANCELLED_BY_CLIENT or self.ending is Ending.CANCELLED_OTHERWISE:
            return (self.reason.text if self.reason is not None else "") or self.text or "the run was stopped"
        return self.text or self.stop_reason

    @property
    def receipt(self) -> Json:
        """What a protocol puts into its extension place."""
        found: Json = {"runId": self.run_id, "stopReason": self.stop_reason}
        if self.reason is not None:
            found["reason"] = reason_json(self.reason)
        found["ledger"] = [
            {"callId": each.call_id, "name": each.name, "state": str(each.state), "effect": str(each.effect)}
            for each in self.ledger
        ]
        if self.orphans:
            found["orphans"] = list(self.orphans)
        if self.usage is not None:
            found["usage"] = usage_json(self.usage)
        return found


async def facts_of(manager: RunManager, run_id: str, feed: Feed) -> RunFacts:
    """Of a run whose feed is closed. Cancellation: nothing has changed."""
    end = RunEnd(str(StopReason.ERROR)) if feed.last is None else feed.whole[feed.last].end
    assert end is not None
    managed = _whose(manager, feed)
    if managed is None:
        reason = await _recorded_reason(manager, run_id)
        return _facts(run_id, feed, end, end.stop_reason, reason)
    not_run = managed.refused or managed.failed
    outcome = str(StopReason.ERROR) if not_run is not None else managed.outcome or end.stop_reason
    orphans = tuple(each.name for each in managed.run.result.orphans) if managed.run.ended else ()
    return _facts(managed.id, feed, end, outcome, managed.reason, orphans)


def _facts(
    run_id: str, feed: Feed, end: RunEnd, outcome: str, reason: Reason | None, orphans: tuple[str, ...] = ()
) -> RunFacts:
    ending = Ending.of(StopReason(outcome), reason.source if reason is not None else None)
    return RunFacts(
        run_id,
        feed.turn.run_id,
        ending,
        outcome,
        end.text,
        reason,
        end.failure or feed.failure,
        end.ledger,
        end.usage,
        end.questions,
        end.inner_questions,
        orphans,
    )


def _whose(manager: RunManager, feed: Feed) -> ManagedRun | None:
    """The run that tells this feed. A message may have joined another run than the one it was submitted as."""
    return next((each for each in manager.runs.values() if each.feed is feed), None)


async def _recorded_reason(manager: RunManager, run_id: str) -> Reason | None:
    with suppress(StoreError):
        record = await manager.storage.runs.get(run_id)
        if record is not None and record.reason is not None and "source" in record.reason:
            return reason_of(record.reason)
    return None

"""What the routes answer, as plain JSON. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from heapq import merge
from typing import Any

from safepoint._core.orphans import Orphan
from safepoint.agent.stop_diagnostics import Holding
from safepoint.agent.usage import Usage
from safepoint.history.parts import Message
from safepoint.server.cancel_service import Cancelled
from safepoint.server.event_publisher import abnormal_end, before_its_turn
from safepoint.server.importing import imported_events
from safepoint.server.managed_run import ManagedRun
from safepoint.server.state_sync import reason_json
from safepoint.server.wire_events import (
    EventContext,
    Json,
    abnormal_event,
    asking_event,
    empty_event,
    entry_json,
    message_event,
    patch_event,
    usage_json,
    with_state,
    with_usage,
)
from safepoint.serving.ids import SessionKey
from safepoint.serving.shared_state import lasting, own
from safepoint.sessions.rewind import Rewound
from safepoint.sessions.session import Session
from safepoint.storage.run_records import RunRecord
from safepoint.storage.session_data import StoredRun
from safepoint.storage.shared_state import Note


@dataclass(frozen=True)
class SessionContext:
    """What is known of a session beside its conversation. `agent`: of its app; `voice`: who speaks first there."""

    agent: str = ""
    voice: str | None = None
    touched: float = 0.0
    shared: Mapping[str, Any] = field(default_factory=dict[str, Any])  # Any: JSON values
    records: Mapping[str, RunRecord] = field(default_factory=dict[str, RunRecord])
    notes: Sequence[Note] = ()

    @property
    def patches(self) -> list[Note]:
        """What clients did to the state."""
        return [note for note in self.notes if "event" not in note.body]

    @cached_property
    def deltas(self) -> Mapping[str, Json]:
        """What runs did to it, by the event that tells it."""
        found: dict[str, Json] = {}
        for note in self.notes:
            if (event := note.body.get("event")) is not None:
                found[event] = {**found.get(event, {}), **note.body["stateDelta"]}
        return found

    def request_of(self, run_id: str) -> Mapping[str, Any]:  # Any: as above
        record = self.records.get(run_id)
        return record.request if record is not None else {}

    def event_context(self, run: StoredRun) -> EventContext:
        """As the run had it while it was live."""
        asked = (self.request_of(run_id).get("customMetadata", {}) for run_id in (run.origin, run.run_id))
        metadata = {name: value for each in asked for name, value in each.items()}
        return EventContext(run.origin, run.agent, metadata, self.voice if run.agent == self.agent else None)


def session_json(key: SessionKey, session: Session, beside: SessionContext) -> Json:
    """A session with its events."""
    events, updated_at = session_events(key, session, beside), max((beside.touched, *session.times[-1:]))
    return {**listed_json(key, session.state, beside.shared, updated_at), "events": events}


def listed_json(
    key: SessionKey,
    state: Mapping[str, Any],
    shared: Mapping[str, Any],
    updated_at: float,  # Any: JSON values
) -> Json:
    """A session in a list: without its events."""
    owner: Json = {"id": key.session, "appName": key.app, "userId": key.user}
    return {**owner, "state": {**own(state), **shared}, "events": [], "lastUpdateTime": updated_at}


def session_events(key: SessionKey, session: Session, beside: SessionContext) -> list[Json]:
    """All stored messages as events, each under the run that said it, and changes of state between them."""
    runs, messages, times = session.runs, session.messages, session.times
    ends = [*(run.index for run in runs[1:]), len(messages)]
    first = runs[0].index if runs else len(messages)
    events = imported_events(key, beside.agent or "model", messages[:first], times[:first])
    for run, end in zip(runs, ends, strict=False):
        events += _run_events(run, messages[run.index : end], times[run.index : end], beside)
    patches = [patch_event(beside.agent or "model", note.at, note.body) for note in beside.patches]
    return list(merge(events, patches, key=lambda event: event["timestamp"]))


def stored_run_events(session: Session, record: RunRecord, beside: SessionContext) -> list[Json]:
    """What a run has told, without the message it answered; empty if it was taken back."""
    runs, run_id = session.runs, record.run_id
    at = next((number for number, run in enumerate(runs) if run_id in (run.run_id, run.origin)), None)
    if at is None:
        never_ran = record.outcome == "cancelled" and record.started_at is None
        return [_withdrawn(record)] if never_ran else []
    first, end = runs[at].index, runs[at + 1].index if at + 1 < len(runs) else len(session.messages)
    events = _run_events(runs[at], session.messages[first:end], session.times[first:end], beside)
    return events[1:] if events and events[0]["author"] == "user" else events


def _withdrawn(record: RunRecord) -> Json:
    why = record.reason["text"] if record.reason is not None else ""
    event = empty_event(EventContext(record.run_id, ""), 0, record.ended_at or record.created_at)
    return abnormal_event(event, before_its_turn(why))


def _run_events(
    run: StoredRun, messages: tuple[Message, ...], times: tuple[float, ...], beside: SessionContext
) -> list[Json]:
    asked = run.checkpoint.questions if run.checkpoint is not None else ()
    spoken = zip(beside.event_context(run).spoken(messages), times, strict=True)
    told = (
        message_event(event_context, place, message, at, questions=asked)
        for place, ((event_context, message), at) in enumerate(spoken, run.index)
    )
    deltas = beside.deltas
    events = [with_state(each, deltas[each["id"]]) if each["id"] in deltas else each for each in told]
    delta = lasting(beside.request_of(run.origin).get("stateDelta", {}))
    if events and delta and events[0]["author"] == "user":
        events[0] = with_state(events[0], delta)
    if events and run.ended and run.stop_reason is not None:
        events[-1] = _last_event(run, messages, events[-1], beside)
    return events


def _last_event(run: StoredRun, messages: tuple[Message, ...], event: Json, beside: SessionContext) -> Json:
    """With how the run ended, as its viewers were told."""
    record, checkpoint = beside.records.get(run.run_id), run.checkpoint
    if checkpoint is not None and checkpoint.questions:
        calls = [call.id for message in messages for call in message.tool_calls]
        event = asking_event(event, checkpoint.questions, calls)
    abnormal = abnormal_end(run.stop_reason or "", messages[-1], run.ledger)
    if abnormal is not None:
        event = abnormal_event(event, abnormal)
    reason = record.reason if record is not None else None
    if reason is not None and "error" in reason:
        event |= {"errorCode": reason["error"], "errorMessage": reason["text"]}
    usage = record.usage if record is not None else None
    if usage is None and checkpoint is not None:
        usage = usage_json(checkpoint.spent)
    return event if usage is None else with_usage(event, usage)


def cancelled_json(cancelled: Cancelled, *, stacks: bool) -> Json:
    found: Json = {
        "runId": cancelled.run_id,
        "requested": cancelled.requested,
        "outcome": cancelled.outcome,
        "durable": cancelled.durable,
    }
    receipt = cancelled.receipt
    if receipt is None:
        return found
    found["askId"] = receipt.asked.id
    if cancelled.outcome is not None and receipt.node.ending is not None:
        found["stoppedAt"] = receipt.stopped_at
        found["touched"] = [{"path": each.path, "name": each.name, "state": each.state} for each in receipt.touched]
        found["orphans"] = [orphan_json(each, stacks=stacks) for each in receipt.orphans]
        if isinstance(receipt.usage, Usage):
            found["usage"] = usage_json(receipt.usage)
    return found


def orphan_json(orphan: Orphan, *, stacks: bool) -> Json:
    """What was left behind. Stacks are for operators."""
    found: Json = {"name": orphan.name, "path": orphan.path, "rung": str(orphan.rung)}
    found |= {"age": round(orphan.age, 3), "stillRunning": orphan.still_running}
    return {**found, "stack": orphan.stack()} if stacks else found


def holding_json(holding: Holding, *, stacks: bool) -> Json:
    """What holds a stopping run. Stacks are for operators."""
    found: Json = {
        "name": holding.name,
        "path": holding.path,
        "rung": None if holding.rung is None else str(holding.rung),
        "seconds": holding.seconds,
    }
    return {**found, "stack": holding.stack} if stacks else found


def rewound_json(run_id: str, rewound: Rewound) -> Json:
    """What was taken back, and which effects remain in the world all the same."""
    effects = [entry_json(entry) for entry in rewound.effects]
    return {"runId": run_id, "outcome": "rewound", "messages": len(rewound.messages), "effects": effects}


def run_json(managed: ManagedRun) -> Json:
    found: Json = {
        "runId": managed.id,
        "invocationId": managed.feed.event_context.invocation,
        "appName": managed.key.app,
        "userId": managed.key.user,
        "sessionId": managed.key.session,
        "state": str(managed.state),
        "outcome": None if managed.live else managed.outcome,
        "events": len(managed.feed.whole),
        "createdAt": managed.accepted_at,
    }
    if managed.live:  # also one that has stopped, and is not recorded yet
        return found
    if managed.reason is not None:
        found["reason"] = reason_json(managed.reason)
    elif managed.error is not None:
        found["reason"] = {"error": type(managed.error).__name__, "text": str(managed.error)}
    if managed.run.ended:
        found["usage"] = usage_json(managed.run.result.usage)
    return found


def record_json(record: RunRecord) -> Json:
    key = SessionKey.parse(record.session)
    found: Json = {"runId": record.run_id, "state": str(record.state), "outcome": record.outcome}
    if key is not None:
        found |= {"appName": key.app, "userId": key.user, "sessionId": key.session}
    if record.reason is not None:
        found["reason"] = dict(record.reason)
    if record.usage is not None:
        found["usage"] = dict(record.usage)
    return {**found, "createdAt": record.created_at, "endedAt": record.ended_at}


def without_nulls(answer: Json) -> Json:
    return {name: value for name, value in answer.items() if value is not None}

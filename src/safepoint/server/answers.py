"""What the routes answer, as plain JSON. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from safepoint._core.orphans import Orphan
from safepoint.agent.holding import Holding
from safepoint.agent.usage import Usage
from safepoint.history.parts import Message
from safepoint.server.cancelling import Cancelled
from safepoint.server.hosted import HostedRun, abnormal_end, call_of, reason_json
from safepoint.server.ids import SessionKey
from safepoint.server.wire_events import Json, Scene, abnormal_event, message_event
from safepoint.sessions.records import RunRecord
from safepoint.sessions.session import Session
from safepoint.sessions.store import StoredRun

IMPORTED = Scene("imported", "imported")


def session_json(key: SessionKey, session: Session, updated_at: float) -> Json:
    return {**listed_json(key, session.state, updated_at), "events": session_events(session)}


def listed_json(key: SessionKey, state: Mapping[str, Any], updated_at: float) -> Json:  # Any: JSON values
    """A session in a list: without its events."""
    owner: Json = {"id": key.session, "appName": key.app, "userId": key.user}
    return {**owner, "state": dict(state), "events": [], "lastUpdateTime": updated_at}


def session_events(session: Session) -> list[Json]:
    """All stored messages as events, each under the run that said it."""
    runs, messages, times = session.runs, session.messages, session.times
    ends = [*(run.index for run in runs[1:]), len(messages)]
    first = runs[0].index if runs else len(messages)
    imported = zip(messages[:first], times[:first], strict=True)
    events = [message_event(IMPORTED, place, each, at) for place, (each, at) in enumerate(imported)]
    for run, end in zip(runs, ends, strict=False):
        events += _run_events(run, messages[run.index : end], times[run.index : end])
    return events


def stored_run_events(session: Session, run_id: str) -> list[Json]:
    """What a run has told, without the message it answered; empty if it was taken back."""
    runs = session.runs
    at = next((number for number, run in enumerate(runs) if run_id in (run.run_id, run.origin)), None)
    if at is None:
        return []
    first, end = runs[at].index, runs[at + 1].index if at + 1 < len(runs) else len(session.messages)
    events = _run_events(runs[at], session.messages[first:end], session.times[first:end])
    return events[1:] if events and events[0]["author"] == "user" else events


def _run_events(run: StoredRun, messages: tuple[Message, ...], times: tuple[float, ...]) -> list[Json]:
    scene = Scene(run.origin, run.agent)
    asked = run.checkpoint.questions if run.checkpoint is not None else ()
    questions = [call_of(question.id) for question in asked]
    events = [
        message_event(scene, place, each, at, questions=questions)
        for place, (each, at) in enumerate(zip(messages, times, strict=True), run.index)
    ]
    if events and run.ended and run.stop_reason is not None:
        abnormal = abnormal_end(run.stop_reason, messages[-1], run.ledger)
        if abnormal is not None:
            events[-1] = abnormal_event(events[-1], abnormal)
    return events


def cancelled_json(cancelled: Cancelled) -> Json:
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
        found["orphans"] = orphans_json(receipt.orphans)
        if isinstance(receipt.usage, Usage):
            found["usage"] = usage_json(receipt.usage)
    return found


def orphans_json(orphans: Iterable[Orphan]) -> list[Json]:
    """Name, age and rung; stacks are for operators."""
    return [{"name": each.name, "path": each.path, "rung": str(each.rung)} for each in orphans]


def holding_json(holding: Holding, *, stacks: bool) -> Json:
    """What holds a stopping run. Stacks are for operators."""
    found: Json = {
        "name": holding.name,
        "path": holding.path,
        "rung": None if holding.rung is None else str(holding.rung),
        "seconds": holding.seconds,
    }
    return {**found, "stack": holding.stack} if stacks else found


def usage_json(usage: Usage) -> Json:
    return {"inputTokens": usage.input_tokens, "outputTokens": usage.output_tokens, "estimated": usage.estimated}


def run_json(hosted: HostedRun) -> Json:
    found: Json = {
        "runId": hosted.id,
        "appName": hosted.key.app,
        "userId": hosted.key.user,
        "sessionId": hosted.key.session,
        "state": str(hosted.state),
        "outcome": hosted.outcome,
        "events": len(hosted.feed.whole),
    }
    if hosted.reason is not None:
        found["reason"] = reason_json(hosted.reason)
    return found


def record_json(record: RunRecord) -> Json:
    key = SessionKey.parse(record.session)
    found: Json = {"runId": record.run_id, "state": str(record.state), "outcome": record.outcome}
    if key is not None:
        found |= {"appName": key.app, "userId": key.user, "sessionId": key.session}
    if record.reason is not None:
        found["reason"] = dict(record.reason)
    return {**found, "createdAt": record.created_at, "endedAt": record.ended_at}


def without_nulls(answer: Json) -> Json:
    return {name: value for name, value in answer.items() if value is not None}

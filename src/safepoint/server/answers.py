"""What the routes answer, as plain JSON. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from safepoint._core.orphans import Orphan
from safepoint.agent.usage import Usage
from safepoint.history.parts import Message
from safepoint.server.host import Cancelled
from safepoint.server.hosted import HostedRun, abnormal_end, call_of, reason_json
from safepoint.server.ids import SessionKey
from safepoint.server.wire_events import Json, Scene, abnormal_event, message_event
from safepoint.sessions.records import RunRecord
from safepoint.sessions.session import Session
from safepoint.sessions.store import StoredRun


def session_json(key: SessionKey, session: Session, updated_at: float, *, events: bool) -> Json:
    return {
        "id": key.session,
        "appName": key.app,
        "userId": key.user,
        "state": dict(session.state),
        "events": session_events(session, updated_at) if events else [],
        "lastUpdateTime": updated_at,
    }


def session_events(session: Session, at: float) -> list[Json]:
    """All stored messages as events, each under the run that said it."""
    runs, messages = session.runs, session.messages
    ends = [*(run.index for run in runs[1:]), len(messages)]
    first = runs[0].index if runs else len(messages)
    events = [
        message_event(Scene("imported", "imported"), place, each, at) for place, each in enumerate(messages[:first])
    ]
    for run, end in zip(runs, ends, strict=False):
        events += _run_events(run, messages[run.index : end], at)
    return events


def _run_events(run: StoredRun, messages: tuple[Message, ...], at: float) -> list[Json]:
    scene = Scene(run.run_id, run.agent)
    asked = run.checkpoint.questions if run.checkpoint is not None else ()
    questions = [call_of(question.id) for question in asked]
    events = [
        message_event(scene, place, each, at, questions=questions) for place, each in enumerate(messages, run.index)
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


def without_nulls(value: Any) -> Any:  # Any: JSON
    if isinstance(value, dict):
        return {name: without_nulls(each) for name, each in value.items() if each is not None}  # pyright: ignore[reportUnknownVariableType]  # JSON
    return value

"""The answers of Safepoint's own routes as JSON. Pure."""

from __future__ import annotations

from safepoint.agent.freeze import Freeze
from safepoint.protocols.adk.events import Json, entry_json, invocation_of
from safepoint.serving.cancel_answers import receipt_json, without_stack
from safepoint.serving.cancel_requests import reason_json
from safepoint.serving.cancel_service import Cancelled
from safepoint.serving.ids import SessionKey
from safepoint.serving.managed_run import ManagedRun
from safepoint.serving.stored_events import usage_json
from safepoint.sessions.rewind import Rewound
from safepoint.storage.run_records import RunRecord


def cancelled_json(cancelled: Cancelled, *, stacks: bool) -> Json:
    """Stacks are for operators."""
    found: Json = {
        "runId": cancelled.run_id,
        "requested": cancelled.requested,
        "outcome": cancelled.outcome,
        "durable": cancelled.durable,
    }
    receipt_fields = cancelled.receipt_fields
    if cancelled.receipt is not None:
        receipt_fields = receipt_json(cancelled.receipt, is_over=cancelled.outcome is not None)
    found |= receipt_fields
    if "orphans" in found and not stacks:
        found["orphans"] = [without_stack(each) for each in found["orphans"]]
    return found


def rewound_json(run_id: str, rewound: Rewound) -> Json:
    """What was taken back, and which effects remain in the world all the same."""
    effects = [entry_json(entry) for entry in rewound.effects]
    return {"runId": run_id, "outcome": "rewound", "messages": len(rewound.messages), "effects": effects}


def run_json(managed: ManagedRun) -> Json:
    found: Json = {
        "runId": managed.id,
        "invocationId": invocation_of(managed.feed.turn),
        "appName": managed.key.app,
        "userId": managed.key.user,
        "sessionId": managed.key.session,
        "state": str(managed.state),
        "outcome": None if managed.live else managed.outcome,
        "events": len(managed.feed.whole),
        "createdAt": managed.accepted_at,
    }
    if managed.live and (frozen := managed.held_by) is not None:
        found["frozen"] = frozen.reason
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


def freeze_json(freeze: Freeze) -> Json:
    return without_nulls(
        {
            "id": freeze.id,
            "reason": freeze.reason,
            "appName": freeze.app,
            "userId": freeze.user,
            "tool": freeze.tool,
            "model": freeze.model,
            "at": list(freeze.stops_at) or None,
            "withinSeconds": freeze.within,
            "by": freeze.by,
            "frozenAt": freeze.at,
        }
    )


def without_nulls(answer: Json) -> Json:
    return {name: value for name, value in answer.items() if value is not None}

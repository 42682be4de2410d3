"""A request to stop a run, as a protocol makes it, and the form in which it is stored for the process that owns it."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from safepoint._core.points import SafePoint
from safepoint._core.reasons import Reason, Source
from safepoint.storage.run_records import StoredCancelRequest

MOVED = Reason("it moves to another worker", Source.SHUTDOWN)
"""A run that stops for that is suspended, and goes on elsewhere."""


@dataclass(frozen=True, slots=True)
class StopRequest:
    """Where and how to stop. `node`: the part of the run that is meant, by its path; None: the whole run.

    `wait_seconds`: how long the caller waits for the outcome.
    """

    at: SafePoint = SafePoint.NOW
    within_seconds: float | None = None
    recursive: bool = False
    node: str | None = None
    wait_seconds: float = 5.0


def new_ask_id() -> str:
    """For an ask that is made in another process: the asks that a process makes itself are numbered there."""
    return f"ask-{uuid.uuid4().hex}"


def encode_ask(request: StopRequest, reason: Reason, ask_id: str | None = None) -> Mapping[str, Any]:  # Any: JSON
    """`ask_id`: of the ask that was made of the run itself, by which it can be withdrawn."""
    return {"id": ask_id, "request": request_json(request), "reason": reason_json(reason)}


def request_json(request: StopRequest) -> dict[str, Any]:  # Any: JSON
    return {
        "at": sorted(request.at.places),
        "withinSeconds": request.within_seconds,
        "recursive": request.recursive,
        "node": request.node,
    }


def decode_ask(stored: StoredCancelRequest) -> tuple[StopRequest, Reason]:
    """A request that cannot be read any more still means: stop."""
    return decode_request(stored.ask.get("request", {})), reason_of(stored.ask.get("reason"))


def decode_request(asked: Mapping[str, Any]) -> StopRequest:  # Any: JSON
    """The inverse of `request_json`."""
    try:
        at: str | list[str] = asked.get("at", "now")
        point = SafePoint.parse(*([at] if isinstance(at, str) else at))
        within, recursive, node = asked.get("withinSeconds"), asked.get("recursive", False), asked.get("node")
    except (ValueError, TypeError, AttributeError):
        return StopRequest()
    return StopRequest(point, within, bool(recursive), node)


def stopping(requests: Sequence[StoredCancelRequest]) -> Reason | None:
    """The reason of the first request that means the whole run and not a part of it."""
    asked = map(decode_ask, requests)
    return next((reason for request, reason in asked if request.node is None), None)


def reason_json(reason: Reason) -> dict[str, str | None]:
    return {"text": reason.text, "source": str(reason.source), "by": reason.by}


def reason_of(kept: Mapping[str, Any] | None) -> Reason:  # Any: JSON
    """The inverse of `reason_json`."""
    kept = kept or {}
    source = kept.get("source")
    return Reason(str(kept.get("text", "")), Source(source) if source in tuple(Source) else Source.USER, kept.get("by"))

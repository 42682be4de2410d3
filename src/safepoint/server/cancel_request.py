"""What is asked of a run, in the form in which a `StoredCancelRequest` keeps it for its owner, or for a successor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from safepoint._core.reasons import Reason, Source
from safepoint.server.requests import CancelRequest
from safepoint.server.state_sync import reason_json
from safepoint.storage.run_records import StoredCancelRequest


def encode_ask(request: CancelRequest, reason: Reason, ask_id: str | None = None) -> Mapping[str, Any]:  # Any: JSON
    """`ask_id`: of the ask that was made of the run itself, by which it can be withdrawn."""
    asked = request.model_dump(mode="json", by_alias=True, exclude={"wait_seconds", "run_id"})
    return {"id": ask_id, "request": asked, "reason": reason_json(reason)}


def decode_ask(stored: StoredCancelRequest) -> tuple[CancelRequest, Reason]:
    """A request that cannot be read any more still means: stop."""
    try:
        request = CancelRequest.model_validate(stored.ask.get("request", {}))
    except ValidationError:
        request = CancelRequest()
    return request, reason_of(stored.ask.get("reason"))


def stopping(requests: Sequence[StoredCancelRequest]) -> Reason | None:
    """The reason of the first request that means the whole run and not a part of it."""
    asked = map(decode_ask, requests)
    return next((reason for request, reason in asked if request.node is None), None)


def reason_of(kept: Mapping[str, Any] | None) -> Reason:  # Any: JSON
    """The inverse of `reason_json`."""
    kept = kept or {}
    source = kept.get("source")
    return Reason(str(kept.get("text", "")), Source(source) if source in tuple(Source) else Source.USER, kept.get("by"))

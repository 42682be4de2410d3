"""A wish to stop a run, in the form in which it is kept: for the process that has the run, or for its successor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from safepoint._core.reasons import Reason, Source
from safepoint.server.hosted import reason_json
from safepoint.server.requests import CancelRequest
from safepoint.sessions.records import Intent


@dataclass(frozen=True, slots=True)
class Wish:
    """`via`: the process that was told, which asks the run itself if it has it. `ask_id`: of that ask."""

    request: CancelRequest
    reason: Reason
    via: str
    ask_id: str | None = None

    def to_json(self) -> Mapping[str, Any]:  # Any: JSON
        request = self.request.model_dump(mode="json", by_alias=True, exclude={"wait_seconds", "run_id"})
        return {"id": self.ask_id, "request": request, "reason": reason_json(self.reason), "via": self.via}

    @staticmethod
    def of(intent: Intent) -> Wish:
        """What can't be read any more still means: stop."""
        kept = intent.ask
        try:
            request = CancelRequest.model_validate(kept.get("request", {}))
        except ValidationError:
            request = CancelRequest()
        return Wish(request, reason_of(kept.get("reason")), str(kept.get("via", "")), kept.get("id"))


def stopping(intents: Sequence[Intent]) -> Wish | None:
    """The first wish that means the whole run and not a part of it."""
    wishes = map(Wish.of, intents)
    return next((wish for wish in wishes if wish.request.node is None), None)


def reason_of(kept: Mapping[str, Any] | None) -> Reason:  # Any: JSON
    """The inverse of `reason_json`."""
    kept = kept or {}
    source = kept.get("source")
    return Reason(str(kept.get("text", "")), Source(source) if source in tuple(Source) else Source.USER, kept.get("by"))

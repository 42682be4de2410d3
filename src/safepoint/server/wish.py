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

_WITHDRAWS = "withdraws"


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
    def of(intent: Intent) -> Wish | None:
        """None for one that takes another back. What can't be read any more still means: stop."""
        kept = intent.ask
        if _WITHDRAWS in kept:
            return None
        try:
            request = CancelRequest.model_validate(kept.get("request", {}))
        except ValidationError:
            request = CancelRequest()
        return Wish(request, reason_of(kept.get("reason")), str(kept.get("via", "")), kept.get("id"))


def stopping(intents: Sequence[Intent]) -> Wish | None:
    """The first wish that stands and means the whole run, not a part of it."""
    taken_back = {intent.ask.get(_WITHDRAWS) for intent in intents} - {None}
    wishes = [wish for wish in map(Wish.of, intents) if wish is not None]
    return next((wish for wish in wishes if wish.request.node is None and wish.ask_id not in taken_back), None)


def taking_back(ask_id: str) -> Mapping[str, Any]:  # Any: JSON
    """What is stored when a wish is taken back."""
    return {_WITHDRAWS: ask_id}


def reason_of(kept: Mapping[str, Any] | None) -> Reason:  # Any: JSON
    """The inverse of `reason_json`."""
    kept = kept or {}
    source = kept.get("source")
    return Reason(str(kept.get("text", "")), Source(source) if source in tuple(Source) else Source.USER, kept.get("by"))

"""What clients send. Names in camelCase or snake_case; unknown fields at the top are ignored, as ADK does."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic.alias_generators import to_camel

from safepoint._core.points import SafePoint
from safepoint.history.parts import File, Image, Text, UserPart
from safepoint.server.ids import SessionKey, check_id
from safepoint.sessions.busy import IfBusy

Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]
State = dict[str, Any]  # Any: JSON values


class _Wire(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)


class _Strict(_Wire):
    """Inside a message an unknown field would be content that is silently lost."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid")


class Blob(_Strict):
    mime_type: str = "application/octet-stream"
    data: str
    display_name: str | None = None

    @field_validator("data")
    @classmethod
    def _is_base64(cls, data: str) -> str:
        try:
            base64.b64decode(data, altchars=b"-_" if set(data) & set("-_") else None, validate=True)
        except (binascii.Error, ValueError) as error:
            raise ValueError("write base64") from error
        return data

    def to_part(self) -> UserPart:
        data = base64.b64decode(self.data, altchars=b"-_" if set(self.data) & set("-_") else None)
        if self.mime_type.startswith("image/"):
            return Image(data, self.mime_type)
        return File(data, self.mime_type, self.display_name)


class Address(_Strict):
    file_uri: str
    mime_type: str = "application/octet-stream"
    display_name: str | None = None

    def to_part(self) -> UserPart:
        """By address only: the server never fetches it."""
        if self.mime_type.startswith("image/"):
            return Image(url=self.file_uri, media_type=self.mime_type)
        return File(url=self.file_uri, media_type=self.mime_type, name=self.display_name)


class Answer(_Strict):
    """What a person says to a call that waits."""

    id: str
    name: str | None = None
    response: Any = None  # Any: JSON

    @property
    def value(self) -> Any:  # Any: JSON
        """ADK wraps a plain answer as {"result": …}."""
        match self.response:
            case {"result": answer, **rest} if not rest:
                return answer
            case _:
                return self.response


class WirePart(_Strict):
    text: str | None = None
    thought: bool | None = None
    inline_data: Blob | None = None
    file_data: Address | None = None
    function_response: Answer | None = None


class Content(_Strict):
    role: str | None = None
    parts: list[WirePart] = Field(default_factory=list[WirePart])

    @property
    def answers(self) -> list[Answer]:
        return [part.function_response for part in self.parts if part.function_response is not None]

    def prompt(self) -> list[UserPart]:
        found: list[UserPart] = []
        for part in self.parts:
            if part.text is not None:
                found.append(Text(part.text))
            if part.inline_data is not None:
                found.append(part.inline_data.to_part())
            if part.file_data is not None:
                found.append(part.file_data.to_part())
        return found


class CancelAfter(_Strict):
    """Cancel a run that nobody watches, unless a viewer comes back within that time."""

    cancel_after: Seconds


OnDisconnect = Literal["cancel", "detach"] | CancelAfter


class RunRequest(_Wire):
    app_name: str
    user_id: str
    session_id: str
    new_message: Content | None = None
    streaming: bool = False
    state_delta: State | None = None
    invocation_id: str | None = None
    custom_metadata: State | None = None
    on_disconnect: OnDisconnect = "cancel"
    if_busy: IfBusy = "reject"
    idempotency_key: Annotated[str, Field(min_length=1, max_length=200)] | None = None


class NewSession(_Wire):
    session_id: str | None = None
    state: State | None = None
    events: list[State] | None = None


class StatePatch(_Wire):
    state_delta: State


class CancelRequest(_Wire):
    """The body of every cancel; all of it may be left out."""

    at: str | list[str] = "now"
    within_seconds: Seconds | None = None
    recursive: bool = False
    reason: Annotated[str, Field(max_length=500)] | None = None
    wait_seconds: Annotated[float, Field(ge=0, le=60, allow_inf_nan=False)] = 5.0
    run_id: str | None = None
    node: str | None = None

    @field_validator("at")
    @classmethod
    def _known(cls, at: str | list[str]) -> str | list[str]:
        safe_point(at)
        return at

    @field_validator("run_id")
    @classmethod
    def _run_id(cls, run_id: str | None) -> str | None:
        return None if run_id is None else check_id("run", run_id)

    def point(self) -> SafePoint:
        return safe_point(self.at)


class CancelMany(CancelRequest):
    """Which runs: by app, user and session; or all of them, said in so many words."""

    app_name: str | None = None
    user_id: str | None = None
    session_id: str | None = None
    all: bool = False

    def fits(self, key: SessionKey) -> bool:
        wanted = (self.app_name, self.user_id, self.session_id)
        return all(want in (None, has) for want, has in zip(wanted, (key.app, key.user, key.session), strict=True))


class SteerRequest(_Wire):
    new_message: Content


class ResumeRequest(_Wire):
    new_message: Content | None = None
    answers: State | None = None


_POINTS = {
    "now": SafePoint.NOW,
    "force": SafePoint.FORCE,
    "after_model": SafePoint.AFTER_MODEL,
    "after_tool": SafePoint.AFTER_TOOL,
    "after_tools": SafePoint.AFTER_TOOLS,
    "before_effect": SafePoint.BEFORE_EFFECT,
    "any": SafePoint.ANY,
}


def safe_point(at: str | list[str]) -> SafePoint:
    """Where to stop. Raises ValueError, with what to write instead."""
    names = [at] if isinstance(at, str) else at
    if not names:
        raise ValueError("at: [] is nowhere: write 'now', or one or more safe points")
    found = [_one(name) for name in names]
    point = found[0]
    for other in found[1:]:
        point = point | other
    return point


def _one(name: str) -> SafePoint:
    if name.startswith("point:"):
        return SafePoint.named(name.removeprefix("point:"))
    if name not in _POINTS:
        raise ValueError(f"at: {name!r} is no safe point: write one of {', '.join(_POINTS)} or point:NAME")
    return _POINTS[name]


def digest_of(request: RunRequest) -> str:
    """What makes two requests with one key the same request."""
    body = request.model_dump(mode="json", exclude={"idempotency_key"})
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()

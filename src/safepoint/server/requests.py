"""What clients send. Names in camelCase or snake_case.

Unknown fields at the top of ADK's requests are ignored, as ADK does; in what is ours they are refused: a cancel whose
`at` is misspelt would else stop at once.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from typing import Annotated, Any, Literal, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, StrictBool, field_validator, model_validator
from pydantic.alias_generators import to_camel

from safepoint._core.points import Level, SafePoint
from safepoint.history.parts import File, Image, Text, UserPart
from safepoint.serving.ids import SessionKey
from safepoint.sessions.dispatch import IfBusy

# In bodies of ours a number is a number and a yes is true: a stop that was misread is no stop that was asked for.
Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False, strict=True)]
Patience = Annotated[float, Field(ge=0, le=60, allow_inf_nan=False, strict=True)]
State = dict[str, Any]  # Any: JSON values
T = TypeVar("T")
# Each may be wrong, and telling of a hundred thousand would hold up everybody else.
Parts = Annotated[list[T], Field(max_length=1000)]


class _Wire(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)


class _Strict(_Wire):
    """An unknown field would be content, or a wish, that is silently lost."""

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


class SaidPart(_Strict):
    """What a person may send."""

    text: str | None = None
    thought: bool | None = None
    inline_data: Blob | None = None
    file_data: Address | None = None
    function_response: Answer | None = None


class Call(_Strict):
    id: str
    name: str
    args: State | None = None


class WirePart(SaidPart):
    """What a conversation may have."""

    thought_signature: str | None = None
    function_call: Call | None = None

    @property
    def names(self) -> list[str]:
        """Of the tools that it is about."""
        found = (self.function_call, self.function_response)
        return [each.name for each in found if each is not None and each.name is not None]


class ImportedContent(_Strict):
    role: str | None = None
    parts: Parts[WirePart] | None = None


class ImportedEvent(_Wire):
    """An event that a client brings along. What it does not name is no part of a conversation."""

    author: str | None = None
    content: ImportedContent | None = None
    partial: bool | None = None
    actions: State = Field(default_factory=State)
    long_running_tool_ids: list[str] | None = None


class Content(_Strict):
    role: str | None = None
    parts: Parts[SaidPart] = Field(default_factory=list[SaidPart])

    @model_validator(mode="after")
    def _is_one_thing(self) -> Content:
        if self.answers and self.prompt():
            raise ValueError("a message is words or answers: send functionResponse parts in a message of their own")
        return self

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


_OURS = ("__adk_internal_", "safepoint")


class RunRequest(_Wire):
    """ADK's RunAgentRequest, and what is ours: `onDisconnect`, `ifBusy`, `idempotencyKey`."""

    app_name: str | None = None
    user_id: str
    session_id: str
    new_message: Content | None = None
    streaming: bool = False
    state_delta: State | None = None
    invocation_id: str | None = None
    function_call_event_id: str | None = None
    custom_metadata: State | None = None
    on_disconnect: OnDisconnect = "cancel"
    if_busy: IfBusy = "reject"
    idempotency_key: Annotated[str, Field(min_length=1, max_length=200)] | None = None

    @field_validator("custom_metadata")
    @classmethod
    def _without_internals(cls, metadata: State | None) -> State | None:
        """ADK keeps its names to itself, and shows them to nobody. Ours are the server's own word."""
        if metadata is None:
            return None
        return {name: value for name, value in metadata.items() if not name.startswith(_OURS)}

    @property
    def continues(self) -> bool:
        """Is it about a run that was stopped, and no new turn?"""
        return self.new_message is None or bool(self.new_message.answers) or self.invocation_id is not None


class NewSession(_Wire):
    session_id: str | None = None
    state: State | None = None
    events: Annotated[list[State], Field(max_length=10_000)] | None = None
    options: State | None = None


class StatePatch(_Wire):
    state_delta: State


class CancelRequest(_Strict):
    """The body of every cancel; all of it may be left out."""

    at: str | Annotated[list[str], Field(max_length=20)] = "now"
    within_seconds: Seconds | None = None
    recursive: StrictBool = False
    reason: Annotated[str, Field(max_length=500)] | None = None
    wait_seconds: Patience = 5.0
    run_id: str | None = None
    node: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_claims(cls, given: Any) -> Any:  # Any: whatever was sent
        """Who asks, and by which way, is the server's own word; a stop does not fail because somebody claims it."""
        if not isinstance(given, dict):
            return given
        return {name: value for name, value in cast("State", given).items() if name not in ("source", "by")}

    @field_validator("at")
    @classmethod
    def _known(cls, at: str | list[str]) -> str | list[str]:
        safe_point(at)
        return at

    @model_validator(mode="after")
    def _can_be_asked(self) -> CancelRequest:
        """Whoever has the run can do it: a wish is kept for other processes, and nobody there could refuse it."""
        if self.within_seconds is not None and self.point().level is not Level.SAFE:
            raise ValueError(f"withinSeconds is for a safe point, and {self.at} is immediate already: leave it out")
        return self

    def point(self) -> SafePoint:
        return safe_point(self.at)


class CancelMany(CancelRequest):
    """Which runs: by app, user, session and run; or all of them, said in so many words."""

    app_name: str | None = None
    user_id: str | None = None
    session_id: str | None = None
    all: StrictBool = False

    def fits(self, key: SessionKey, run_id: str) -> bool:
        wanted = (self.app_name, self.user_id, self.session_id, self.run_id)
        has = (key.app, key.user, key.session, run_id)
        return all(want in (None, each) for want, each in zip(wanted, has, strict=True))


class SteerRequest(_Strict):
    new_message: Content
    wait_seconds: Patience = 5.0

    @field_validator("new_message")
    @classmethod
    def _has_words(cls, message: Content) -> Content:
        if not message.prompt():
            raise ValueError("write at least one part with text, inlineData or fileData")
        return message


class ResumeRequest(_Strict):
    """How a stopped run goes on: with answers by the id of their question, or with a message, or as it was."""

    new_message: Content | None = None
    answers: State | None = None
    custom_metadata: State | None = None


class RewindRequest(_Strict):
    """A live run is stopped first; then its turn is taken back."""

    reason: Annotated[str, Field(max_length=500)] | None = None


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

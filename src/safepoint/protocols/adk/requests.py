"""What ADK's clients send, and the `Submission` that it means. Names in camelCase or snake_case.

Unknown fields at the top of a request are ignored, as ADK does; inside a message they are refused, because an unknown
part would be content that is silently lost.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic.alias_generators import to_camel

from safepoint.history.parts import File, Image, Text, UserPart
from safepoint.protocols.adk.events import run_of
from safepoint.serving import submission as serving
from safepoint.sessions.dispatch import IfBusy

# A number is a number: a stop that was misread is no stop that was asked for.
Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False, strict=True)]
State = dict[str, Any]  # Any: JSON values
T = TypeVar("T")
# Each part may be wrong, and reporting a hundred thousand errors would hold up every other request.
Parts = Annotated[list[T], Field(max_length=1000)]


class Wire(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)


class Strict(Wire):
    """An unknown field would be content, or a request, that is silently lost."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid")


class Blob(Strict):
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


class Address(Strict):
    file_uri: str
    mime_type: str = "application/octet-stream"
    display_name: str | None = None

    def to_part(self) -> UserPart:
        """By address only: the server never fetches it."""
        if self.mime_type.startswith("image/"):
            return Image(url=self.file_uri, media_type=self.mime_type)
        return File(url=self.file_uri, media_type=self.mime_type, name=self.display_name)


class Answer(Strict):
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


class SaidPart(Strict):
    """What a person may send."""

    text: str | None = None
    thought: bool | None = None
    inline_data: Blob | None = None
    file_data: Address | None = None
    function_response: Answer | None = None


class Call(Strict):
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


class ImportedContent(Strict):
    role: str | None = None
    parts: Parts[WirePart] | None = None


class ImportedEvent(Wire):
    """An event that a client brings along. What it does not name is no part of a conversation."""

    author: str | None = None
    content: ImportedContent | None = None
    partial: bool | None = None
    actions: State = Field(default_factory=State)
    long_running_tool_ids: list[str] | None = None


class Content(Strict):
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


class CancelAfter(Strict):
    """Cancel a run without viewers, unless one comes back within that time."""

    cancel_after: Seconds


OnDisconnect = Literal["cancel", "detach"] | CancelAfter


_OURS = ("__adk_internal_", "safepoint")


def without_internals(metadata: State) -> State:
    return {name: value for name, value in metadata.items() if not name.startswith(_OURS)}


class RunRequest(Wire):
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
        """Names of ADK's and of the server's own are dropped: a client cannot claim them."""
        return None if metadata is None else without_internals(metadata)

    def submission(self) -> serving.Submission:
        """What it asks for. Raises `NothingToAnswer`, `ValueError`."""
        message, once, policy = self.new_message, self.idempotency_key, self.on_disconnect
        answers = message.answers if message is not None else []
        if self.function_call_event_id is not None and not answers:
            raise serving.NothingToAnswer("functionCallEventId goes with a functionResponse: leave it out")
        prompt = tuple(message.prompt()) if message is not None else None
        if message is not None and not (prompt or answers):
            raise ValueError("newMessage: write at least one part with text, inlineData or functionResponse")
        return serving.Submission(
            prompt,
            tuple(serving.Answer(each.id, each.value) for each in answers),
            None if self.invocation_id is None else run_of(self.invocation_id),
            self.function_call_event_id,
            self.state_delta,
            self.custom_metadata,
            serving.CancelAfter(policy.cancel_after) if isinstance(policy, CancelAfter) else policy,
            self.if_busy,
            None if once is None else serving.Idempotency(once, digest_of(self)),
        )


class NewSession(Wire):
    session_id: str | None = None
    state: State | None = None
    events: Annotated[list[State], Field(max_length=10_000)] | None = None
    options: State | None = None


class StatePatch(Wire):
    state_delta: State


def digest_of(request: RunRequest) -> str:
    """What makes two requests with one key the same request."""
    body = request.model_dump(mode="json", exclude={"idempotency_key"})
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def refused(error: serving.NothingToAnswer, invocation_id: str | None) -> serving.NothingToAnswer:
    """The same refusal, in the words of ADK's requests."""
    match error:
        case serving.NotTheLast():
            text = f"Invocation {invocation_id!r} is not the last one of this session: only that can go on"
        case serving.NothingStopped():
            text = "there is no stopped run to go on with: write a newMessage"
        case serving.AnswerMissing(calls=calls):
            named = ", ".join(map(repr, calls))
            text = f"the run waits for an answer: write a newMessage with a functionResponse for {named}"
        case serving.NotInThatEvent():
            text = f"{error}: leave functionCallEventId out"
        case _:
            return error
    return serving.NothingToAnswer(text)

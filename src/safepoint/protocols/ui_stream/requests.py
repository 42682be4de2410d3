"""What `DefaultChatTransport` posts: the chat's id, and its messages or the last of them.

An unknown part of a user's message would be content that is silently lost, so it is refused. Of the assistant's
messages only answers to approval requests are read: the session has the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from safepoint.history.parts import Text, UserPart
from safepoint.protocols.client_conversation import Said
from safepoint.protocols.client_files import from_address
from safepoint.serving.ids import check_id

RESPONDED = "approval-responded"


def _is_id(value: str) -> str:
    return check_id("id", value)


Id: TypeAlias = Annotated[str, AfterValidator(_is_id)]


class Wire(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)


class TextPart(Wire):
    type: Literal["text"]
    text: str

    def part(self) -> UserPart:
        return Text(self.text)


class FilePart(Wire):
    type: Literal["file"]
    media_type: str
    url: str
    filename: str | None = None

    def part(self) -> UserPart:
        return from_address(self.url, self.media_type, self.filename)


UserMessagePart: TypeAlias = Annotated[TextPart | FilePart, Field(discriminator="type")]


class UserMessage(Wire):
    role: Literal["user"]
    parts: Annotated[list[UserMessagePart], Field(max_length=1000)]

    @model_validator(mode="after")
    def _can_be_read(self) -> UserMessage:
        self.said()
        return self

    def said(self) -> tuple[UserPart, ...]:
        given = [each.part() for each in self.parts]
        return tuple(part for part in given if not (isinstance(part, Text) and not part.text.strip()))


class Approval(Wire):
    """What a person says to a request for approval. `reason`: or to a question."""

    id: Annotated[str, Field(max_length=500)]
    approved: bool | None = None
    reason: str | None = None


class AssistantPart(Wire):
    type: str
    state: str | None = None
    approval: Approval | None = None


class AssistantMessage(Wire):
    role: Literal["assistant"]
    parts: Annotated[list[AssistantPart], Field(max_length=100_000)] = Field(default_factory=list[AssistantPart])


class SystemMessage(Wire):
    role: Literal["system"]


AnyMessage: TypeAlias = Annotated[UserMessage | AssistantMessage | SystemMessage, Field(discriminator="role")]


class ChatRequest(Wire):
    """`messages`: all that the client has; or `message`: the new one alone."""

    id: Id
    messages: Annotated[list[AnyMessage], Field(max_length=10_000)] | None = None
    message: AnyMessage | None = None
    trigger: Literal["submit-message", "regenerate-message"] = "submit-message"

    @model_validator(mode="after")
    def _has_messages(self) -> ChatRequest:
        if (self.messages is None) == (self.message is None):
            raise ValueError("write messages, all that the client has, or message, the new one alone")
        if self.trigger == "regenerate-message":
            raise ValueError("an answer is not made again here: rewind the run (POST /runs/{run}:rewind), then send it")
        return self

    @property
    def given(self) -> Sequence[AnyMessage]:
        return self.messages if self.messages is not None else [] if self.message is None else [self.message]

    def said(self) -> list[Said]:
        counted = [each for each in self.given if not isinstance(each, SystemMessage)]
        return [Said(each.said() if isinstance(each, UserMessage) else None) for each in counted]

    def approvals(self) -> list[Approval]:
        """Those of the last message, which a person has answered."""
        last = self.given[-1] if self.given else None
        if not isinstance(last, AssistantMessage):
            return []
        return [each.approval for each in last.parts if each.approval is not None and each.state == RESPONDED]


class StopChat(Wire):
    """The body of a stop, which may be left out. `message_id`: the message whose run is meant, and no later one."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid")

    message_id: Id | None = None
    reason: Annotated[str, Field(max_length=500)] = ""
    wait_seconds: Annotated[float, Field(ge=0, le=60, allow_inf_nan=False, strict=True)] = 5.0


def answer_of(approval: Approval, kind: str) -> Any:  # Any: JSON
    """A request for approval is answered by yes or no, or by why not; a question by the words, or else by yes or no."""
    if kind == "check":
        return True if approval.approved else (approval.reason or False)
    return approval.reason if approval.reason is not None else bool(approval.approved)

"""What an AG-UI client sends: `RunAgentInput`, and the body of a stop.

The protocol lets a peer send fields that we do not know; they are ignored, as it demands. What would be content is
not: a message, or a part of one, that cannot be read is refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from safepoint.history.parts import Text, UserPart
from safepoint.protocols.client_conversation import Said
from safepoint.protocols.client_files import from_address, from_base64
from safepoint.serving.ids import check_id

_MEDIA = {"image": "image/png", "audio": "audio/mpeg", "video": "video/mp4", "document": "application/octet-stream"}


def _is_id(value: str) -> str:
    return check_id("id", value)


Id: TypeAlias = Annotated[str, AfterValidator(_is_id)]


class Wire(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)


class Source(Wire):
    type: Literal["data", "url"]
    value: str
    mime_type: str | None = None


class TextPart(Wire):
    type: Literal["text"]
    text: str

    def part(self) -> UserPart:
        return Text(self.text)


class MediaPart(Wire):
    type: Literal["image", "audio", "video", "document"]
    source: Source

    def part(self) -> UserPart:
        media_type = self.source.mime_type or _MEDIA[self.type]
        if self.source.type == "data":
            return from_base64(self.source.value, media_type)
        return from_address(self.source.value, media_type)


class BinaryPart(Wire):
    """As clients before 1.0 send it."""

    type: Literal["binary"]
    mime_type: str
    data: str | None = None
    url: str | None = None
    filename: str | None = None

    def part(self) -> UserPart:
        if self.data is not None:
            return from_base64(self.data, self.mime_type, self.filename)
        if self.url is not None:
            return from_address(self.url, self.mime_type, self.filename)
        raise ValueError("a binary part needs data or url")


ContentPart: TypeAlias = Annotated[TextPart | MediaPart | BinaryPart, Field(discriminator="type")]


class UserMessage(Wire):
    role: Literal["user"]
    content: str | Annotated[list[ContentPart], Field(max_length=1000)]

    @model_validator(mode="after")
    def _can_be_read(self) -> UserMessage:
        self.parts()
        return self

    def parts(self) -> tuple[UserPart, ...]:
        given = [Text(self.content)] if isinstance(self.content, str) else [each.part() for each in self.content]
        return tuple(part for part in given if not (isinstance(part, Text) and not part.text.strip()))


class ToolMessage(Wire):
    """The answer of a front end's tool, or the result of one of ours, which is stored already."""

    role: Literal["tool"]
    tool_call_id: str
    content: Any = ""  # Any: text, or parts of a message
    error: str | None = None


class OtherMessage(Wire):
    role: Literal["assistant", "system", "developer", "activity", "reasoning"]


AnyMessage: TypeAlias = Annotated[UserMessage | ToolMessage | OtherMessage, Field(discriminator="role")]


class ResumeEntry(Wire):
    """What a person says to an interrupt."""

    interrupt_id: Annotated[str, Field(max_length=500)]
    status: Literal["resolved", "cancelled"]
    payload: Any = None  # Any: JSON


class ContextEntry(Wire):
    description: str
    value: str


class FrontEndTool(Wire):
    """A tool that the front end carries out."""

    name: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_-]+$")]
    description: str = ""
    parameters: dict[str, Any] | None = None  # Any: a JSON schema


class RunAgentInput(Wire):
    """`protocol_version`: as clients from 1.0 on declare it."""

    thread_id: Id
    run_id: Id
    protocol_version: str | None = None
    state: Any = None  # Any: JSON
    messages: Annotated[list[AnyMessage], Field(max_length=10_000)]
    tools: Annotated[list[FrontEndTool], Field(max_length=200)] | None = None
    context: Annotated[list[ContextEntry], Field(max_length=1000)] | None = None
    forwarded_props: Any = None  # Any: JSON
    resume: Annotated[list[ResumeEntry], Field(max_length=1000)] | None = None

    @property
    def knows_cancelled(self) -> bool:
        """Does the client know the outcome `cancelled`? It came with 1.0; older clients drop the stream for it."""
        major, _, _ = (self.protocol_version or "").partition(".")
        return major.isdecimal() and int(major[:9]) >= 1

    def said(self) -> Sequence[Said]:
        return [
            Said(each.parts() if isinstance(each, UserMessage) else None) for each in self.messages if _counts(each)
        ]

    def digest(self) -> str:
        """What makes two requests with one run id the same request."""
        body = self.model_dump_json(include={"messages", "resume"})
        return hashlib.sha256(body.encode(errors="surrogatepass")).hexdigest()


def _counts(message: AnyMessage) -> bool:
    """Instructions and remarks of the front end are no part of the conversation."""
    return not isinstance(message, OtherMessage) or message.role == "assistant"


class StopRun(Wire):
    """The body of a stop. Unknown fields are refused: a misspelt `runId` would stop another run."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid")

    thread_id: Id
    run_id: Id | None = None
    reason: Annotated[str, Field(max_length=500)] = ""
    wait_seconds: Annotated[float, Field(ge=0, le=60, allow_inf_nan=False, strict=True)] = 5.0

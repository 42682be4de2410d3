"""The words of a conversation: messages and their parts. Frozen, plain, and the same for every provider.

A conversation is a list of messages. `user` and `assistant` speak; `tool` carries the results of the calls
in the assistant message right before it, in call order. Instructions are not part of the history.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeAlias

from safepoint._values import Value

Role: TypeAlias = Literal["user", "assistant", "tool"]


class Text(Value, frozen=True, tag_field="kind", tag="text"):
    """Words. ``incomplete``: the stream was cut before the model had finished them."""

    text: str
    incomplete: bool = False
    kind: ClassVar[Literal["text"]] = "text"


class Image(Value, frozen=True, tag_field="kind", tag="image"):
    """A picture, as bytes with a media type, or by address."""

    data: bytes | None = None
    media_type: str = "image/png"
    url: str | None = None
    kind: ClassVar[Literal["image"]] = "image"

    def __post_init__(self) -> None:
        _one_of(self.data, self.url, "Image")


class File(Value, frozen=True, tag_field="kind", tag="file"):
    """A document, as bytes with a media type, or by address."""

    data: bytes | None = None
    media_type: str = "application/octet-stream"
    name: str | None = None
    url: str | None = None
    kind: ClassVar[Literal["file"]] = "file"

    def __post_init__(self) -> None:
        _one_of(self.data, self.url, "File")


# The parts that a tool may return beside text.
Attachment: TypeAlias = Image | File


class Reasoning(Value, frozen=True, tag_field="kind", tag="reasoning"):
    """What a model thought aloud. ``signature`` is the provider's seal; without it the text is never sent back."""

    text: str
    signature: str | None = None
    kind: ClassVar[Literal["reasoning"]] = "reasoning"


class ToolCall(Value, frozen=True, tag_field="kind", tag="tool_call"):
    """A model's request to call a tool. ``args`` is the decoded JSON.

    If that was no JSON object, ``args`` is `{}` and ``invalid`` says why.
    """

    id: str
    name: str
    args: Mapping[str, Any]  # Any: decoded JSON
    invalid: str | None = None
    kind: ClassVar[Literal["tool_call"]] = "tool_call"


class ToolResult(Value, frozen=True, tag_field="kind", tag="tool_result"):
    """The one answer to one call. ``state`` is the ledger's word for what really happened.

    ``content`` has the words, and names the pictures and files among ``parts`` where they stood.
    """

    call_id: str
    name: str
    content: str
    state: str = "finished"
    parts: tuple[Attachment, ...] = ()
    kind: ClassVar[Literal["tool_result"]] = "tool_result"

    @property
    def is_error(self) -> bool:
        return self.state not in ("finished", "finished_late")


class Notice(Value, frozen=True, tag_field="kind", tag="notice"):
    """Safepoint's own remark to the model, never the model's words: that it was stopped, and why."""

    text: str
    kind: ClassVar[Literal["notice"]] = "notice"


Part: TypeAlias = Text | Image | File | Reasoning | ToolCall | ToolResult | Notice
UserPart: TypeAlias = Text | Image | File
Prompt: TypeAlias = str | Sequence[UserPart]


class Message(Value, frozen=True):
    """One turn of one speaker. ``author``: the name of the agent, where several share one conversation.

    The runtime sets it, and no model is shown it.
    """

    role: Role
    parts: tuple[Part, ...]
    author: str | None = None

    @property
    def text(self) -> str:
        """The words alone: no notices, no reasoning."""
        return "".join([part.text for part in self.parts if part.kind == "text"])

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        return tuple([part for part in self.parts if part.kind == "tool_call"])


_OF_A_USER = (Text, Image, File)


def user_message(prompt: Prompt) -> Message:
    """The message that a prompt becomes. Refuses an empty one: no provider takes it."""
    if not isinstance(prompt, Sequence):  # pyright: ignore[reportUnnecessaryIsInstance]  # untyped callers
        raise ValueError(f"a prompt is a str or a list of Text, Image and File, not {prompt!r}")
    parts: tuple[UserPart, ...] = (Text(prompt),) if isinstance(prompt, str) else tuple(prompt)
    for part in parts:
        if not isinstance(part, _OF_A_USER):  # pyright: ignore[reportUnnecessaryIsInstance]  # untyped callers
            raise ValueError(f"a prompt is a str or a list of Text, Image and File, not a list with {part!r}")
        if isinstance(part, Text) and not isinstance(part.text, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # as above
            raise ValueError(f"the words of a prompt are a str, not {part.text!r}")
        if isinstance(part, Text) and not part.text.strip():
            raise ValueError("a prompt must not be empty: write at least one word")
    if not parts:
        raise ValueError("a prompt must not be empty: write at least one word")
    return Message("user", parts)


def common(one: Sequence[Message], other: Sequence[Message]) -> int:
    """How many messages at the start of both are equal."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a is not b and a != b), min(len(one), len(other)))


def _one_of(data: bytes | None, url: str | None, what: str) -> None:
    if (data is None) == (url is None):
        raise ValueError(f"{what} takes data=… or url=…, exactly one of them")

"""The words of a conversation: messages and their parts. Frozen, plain, and the same for every provider.

A conversation is a list of messages. `user` and `assistant` speak; `tool` carries the results of the calls
in the assistant message right before it, in call order. Instructions are not part of the history.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

Role: TypeAlias = Literal["user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class Text:
    """Words. ``incomplete``: the stream was cut before the model had finished them."""

    text: str
    incomplete: bool = False
    kind: Literal["text"] = field(default="text", init=False)


@dataclass(frozen=True, slots=True)
class Image:
    """A picture, as bytes with a media type, or by address."""

    data: bytes | None = None
    media_type: str = "image/png"
    url: str | None = None
    kind: Literal["image"] = field(default="image", init=False)

    def __post_init__(self) -> None:
        _one_of(self.data, self.url, "Image")


@dataclass(frozen=True, slots=True)
class File:
    """A document, as bytes with a media type, or by address."""

    data: bytes | None = None
    media_type: str = "application/octet-stream"
    name: str | None = None
    url: str | None = None
    kind: Literal["file"] = field(default="file", init=False)

    def __post_init__(self) -> None:
        _one_of(self.data, self.url, "File")


# What a tool may hand over beside words.
Attachment: TypeAlias = Image | File


@dataclass(frozen=True, slots=True)
class Reasoning:
    """What a model thought aloud. ``signature`` is the provider's seal; without it the text is never sent back."""

    text: str
    signature: str | None = None
    kind: Literal["reasoning"] = field(default="reasoning", init=False)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A model's wish to call a tool. ``args`` is what it sent, decoded.

    If that was no JSON object, ``args`` is `{}` and ``invalid`` says why.
    """

    id: str
    name: str
    args: Mapping[str, Any]  # Any: decoded JSON
    invalid: str | None = None
    kind: Literal["tool_call"] = field(default="tool_call", init=False)


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The one answer to one call. ``state`` is the ledger's word for what really happened.

    ``content`` has the words, and names the pictures and files among ``parts`` where they stood.
    """

    call_id: str
    name: str
    content: str
    state: str = "finished"
    parts: tuple[Attachment, ...] = ()
    kind: Literal["tool_result"] = field(default="tool_result", init=False)

    @property
    def is_error(self) -> bool:
        return self.state not in ("finished", "finished_late")


@dataclass(frozen=True, slots=True)
class Notice:
    """Safepoint's own remark to the model, never the model's words: that it was stopped, and why."""

    text: str
    kind: Literal["notice"] = field(default="notice", init=False)


Part: TypeAlias = Text | Image | File | Reasoning | ToolCall | ToolResult | Notice
UserPart: TypeAlias = Text | Image | File
Prompt: TypeAlias = str | Sequence[UserPart]


@dataclass(frozen=True, slots=True)
class Message:
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


def user_message(prompt: Prompt) -> Message:
    """The message that a prompt becomes. Refuses an empty one: no provider takes it."""
    if not isinstance(prompt, Sequence):  # pyright: ignore[reportUnnecessaryIsInstance]  # untyped callers
        raise ValueError(f"a prompt is a str or a list of Text, Image and File, not {prompt!r}")
    parts: tuple[UserPart, ...] = (Text(prompt),) if isinstance(prompt, str) else tuple(prompt)
    for part in parts:
        if not isinstance(part, Text | Image | File):  # pyright: ignore[reportUnnecessaryIsInstance]  # untyped callers
            raise ValueError(f"a prompt is a str or a list of Text, Image and File, not a list with {part!r}")
        if isinstance(part, Text) and not isinstance(part.text, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # as above
            raise ValueError(f"the words of a prompt are a str, not {part.text!r}")
        if isinstance(part, Text) and not part.text.strip():
            raise ValueError("a prompt must not be empty: write at least one word")
    if not parts:
        raise ValueError("a prompt must not be empty: write at least one word")
    return Message("user", parts)


def common(one: Sequence[Message], other: Sequence[Message]) -> int:
    """With how many messages both begin."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a is not b and a != b), min(len(one), len(other)))


def _one_of(data: bytes | None, url: str | None, what: str) -> None:
    if (data is None) == (url is None):
        raise ValueError(f"{what} takes data=… or url=…, exactly one of them")

"""Thinking that a compatible server requires back. Pure: no SDK, no network.

Chat completions have no field for thinking, but servers of thinking models send it as `reasoning_content`, and some
refuse a request without it: DeepSeek requires it on every assistant message of a turn with tool calls, in all later
requests, and takes an empty str where nothing was thought. So the thinking goes back to the server that sent it, and to
no other: its signature names the server. A turn is the part between two user messages; a turn without calls needs no
thinking, and older servers refuse it there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final
from urllib.parse import urlsplit

from safepoint.agent.model import ReasoningDelta
from safepoint.history.parts import Message, Reasoning
from safepoint.models.signatures import seal, unseal
from safepoint.models.untrusted_json import text

FIELD: Final = "reasoning_content"
_WIRE: Final = "chat"
OPENAI: Final = "api.openai.com"


def server_of(base_url: str | None) -> str:
    """The server's name in a seal: host and port, and nothing that may be secret."""
    if base_url is None:
        return OPENAI
    parts = urlsplit(base_url)
    return f"{parts.hostname or ''}:{parts.port}" if parts.port is not None else parts.hostname or ""


class ThinkingReader:
    """Reads the thinking of one reply, and seals it as soon as the reply goes on to words or calls."""

    def __init__(self, server: str) -> None:
        self._seal = seal(_WIRE, FIELD, server) if server else None
        self._wanted = False
        self._open = False

    def read(self, delta: Mapping[str, object]) -> list[ReasoningDelta]:
        self._wanted = self._wanted or isinstance(delta.get(FIELD), str)
        if thought := text(delta.get(FIELD)):
            self._open = True
            return [ReasoningDelta(thought)]
        if thought := text(delta.get("reasoning")):
            return [ReasoningDelta(thought)]
        return []

    def end(self, *, calls: bool) -> list[ReasoningDelta]:
        """The seal, if words or calls follow now. A call without a thought is sealed too, if the field was sent."""
        if self._seal is None or not (self._open or (calls and self._wanted)):
            return []
        self._open = self._wanted = False
        return [ReasoningDelta("", self._seal)]


def thinking_for(messages: Sequence[Message], server: str) -> Iterator[str | None]:
    """For each message, the `reasoning_content` that this server wants on it; None where it wants none."""
    thoughts = [_thought(message, server) for message in messages]
    if all(thought is None for thought in thoughts):
        yield from thoughts
        return
    for start, end in _turns(messages):
        called = any(message.tool_calls for message in messages[start:end])
        for message, thought in zip(messages[start:end], thoughts[start:end], strict=True):
            yield (thought or "") if called and message.role == "assistant" else None


def _thought(message: Message, server: str) -> str | None:
    thoughts = [
        part for part in message.parts if isinstance(part, Reasoning) and unseal(_WIRE, part) == (FIELD, server)
    ]
    return "".join(part.text for part in thoughts) if thoughts else None


def _turns(messages: Sequence[Message]) -> Iterator[tuple[int, int]]:
    starts = [place for place, message in enumerate(messages) if place == 0 or message.role == "user"]
    return zip(starts, [*starts[1:], len(messages)], strict=True)

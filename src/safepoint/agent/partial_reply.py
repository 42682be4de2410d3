"""A reply while it is being received, so that what was streamed is never lost.

Chunks go in one by one; at any moment the object knows what could be kept if the stream were cut now: the text, and
thinking that its provider has signed. Tool calls count only in a complete reply, so a half-received call cannot run.
The same text is streamed and kept: a character that arrives in two halves is emitted when it is whole.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from types import NoneType
from typing import Any

from msgspec import Struct, field

from safepoint.agent.model import CallDelta, Chunk, Finish, ReasoningDelta, TextDelta
from safepoint.agent.result import StopReason
from safepoint.errors import ModelMisbehaved
from safepoint.history.check import TOOL_NAME
from safepoint.history.parts import Message, Part, Reasoning, Text, ToolCall
from safepoint.history.wellformed import is_well_formed, well_formed
from safepoint.tools.json_args import decode_arguments


class _Call(Struct):
    id: str | None = None
    name: str | None = None
    # Joined only at the end: a long call arrives in tens of thousands of pieces, and joining each is quadratic.
    pieces: list[str] = field(default_factory=list[str])

    @property
    def arguments(self) -> str:
        return "".join(self.pieces)


class _Words:
    """Text in pieces that can each be printed: half of a surrogate pair waits for the other half."""

    def __init__(self) -> None:
        self._half = ""

    def take(self, piece: str) -> str:
        text = self._half + piece
        self._half = text[-1:] if "\ud800" <= text[-1:] <= "\udbff" else ""
        return well_formed(text.removesuffix(self._half))

    def end(self) -> str:
        """The rest, when no more text follows."""
        return well_formed(self._half)


_ENDS = {"max_tokens": StopReason.MAX_TOKENS, "refused": StopReason.REFUSED}


class PartialReply:
    """`add` every chunk; then `reply()` if a `Finish` came, or `kept_text` and `kept_reasoning` if it did not."""

    def __init__(self) -> None:
        self.finish: Finish | None = None
        self.chars = 0
        self.closed = False
        self._text: list[str] = []
        self._spoken, self._thought = _Words(), _Words()
        self._reasoning: list[Reasoning] = []
        self._thinking: list[str] = []
        self._calls: dict[int, _Call] = {}

    def close(self) -> None:
        """The call is over; chunks of a model that continues are dropped."""
        self.closed = True
        self._text.extend(filter(None, [self._spoken.end()]))

    def add(self, chunk: Chunk) -> str | None:
        """Take a chunk; return the words in it, or None if the call is over."""
        if self.closed:
            return None
        if self.finish is not None:
            raise ModelMisbehaved(f"the model went on after its end, with {chunk!r}")
        if not _is_chunk(chunk):
            raise ModelMisbehaved(f"the model sent {chunk!r}, which is no chunk")
        match chunk:
            case TextDelta(text):
                self.chars += len(text)
                self._text.append(self._spoken.take(text))
                return self._text[-1]
            case ReasoningDelta(text, signature):
                self.chars += len(text)
                self._thinking.append(text)
                if signature is not None:
                    self._seal(signature)
                return self._thought.take(text)
            case CallDelta():
                self._add_call(chunk)
            case Finish():
                self.finish = chunk
        return ""

    def _seal(self, signature: str) -> None:
        """Drop thinking that cannot be sent again as it was signed: the signature covers its exact text."""
        thought = "".join(self._thinking)
        self._thinking.clear()
        if signature.strip() and is_well_formed(thought + signature):
            self._reasoning.append(Reasoning(thought, signature))

    def _add_call(self, chunk: CallDelta) -> None:
        call = self._calls.setdefault(chunk.index, _Call())
        call.id = chunk.id or call.id
        call.name = chunk.name or call.name
        call.pieces.append(chunk.arguments)
        self.chars += len(chunk.arguments)

    @property
    def empty(self) -> bool:
        """Whether nothing has arrived: then the call may be repeated without a visible effect."""
        return not (self._text or self._thinking or self._reasoning or self._calls or self.finish)

    @property
    def has_calls(self) -> bool:
        return bool(self._calls)

    @property
    def kept_text(self) -> str:
        return "".join(self._text)

    @property
    def kept_reasoning(self) -> tuple[Reasoning, ...]:
        """Only signed thinking; half-received thinking is dropped."""
        return tuple(self._reasoning)

    def kept(self) -> Message | None:
        """The part of a cut reply that its event carries; None if there are no visible words."""
        if not self.kept_text.strip():
            return None
        return Message("assistant", (*self._reasoning, Text(well_formed(self.kept_text), incomplete=True)))

    @property
    def all_received(self) -> str:
        """Every character that arrived, for the estimate of the cost."""
        calls = "".join((call.name or "") + call.arguments for call in self._calls.values())
        thought = "".join(part.text for part in self._reasoning) + "".join(self._thinking)
        return self.kept_text + thought + calls

    @property
    def stop_reason(self) -> StopReason:
        """How the run ends if this reply is its last."""
        return _ENDS.get(self.finish.reason if self.finish is not None else "", StopReason.END_TURN)

    def reply(self, used_ids: AbstractSet[str]) -> Message | None:
        """The complete reply; None if the model was cut off or refused before it said a word.

        Ids of calls that are missing or already in `used_ids` are replaced. A reply that the token limit
        cut off has no calls: the last one may be incomplete.
        """
        parts: list[Part] = list(self._reasoning)
        if thinking := "".join(self._thinking):
            parts.append(Reasoning(well_formed(thinking)))
        if (text := self.kept_text).strip():
            parts.append(Text(well_formed(text)))
        used = set(used_ids)
        whole = self.stop_reason is StopReason.END_TURN
        for index in sorted(self._calls) if whole else ():
            call = self._tool_call(index, used)
            used.add(call.id)
            parts.append(call)
        if all(part.kind == "reasoning" for part in parts):
            if not whole:
                return None
            raise ModelMisbehaved("the model's reply is empty: no text and no tool call")
        return Message("assistant", tuple(parts))

    def _tool_call(self, index: int, used: set[str]) -> ToolCall:
        call = self._calls[index]
        if not call.name:
            raise ModelMisbehaved(f"tool call {index} of the reply has no name")
        id = call.id if call.id and call.id.strip() and is_well_formed(call.id) else f"call_{len(used) + 1}"
        while id in used:
            id += "_"
        if not TOOL_NAME.fullmatch(call.name):
            # Models invent names. A legal spelling can be sent back; it must not become a call of an existing tool.
            legal = _ILLEGAL.sub("_", call.name)[:64]
            return ToolCall(id, legal, {}, f"the name {well_formed(call.name)!r} is none that a tool can have")
        args: Mapping[str, Any]  # Any: decoded JSON
        args, invalid = decode_arguments(call.arguments)
        return ToolCall(id, call.name, args, invalid)


_ILLEGAL = re.compile(r"[^A-Za-z0-9_-]")


_NAME = (str, NoneType)


def _is_chunk(chunk: object) -> bool:
    """A model is outside code: its chunks are checked before anything is built on them."""
    match chunk:
        case TextDelta():
            return isinstance(chunk.text, str)  # pyright: ignore[reportUnnecessaryIsInstance]  # untyped models
        case ReasoningDelta():
            return isinstance(chunk.text, str) and isinstance(chunk.signature, str | None)  # pyright: ignore[reportUnnecessaryIsInstance]  # as above
        case CallDelta():
            named = isinstance(chunk.id, _NAME) and isinstance(chunk.name, _NAME)  # pyright: ignore[reportUnnecessaryIsInstance]  # as above
            return named and isinstance(chunk.index, int) and isinstance(chunk.arguments, str)  # pyright: ignore[reportUnnecessaryIsInstance]  # as above
        case Finish():
            return isinstance(chunk.reason, str)  # pyright: ignore[reportUnnecessaryIsInstance]  # as above
        case _:
            return False

"""Random conversations for property tests: valid ones, and everything that can be there when one is stopped."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from safepoint.history import (
    CLOSED_STATES,
    ClosedCall,
    Draft,
    File,
    Image,
    LedgerState,
    Message,
    Notice,
    Part,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
)

PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""For every property: a busy machine is slow, and that is no fault of what is tested."""
wild_text = st.one_of(
    st.text(st.characters(codec=None, exclude_categories=[]), max_size=12),
    st.sampled_from(
        ["", " ", "\n\t\u2028", "\ud83d", "\ud83d\ude00", "\x00\x1b[0m", '"]}\n', "word " * 5000, "\u202eevil"]
    ),
)
"""Anything a `str` can hold, surrogates too."""
words = st.one_of(
    st.sampled_from(["a", "Hello, world", "größe", "漢字 かな", "👍", "\x00", "x" * 100, " b\n", "\ufeff", '"']),
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=5).filter(lambda text: bool(text.strip())),
)
names = st.text("abzABZ019_-", min_size=1, max_size=4) | st.just("n" * 64)
json_values: st.SearchStrategy[Any] = st.recursive(  # Any: JSON
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=3,
)
thoughts = st.lists(st.builds(Reasoning, words | st.just(""), st.none() | words), max_size=2)
texts = st.lists(st.builds(Text, words, st.booleans()), max_size=2)
notices = st.lists(st.builds(Notice, words), max_size=1)
user_parts = st.one_of(
    st.builds(Text, words),
    st.builds(Image, data=st.binary(min_size=1, max_size=4)),
    st.builds(File, url=st.just("https://example.com/a.pdf"), name=st.none() | words),
)
user_messages = st.builds(Message, st.just("user"), st.lists(user_parts, min_size=1, max_size=3).map(tuple))
calls = st.lists(st.tuples(names, st.dictionaries(words, json_values, max_size=2)), min_size=1, max_size=3)
attachments = st.one_of(
    st.builds(Image, data=st.binary(min_size=1, max_size=4), media_type=st.sampled_from(["image/png", "image/tiff"])),
    st.builds(File, url=st.just("https://example.com/a.pdf"), name=st.none() | words),
    st.builds(File, data=st.just(b"x"), media_type=st.sampled_from(["text/plain", "application/zip"])),
)
results = st.tuples(
    words, st.sampled_from(sorted(CLOSED_STATES)), st.lists(attachments, max_size=2).map(tuple) | st.just(())
)
lengths = st.integers(0, 5)
drafts = st.builds(
    Draft, wild_text, st.lists(st.builds(Reasoning, wild_text, st.none() | wild_text), max_size=2).map(tuple)
)
entries = st.builds(
    ClosedCall,
    call=st.just(ToolCall("", "", {})),
    state=st.sampled_from(LedgerState),
    content=wild_text,
    parts=st.lists(attachments, max_size=2).map(tuple),
    error=st.none() | wild_text,
    reason=st.none() | wild_text,
    point=st.none() | wild_text,
    still_running=st.booleans(),
    remote=st.booleans(),
)


def _answer(draw: st.DrawFn) -> Message:
    said: list[Part] = [*draw(texts), *draw(notices)]
    return Message("assistant", (*draw(thoughts), *(said or [Text("hello")])))


def _asking(draw: st.DrawFn, taken: int) -> Message:
    parts: list[Part] = [*draw(thoughts), *draw(texts)]
    parts += [ToolCall(f"call-{taken + n}", name, args) for n, (name, args) in enumerate(draw(calls))]
    return Message("assistant", tuple(parts))


def _answered(draw: st.DrawFn, asking: Message) -> list[Message]:
    answers = [ToolResult(call.id, call.name, *draw(results)) for call in asking.tool_calls]
    return [asking, Message("tool", tuple(answers))]


def _speak(draw: st.DrawFn, messages: list[Message]) -> list[Message]:
    """Whoever may go on, with whatever they may say. Ids are new because their number grows."""
    speaker = messages[-1].role if messages else "assistant"
    if speaker == "assistant" or (speaker == "tool" and draw(st.booleans())):
        return [draw(user_messages)]
    if draw(st.booleans()):
        return [_answer(draw)]
    return _answered(draw, _asking(draw, sum(len(message.tool_calls) for message in messages)))


@st.composite
def histories(draw: st.DrawFn) -> list[Message]:
    """Valid conversations: any speaker may be the last, every call is answered."""
    messages: list[Message] = []
    for _ in range(draw(lengths)):
        messages += _speak(draw, messages)
    return messages


@st.composite
def open_histories(draw: st.DrawFn) -> list[Message]:
    """Conversations whose last message leaves its calls open."""
    messages = draw(histories())
    if not messages or messages[-1].role == "assistant":
        messages.append(draw(user_messages))
    return [*messages, _asking(draw, 1000)]


@st.composite
def batches(draw: st.DrawFn, calls: tuple[ToolCall, ...]) -> list[ClosedCall]:
    """What became of some or all of these calls, in any order."""
    chosen = draw(st.permutations(calls))[: draw(lengths)]
    return [replace(draw(entries), call=call) for call in chosen]

"""Random conversations for property tests: valid ones, and everything that can be there when one is stopped."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

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

wild_text = st.one_of(
    st.text(st.characters(codec=None, exclude_categories=[]), max_size=30),
    st.sampled_from(
        ["", " ", "\n\t\u2028", "\ud83d", "\ud83d\ude00", "\x00\x1b[0m", '"]}\n', "word " * 5000, "\u202eevil"]
    ),
)
"""Anything a `str` can hold, surrogates too."""
words = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20).filter(lambda text: bool(text.strip()))
names = st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True)
json_values: st.SearchStrategy[Any] = st.recursive(  # Any: JSON
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=5,
)
seals = st.none() | words
thoughts = st.builds(Reasoning, st.text(st.characters(codec="utf-8"), max_size=10), seals)
user_parts = st.one_of(
    st.builds(Text, words),
    st.builds(Image, data=st.binary(min_size=1, max_size=4)),
    st.builds(File, url=st.just("https://example.com/a.pdf"), name=st.none() | words),
)
user_messages = st.builds(Message, st.just("user"), st.lists(user_parts, min_size=1, max_size=3).map(tuple))
drafts = st.builds(
    Draft, wild_text, st.lists(st.builds(Reasoning, wild_text, st.none() | wild_text), max_size=2).map(tuple)
)


@st.composite
def answers(draw: st.DrawFn) -> Message:
    said = draw(st.lists(st.builds(Text, words, st.booleans()), min_size=1, max_size=2))
    remarks = draw(st.lists(st.builds(Notice, words), max_size=1))
    return Message("assistant", (*draw(st.lists(thoughts, max_size=2)), *said, *remarks))


@st.composite
def asking_messages(draw: st.DrawFn, taken: int) -> Message:
    """An assistant message with one to three calls; ids are new as long as ``taken`` grows."""
    parts: list[Part] = [*draw(st.lists(thoughts, max_size=1)), *draw(st.lists(st.builds(Text, words), max_size=1))]
    for number in range(draw(st.integers(1, 3))):
        arguments = draw(st.dictionaries(words, json_values, max_size=2))
        parts.append(ToolCall(f"call-{taken + number}", draw(names), arguments))
    return Message("assistant", tuple(parts))


@st.composite
def answering_messages(draw: st.DrawFn, calls: tuple[ToolCall, ...]) -> Message:
    states = st.sampled_from(sorted(CLOSED_STATES))
    return Message("tool", tuple(ToolResult(call.id, call.name, draw(words), draw(states)) for call in calls))


@st.composite
def histories(draw: st.DrawFn) -> list[Message]:
    """Valid conversations: any speaker may be the last, every call is answered."""
    messages: list[Message] = []
    for _ in range(draw(st.integers(0, 6))):
        messages += draw(_next(messages))
    return messages


def _next(messages: list[Message]) -> st.SearchStrategy[list[Message]]:
    taken = sum(len(message.tool_calls) for message in messages)
    calls = asking_messages(taken).flatmap(
        lambda asking: answering_messages(asking.tool_calls).map(lambda done: [asking, done])
    )
    replies = answers().map(lambda answer: [answer]) | calls
    inputs = user_messages.map(lambda message: [message])
    match messages[-1].role if messages else "assistant":
        case "user":
            return replies
        case "assistant":
            return inputs
        case "tool":
            return inputs | replies


@st.composite
def open_histories(draw: st.DrawFn) -> list[Message]:
    """Conversations whose last message leaves its calls open."""
    messages = [message for message in draw(histories()) if message.role != "tool" and not message.tool_calls]
    if not messages or messages[-1].role == "assistant":
        messages.append(draw(user_messages))
    return [*_alternating(messages), draw(asking_messages(1000))]


def _alternating(messages: list[Message]) -> list[Message]:
    kept: list[Message] = []
    for message in messages:
        if (message.role == "user") == (len(kept) % 2 == 0):
            kept.append(message)
    return kept if kept[-1].role == "user" else kept[:-1]


@st.composite
def batches(draw: st.DrawFn, calls: tuple[ToolCall, ...]) -> list[ClosedCall]:
    """What became of some or all of these calls, in any order."""
    entries = st.builds(
        ClosedCall,
        call=st.sampled_from(calls),
        state=st.sampled_from(LedgerState),
        content=wild_text,
        error=st.none() | wild_text,
        reason=st.none() | wild_text,
        point=st.none() | wild_text,
        still_running=st.booleans(),
        remote=st.booleans(),
    )
    chosen = draw(st.permutations(calls))[: draw(st.integers(0, len(calls)))]
    return [replace(draw(entries), call=call) for call in chosen]

"""Anthropic's messages: what is sent, what is refused, and what becomes of a stream."""

from __future__ import annotations

import json
from typing import Any

import pytest

from safepoint import File, Image, Message, ModelSettings, Notice, Reasoning, Text, ToolCall, ToolResult
from safepoint.errors import HistoryError, ModelError, ModelMisbehaved
from safepoint.models import CallDelta, Chunk, Finish, ModelRequest, ReasoningDelta, TextDelta, ToolSpec
from safepoint.models.anthropic_wire import MAX_TOKENS, Reader, check_payload, to_messages, to_payload
from tests.models.anthropic_stream import ANSWER, CALLS, THOUGHT, Event, end, event

USER = Message("user", (Text("hi"),))
LOOK = ToolSpec("look", "Look at a place.", {"type": "object", "properties": {}})
THINKING = ModelSettings(extra={"thinking": {"type": "enabled", "budget_tokens": 1024}})


def sealed(kind: str = "thinking", text: str = "hm") -> Reasoning:
    return Reasoning(text, f"anthropic:{kind}:EqQB")


def step(*thoughts: Reasoning) -> list[Message]:
    """A step whose tools have run and which goes on."""
    asked = Message("assistant", (*thoughts, Text("Looking."), ToolCall("a", "look", {}), ToolCall("b.c", "look", {})))
    told = Message("tool", (ToolResult("a", "look", "sunny"), ToolResult("b.c", "look", "no", "failed")))
    return [USER, asked, told]


def read(events: list[Event]) -> tuple[list[Chunk], Finish | None]:
    reader = Reader()
    return [chunk for _, each in events for chunk in reader.read(each)], reader.finish()


def test_a_conversation_is_sent_in_the_words_of_the_service() -> None:
    messages = [
        *step(sealed(), sealed("redacted", ""), Reasoning("foreign", "gemini:text:AAEC"), Reasoning("unsigned")),
        Message("user", (Text("go on"), Image(data=b"\x00", media_type="image/png"))),
        Message("assistant", (Text("It is su", incomplete=True), Notice("[Safepoint: stopped.]"))),
        Message("user", (Text("and now?"),)),
    ]
    sent = to_messages(messages)
    mapped = sent[1]["content"][-1]["id"]
    assert sent == [
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "EqQB"},
                {"type": "redacted_thinking", "data": "EqQB"},
                {"type": "text", "text": "Looking."},
                {"type": "tool_use", "id": "a", "name": "look", "input": {}},
                {"type": "tool_use", "id": mapped, "name": "look", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": "sunny", "is_error": False},
                {"type": "tool_result", "tool_use_id": mapped, "content": "no", "is_error": True},
                {"type": "text", "text": "go on"},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}},
            ],
        },
        {
            "role": "assistant",
            "content": [{"type": "text", "text": "It is su"}, {"type": "text", "text": "[Safepoint: stopped.]"}],
        },
        {"role": "user", "content": [{"type": "text", "text": "and now?"}]},
    ]
    check_payload(to_payload("m", ModelRequest(tuple(messages), tools=(LOOK,))))


def test_every_setting_is_sent() -> None:
    settings = ModelSettings(temperature=0.5, max_tokens=7, tool_choice="look", stop=("x",), extra={"top_k": 3})
    payload = to_payload("m", ModelRequest((USER,), "Be kind.", (LOOK,), settings), cache=False)
    assert payload == {
        "model": "m",
        "max_tokens": 7,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        "stream": True,
        "system": [{"type": "text", "text": "Be kind."}],
        "tools": [{"name": "look", "description": "Look at a place.", "input_schema": LOOK.parameters}],
        "tool_choice": {"type": "tool", "name": "look"},
        "temperature": 0.5,
        "stop_sequences": ["x"],
        "top_k": 3,
    }
    assert to_payload("m", ModelRequest((USER,)))["max_tokens"] == MAX_TOKENS


@pytest.mark.parametrize(("choice", "sent"), [("auto", "auto"), ("none", "none"), ("required", "any")])
def test_a_choice_that_is_no_tool_has_its_word(choice: str, sent: str) -> None:
    request = ModelRequest((USER,), None, (LOOK,), ModelSettings(tool_choice=choice))
    assert to_payload("m", request)["tool_choice"] == {"type": sent}


def test_what_is_sent_again_is_marked_for_the_cache() -> None:
    own: list[dict[str, str]] = [{"type": "text", "text": "mine"}]
    request = ModelRequest((USER,), "Be kind.", (LOOK,))
    payload = to_payload("m", request)
    for blocks in (payload["system"], payload["tools"], payload["messages"][-1]["content"]):
        assert blocks[-1]["cache_control"] == {"type": "ephemeral"}
    settings = ModelSettings(extra={"system": own})
    assert "cache_control" in to_payload("m", ModelRequest((USER,), settings=settings))["system"][-1]
    assert own == [{"type": "text", "text": "mine"}], "the caller's own list was changed"


def test_thinking_is_left_out_of_a_step_that_began_without_it() -> None:
    request = ModelRequest(tuple(step(Reasoning("foreign", "gemini:call0:AAEC"))), None, (LOOK,), THINKING)
    payload = to_payload("m", request)
    assert "thinking" not in payload
    check_payload(payload)
    with pytest.raises(HistoryError, match="while thinking is on"):
        check_payload({**payload, "thinking": {"type": "enabled"}})
    assert "thinking" in to_payload("m", ModelRequest(tuple(step(sealed())), None, (LOOK,), THINKING))
    assert "thinking" in to_payload("m", ModelRequest((USER,), None, (LOOK,), THINKING))


def test_tools_that_are_gone_are_still_defined_because_their_calls_are_there() -> None:
    payload = to_payload("m", ModelRequest(tuple(step())))
    assert [tool["name"] for tool in payload["tools"]] == ["look"]
    check_payload(payload)


def test_files_and_pictures_are_sent_as_what_they_are_or_refused() -> None:
    def source(part: File | Image) -> Any:  # Any: JSON
        return to_messages([Message("user", (part,))])[0]["content"][0]["source"]

    assert source(File(data=b"%PDF", media_type="application/pdf"))["type"] == "base64"
    assert source(File(data=b"a", media_type="text/csv")) == {"type": "text", "media_type": "text/plain", "data": "a"}
    assert source(File(url="https://example.org/a.pdf")) == {"type": "url", "url": "https://example.org/a.pdf"}
    assert source(Image(url="https://example.org/a.png")) == {"type": "url", "url": "https://example.org/a.png"}
    with pytest.raises(ModelError, match="image/png"):
        source(Image(data=b"x", media_type="image/tiff"))
    with pytest.raises(ModelError, match="application/pdf"):
        source(File(data=b"x", media_type="application/zip"))


def text(words: str, role: str = "user") -> dict[str, Any]:  # Any: JSON
    return {"role": role, "content": [{"type": "text", "text": words}]}


ASKED: dict[str, Any] = {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "look", "input": {}}]}
TOLD: dict[str, Any] = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "1"}]}
BROKEN: dict[str, list[dict[str, Any]]] = {
    "no messages": [],
    "the assistant first": [text("x", "assistant"), text("x")],
    "the assistant last": [text("x"), text("x", "assistant")],
    "the user twice": [text("x"), text("x"), text("x")],
    "a blank text": [text(" ")],
    "no blocks": [{"role": "user", "content": []}],
    "a call without its result": [text("x"), ASKED, text("x")],
    "a result of nothing": [text("x"), text("x", "assistant"), TOLD],
    "a result behind a text": [text("x"), ASKED, {"role": "user", "content": text("x")["content"] + TOLD["content"]}],
    "an id twice": [text("x"), ASKED, TOLD, ASKED, TOLD],
    "an id with a dot": [
        text("x"),
        {"role": "assistant", "content": [{"type": "tool_use", "id": "a.b", "name": "look", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a.b", "content": "1"}]},
    ],
    "a blank result": [
        text("x"),
        ASKED,
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": ""}]},
    ],
    "a thought without a signature": [
        text("x"),
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "x", "signature": ""}]},
        text("x"),
    ],
    "a thought behind words": [
        text("x"),
        {
            "role": "assistant",
            "content": [{"type": "text", "text": "x"}, {"type": "thinking", "thinking": "x", "signature": "s"}],
        },
        text("x"),
    ],
}


@pytest.mark.parametrize("kind", BROKEN)
def test_what_the_service_would_refuse_is_refused(kind: str) -> None:
    with pytest.raises(HistoryError):
        check_payload({"messages": BROKEN[kind], "tools": [{"name": "look"}]})


def test_calls_without_tools_and_too_many_marks_are_refused() -> None:
    with pytest.raises(HistoryError, match="tools"):
        check_payload({"messages": [text("x"), ASKED, TOLD]})
    marked = [{"name": "look", "cache_control": "x"}] * 5
    with pytest.raises(HistoryError, match="cache"):
        check_payload({"messages": [text("x")], "tools": marked})


def test_a_stream_of_thoughts_and_words_becomes_chunks() -> None:
    chunks, finish = read(ANSWER)
    assert chunks == [
        ReasoningDelta("The user wants "),
        ReasoningDelta("Łódź."),
        ReasoningDelta("", "anthropic:thinking:EqQBCg=="),
        ReasoningDelta("", "anthropic:redacted:c2VjcmV0"),
        TextDelta("Once upon "),
        TextDelta("a time in Łódź."),
    ]
    assert finish == Finish("end_turn", 95, 42, cached_tokens=80, response_id="msg_1")


def test_a_thought_is_sealed_only_when_its_block_is_whole() -> None:
    chunks, _ = read(THOUGHT[:-1])
    assert all(chunk.signature is None for chunk in chunks if isinstance(chunk, ReasoningDelta))


def test_parallel_calls_in_pieces_become_whole_calls() -> None:
    chunks, finish = read(CALLS)
    pieces = [chunk for chunk in chunks if isinstance(chunk, CallDelta)]
    assert [(piece.id, piece.name) for piece in pieces if piece.id] == [("toolu_a", "look"), ("toolu_b", "look")]
    for index, place in enumerate(("Łódź", "Rome")):
        assert json.loads("".join(each.arguments for each in pieces if each.index == index)) == {"place": place}
    assert finish is not None
    assert finish.reason == "tool_calls"


@pytest.mark.parametrize(
    ("reason", "ours"),
    [
        ("stop_sequence", "end_turn"),
        ("max_tokens", "max_tokens"),
        ("refusal", "refused"),
        ("model_context_window_exceeded", "max_tokens"),
        ("pause_turn", "end_turn"),
    ],
)
def test_each_stop_reason_has_its_word(reason: str, ours: str) -> None:
    _, finish = read(end(reason))
    assert finish is not None
    assert finish.reason == ours


def test_odd_events_are_passed_over_and_nonsense_is_an_error() -> None:
    odd = [
        event("content_block_start", content_block=3),
        event("content_block_delta"),
        event("message_delta", usage=7),
        event("new_kind_of_event"),
        event("content_block_delta", delta={"type": "input_json_delta", "partial_json": "{}"}),
    ]
    assert read(odd) == ([], None)
    with pytest.raises(ModelMisbehaved):
        Reader().read("x")

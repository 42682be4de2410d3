"""Gemini's contents: what is sent, what is refused, and what becomes of a stream."""

from __future__ import annotations

import re
from itertools import product
from typing import Any

import pytest

from safepoint import File, Image, Message, ModelSettings, Notice, Reasoning, Text, ToolCall, ToolResult
from safepoint.errors import HistoryError, ModelMisbehaved
from safepoint.models import CallDelta, Chunk, Finish, ModelRequest, ReasoningDelta, TextDelta, ToolSpec
from safepoint.models.extras import sdk
from safepoint.models.gemini_wire import SKIP_CHECK, Reader, check_payload, to_contents, to_payload, wire_name
from tests.models.gemini_stream import ANSWER, CALLS, Event, response

types: Any = sdk("google.genai.types", "gemini")  # Any: loaded as the model loads it
USER = Message("user", (Text("hi"),))
LOOK = ToolSpec("look", "Look at a place.", {"type": "object", "properties": {}})


def step(*thoughts: Reasoning) -> list[Message]:
    asked = Message(
        "assistant", (*thoughts, Text("Looking."), ToolCall("a", "look", {"x": 1}), ToolCall("b", "1x", {}))
    )
    return [USER, asked, Message("tool", (ToolResult("a", "look", "sunny"), ToolResult("b", "1x", "no", "failed")))]


def as_dumped(event: Event) -> object:
    """The event as the SDK's object says it in JSON."""
    return types.GenerateContentResponse.model_validate(event).model_dump(mode="json", exclude_none=True)


def read(events: list[Event], *names: str) -> tuple[list[Chunk], Finish | None]:
    reader = Reader(names)
    return [chunk for each in events for chunk in reader.read(as_dumped(each))], reader.finish()


def test_a_conversation_is_sent_in_the_words_of_the_service() -> None:
    messages = [
        *step(
            Reasoning("hm", "gemini:call0:AAEC"), Reasoning("foreign", "anthropic:thinking:x"), Reasoning("unsigned")
        ),
        Message("user", (Text("go on"), Image(data=b"\x00", media_type="image/png"))),
        Message("assistant", (Reasoning("", "gemini:text:AwQF"), Text("Su"), Notice("[Safepoint: stopped.]"))),
        Message("user", (File(url="https://example.org/a.pdf", media_type="application/pdf"),)),
    ]
    assert to_contents(messages, strict=True) == [
        {"role": "user", "parts": [{"text": "hi"}]},
        {
            "role": "model",
            "parts": [
                {"text": "Looking."},
                {"function_call": {"id": "a", "name": "look", "args": {"x": 1}}, "thought_signature": b"\x00\x01\x02"},
                {"function_call": {"id": "b", "name": "_1x", "args": {}}},
            ],
        },
        {
            "role": "user",
            "parts": [
                {"function_response": {"id": "a", "name": "look", "response": {"output": "sunny"}}},
                {"function_response": {"id": "b", "name": "_1x", "response": {"error": "no"}}},
                {"text": "go on"},
                {"inline_data": {"data": b"\x00", "mime_type": "image/png"}},
            ],
        },
        {
            "role": "model",
            "parts": [{"text": "Su", "thought_signature": b"\x03\x04\x05"}, {"text": "[Safepoint: stopped.]"}],
        },
        {
            "role": "user",
            "parts": [{"file_data": {"file_uri": "https://example.org/a.pdf", "mime_type": "application/pdf"}}],
        },
    ]
    payload = to_payload("gemini-3-pro", ModelRequest(tuple(messages)))
    check_payload(payload)
    assert [types.Content.model_validate(content) for content in payload["contents"]]


def test_every_setting_is_sent() -> None:
    settings = ModelSettings(
        temperature=0.5,
        max_tokens=7,
        tool_choice="look",
        stop=("x",),
        extra={"thinking_config": {"thinking_budget": 9}},
    )
    config = to_payload("m", ModelRequest((USER,), "Be kind.", (LOOK,), settings))["config"]
    declaration = {"name": "look", "description": "Look at a place.", "parameters_json_schema": LOOK.parameters}
    assert config == {
        "automatic_function_calling": {"disable": True},
        "system_instruction": "Be kind.",
        "tools": [{"function_declarations": [declaration]}],
        "tool_config": {"function_calling_config": {"mode": "ANY", "allowed_function_names": ["look"]}},
        "temperature": 0.5,
        "max_output_tokens": 7,
        "stop_sequences": ["x"],
        "thinking_config": {"thinking_budget": 9},
    }
    assert types.GenerateContentConfig.model_validate(config)


@pytest.mark.parametrize(("choice", "mode"), [("auto", "AUTO"), ("none", "NONE"), ("required", "ANY")])
def test_a_choice_that_is_no_tool_has_its_word(choice: str, mode: str) -> None:
    request = ModelRequest((USER,), None, (LOOK,), ModelSettings(tool_choice=choice))
    assert to_payload("m", request)["config"]["tool_config"]["function_calling_config"] == {"mode": mode}


def test_a_call_that_another_model_made_skips_the_check_where_there_is_one() -> None:
    request = ModelRequest(tuple(step(Reasoning("foreign", "anthropic:thinking:x"))))
    strict, lax = to_payload("gemini-3-pro", request), to_payload("gemini-2.5-flash", request)
    assert strict["contents"][1]["parts"][1]["thought_signature"] == SKIP_CHECK
    assert "thought_signature" not in lax["contents"][1]["parts"][1]
    check_payload(strict)
    check_payload(lax)
    with pytest.raises(HistoryError, match="no signature"):
        check_payload({**lax, "model": "gemini-3-pro"})


def text(words: str, role: str = "user") -> dict[str, Any]:  # Any: JSON
    return {"role": role, "parts": [{"text": words}]}


def called(name: str = "look", **more: object) -> dict[str, Any]:
    return {"role": "model", "parts": [{"function_call": {"id": "a", "name": name, "args": {}}, **more}]}


def told(name: str = "look", result: object = None) -> dict[str, Any]:
    return {"role": "user", "parts": [{"function_response": {"id": "a", "name": name, "response": result or {}}}]}


BROKEN: dict[str, list[dict[str, Any]]] = {
    "no contents": [],
    "the model first": [text("x", "model"), text("x")],
    "the model last": [text("x"), text("x", "model")],
    "the user twice": [text("x"), text("x"), text("x")],
    "a blank text": [text(" ")],
    "no parts": [{"role": "user", "parts": []}],
    "a part of two kinds": [{"role": "user", "parts": [{"text": "x", "inline_data": {}}]}],
    "a call without its response": [text("x"), called(), text("x")],
    "a response to nothing": [text("x"), text("x", "model"), told()],
    "two responses": [text("x"), called(), {"role": "user", "parts": told()["parts"] * 2}],
    "another name": [text("x"), called(), told("listen")],
    "a response behind a text": [text("x"), called(), {"role": "user", "parts": [{"text": "x"}, *told()["parts"]]}],
    "a name that begins with a digit": [text("x"), called("1x"), told("1x")],
    "a response that is no object": [text("x"), called(), told(result="x")],
}


@pytest.mark.parametrize("kind", BROKEN)
def test_what_the_service_would_refuse_is_refused(kind: str) -> None:
    with pytest.raises(HistoryError):
        check_payload({"model": "m", "contents": BROKEN[kind]})


def test_a_stream_of_thoughts_and_words_becomes_chunks() -> None:
    chunks, finish = read(ANSWER)
    assert chunks == [
        ReasoningDelta("The user wants Łódź."),
        TextDelta("Once upon "),
        TextDelta("a time in Łódź."),
        ReasoningDelta("", "gemini:text:AAEC"),
    ]
    assert finish == Finish("end_turn", 100, 50, cached_tokens=64, reasoning_tokens=30)


def test_parallel_calls_are_told_with_their_signature() -> None:
    chunks, finish = read(CALLS)
    assert chunks == [
        TextDelta("Looking."),
        CallDelta(0, "fc_1", "look", '{"place": "\\u0141\\u00f3d\\u017a"}'),
        ReasoningDelta("", "gemini:call0:AAEC"),
        CallDelta(1, "fc_2", "look", '{"place": "Rome"}'),
    ]
    assert finish is not None
    assert finish.reason == "tool_calls"


def test_a_name_that_was_mapped_is_mapped_back() -> None:
    chunks, _ = read([response({"functionCall": {"name": "_1x", "args": {}}})], "1x")
    assert chunks == [CallDelta(0, None, "1x", "{}")]


@pytest.mark.parametrize(("reason", "ours"), [("MAX_TOKENS", "max_tokens"), ("SAFETY", "refused"), ("SPII", "refused")])
def test_each_stop_reason_has_its_word(reason: str, ours: str) -> None:
    _, finish = read([response({"text": "x"}, finish=reason)])
    assert finish is not None
    assert finish.reason == ours


def test_a_prompt_that_is_blocked_is_a_refusal() -> None:
    assert read([{"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}}]) == ([], Finish("refused"))


@pytest.mark.parametrize("reason", ["MALFORMED_FUNCTION_CALL", "OTHER"])
def test_an_answer_that_was_broken_off_is_an_error(reason: str) -> None:
    with pytest.raises(ModelMisbehaved, match=reason):
        read([response({"text": "x"}, finish=reason)])


def test_odd_events_are_passed_over_and_nonsense_is_an_error() -> None:
    reader = Reader()
    odd: list[object] = [{}, {"candidates": [3]}, {"candidates": [{"content": {"parts": [None, {"text": 3}]}}]}]
    assert [reader.read(event) for event in odd] == [[], [], []]
    assert reader.finish() is None
    with pytest.raises(ModelMisbehaved):
        reader.read("x")


def test_no_two_tools_have_one_name_on_the_wire() -> None:
    short = ["".join(letters) for length in range(1, 6) for letters in product("_1-a", repeat=length)]
    long = [f"{start}{'x' * (64 - len(start) - 1)}{end}" for start in ("1", "_1", "__1", "-", "a") for end in "yz"]
    names = [*short, *long, *(name[:63] for name in long)]
    wired = {name: wire_name(name) for name in dict.fromkeys(names)}
    assert len(set(wired.values())) == len(wired)
    assert all(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.:-]{0,63}", name) for name in wired.values())
    assert (wired["a1"], wired["_a1"], wired["1a"], wired["_1a"]) == ("a1", "_a1", "_1a", "__1a")


@pytest.mark.parametrize("name", ["1a", "_1a"])
def test_each_of_two_names_that_look_alike_comes_back_as_itself(name: str) -> None:
    chunks, _ = read([response({"functionCall": {"name": wire_name(name), "args": {}}})], "1a", "_1a")
    assert chunks == [CallDelta(0, None, name, "{}")]

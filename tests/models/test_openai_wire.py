"""OpenAI's chat completions: what is sent, what is refused, and what becomes of a stream."""

from __future__ import annotations

import json
from typing import Any

import pytest

from safepoint import File, Image, Message, ModelSettings, Notice, Reasoning, Text, ToolCall, ToolResult
from safepoint.errors import HistoryError, ModelError, ModelMisbehaved
from safepoint.models import CallDelta, Chunk, Finish, ModelRequest, ReasoningDelta, TextDelta, ToolSpec
from safepoint.models.openai_wire import Reader, check_payload, to_messages, to_payload
from safepoint.models.providers import PLAIN
from tests.models.openai_stream import ANSWER, CALLS, DONE, USAGE, completion, piece

USER = Message("user", (Text("hi"),))
LOOK = ToolSpec("look", "Look at a place.", {"type": "object", "properties": {}})


def call(id: str) -> ToolCall:
    return ToolCall(id, "look", {"place": "Łódź"})


def read(events: list[object]) -> tuple[list[Chunk], Finish | None]:
    reader = Reader()
    return [chunk for event in events if event != DONE for chunk in reader.read(event)], reader.finish()


def test_a_conversation_is_sent_in_the_words_of_the_service() -> None:
    messages = [
        USER,
        Message("assistant", (Reasoning("hm", "seal"), Text("Looking."), call("a"), call("b"))),
        Message("tool", (ToolResult("a", "look", "sunny"), ToolResult("b", "look", "no such place", "failed"))),
        Message("assistant", (Text("It is su", incomplete=True), Notice("[Safepoint: stopped.]"))),
        Message("user", (Text("and now?"), Image(data=b"\x00", media_type="image/png"))),
    ]
    sent = to_messages(messages, "Be kind.")
    assert sent == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": "Looking.",
            "tool_calls": [
                {"id": id, "type": "function", "function": {"name": "look", "arguments": '{"place": "Łódź"}'}}
                for id in ("a", "b")
            ],
        },
        {"role": "tool", "tool_call_id": "a", "content": "sunny"},
        {"role": "tool", "tool_call_id": "b", "content": "no such place"},
        {"role": "assistant", "content": "It is su\n\n[Safepoint: stopped.]"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "and now?"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
            ],
        },
    ]
    check_payload({"messages": sent})


def test_every_setting_is_sent() -> None:
    settings = ModelSettings(temperature=0.5, max_tokens=7, tool_choice="look", stop=("x",), extra={"seed": 3})
    payload = to_payload("m", ModelRequest((USER,), None, (LOOK,), settings))
    assert payload["temperature"] == 0.5
    assert payload["max_completion_tokens"] == 7
    assert payload["tool_choice"] == {"type": "function", "function": {"name": "look"}}
    assert payload["stop"] == ["x"]
    assert payload["seed"] == 3
    assert payload["tools"][0]["function"]["name"] == "look"
    assert payload["stream"] is True
    assert to_payload("m", ModelRequest((USER,), None, (LOOK,), settings), quirks=PLAIN)["max_tokens"] == 7


@pytest.mark.parametrize("choice", ["auto", "none", "required"])
def test_a_choice_that_is_no_tool_is_sent_as_it_is(choice: str) -> None:
    request = ModelRequest((USER,), None, (LOOK,), ModelSettings(tool_choice=choice))
    assert to_payload("m", request)["tool_choice"] == choice


def test_a_file_is_sent_as_text_or_as_bytes_and_refused_by_address() -> None:
    def content(file: File) -> Any:  # Any: JSON
        return to_messages([Message("user", (file,))])[0]["content"]

    text = File(data=b"a,b", media_type="text/csv", name="t.csv")
    assert content(text) == [{"type": "text", "text": "t.csv:\na,b"}]
    pdf = File(data=b"%PDF", media_type="application/pdf", name="a.pdf")
    assert content(pdf) == [
        {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERg=="}}
    ]
    with pytest.raises(ModelError, match=r"File\(data=…\)"):
        content(File(url="https://example.org/a.pdf"))


def test_ids_of_other_providers_are_mapped_alike_in_call_and_result() -> None:
    long = "toolu_" + "x" * 60
    messages = [USER, Message("assistant", (call(long), call("ok"))), Message("tool", (ToolResult(long, "look", "1"),))]
    sent = to_messages(messages)
    ids = [each["id"] for each in sent[1]["tool_calls"]]
    assert len(ids[0]) <= 40
    assert ids[1] == "ok"
    assert sent[2]["tool_call_id"] == ids[0]


ASKED: dict[str, Any] = {  # Any: JSON
    "role": "assistant",
    "tool_calls": [{"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}}],
}
TOLD: dict[str, Any] = {"role": "tool", "tool_call_id": "a", "content": "1"}
HI: dict[str, Any] = {"role": "user", "content": "hi"}
BROKEN: dict[str, list[dict[str, Any]]] = {
    "no messages": [],
    "a result of nothing": [HI, TOLD],
    "a call without its result": [HI, ASKED],
    "somebody speaks before the result": [HI, ASKED, HI, TOLD],
    "two results": [HI, ASKED, TOLD, TOLD],
    "an empty text": [{"role": "user", "content": " "}],
    "an empty part": [{"role": "user", "content": [{"type": "text", "text": ""}]}],
    "an empty list": [{"role": "user", "content": []}],
    "an assistant without a word": [HI, {"role": "assistant"}],
    "an empty list of calls": [HI, {"role": "assistant", "content": "x", "tool_calls": []}],
    "a long id": [HI, {**ASKED, "tool_calls": [{**ASKED["tool_calls"][0], "id": "x" * 41}]}],
    "two calls with one id": [HI, {**ASKED, "tool_calls": ASKED["tool_calls"] * 2}, TOLD, TOLD],
    "a name with a dot": [
        HI,
        {**ASKED, "tool_calls": [{"id": "a", "function": {"name": "a.b", "arguments": "{}"}}]},
        TOLD,
    ],
    "arguments that are no object": [
        HI,
        {**ASKED, "tool_calls": [{"id": "a", "function": {"name": "b", "arguments": "[]"}}]},
        TOLD,
    ],
    "an unknown role": [{"role": "narrator", "content": "x"}],
}


@pytest.mark.parametrize("kind", BROKEN)
def test_what_the_service_would_refuse_is_refused(kind: str) -> None:
    with pytest.raises(HistoryError):
        check_payload({"messages": BROKEN[kind]})


def test_a_stream_of_words_becomes_chunks() -> None:
    chunks, finish = read(ANSWER)
    sealed = ReasoningDelta("", "chat:reasoning_content:api.openai.com")
    assert chunks == [ReasoningDelta("Hm. "), sealed, TextDelta("Once upon "), TextDelta("a time in Łódź.")]
    assert finish == Finish("end_turn", 100, 20, 64, 5, "chatcmpl-1", "m")


def test_parallel_calls_in_pieces_become_whole_calls() -> None:
    chunks, finish = read(CALLS)
    pieces = [chunk for chunk in chunks if isinstance(chunk, CallDelta)]
    assert [(piece.id, piece.name) for piece in pieces if piece.id] == [("call_a", "look"), ("call_b", "look")]
    for index, place in enumerate(("Łódź", "Rome")):
        assert json.loads("".join(each.arguments for each in pieces if each.index == index)) == {"place": place}
    assert finish is not None
    assert finish.reason == "tool_calls"


def test_calls_without_an_index_or_all_with_the_same_are_told_apart_by_their_ids() -> None:
    for index in ({}, {"index": 0}):
        calls = [{**index, "id": id, "function": {"name": "look", "arguments": id}} for id in ("a", "b", "c")]
        chunks, _ = read([completion({"tool_calls": [call]}) for call in calls])
        assert [chunk.index for chunk in chunks if isinstance(chunk, CallDelta)] == [0, 1, 2]


@pytest.mark.parametrize("index", [{}, {"index": 0}, {"index": 2**62}, {"index": -1}])
def test_pieces_of_calls_that_share_an_index_go_to_the_call_that_was_begun_last(index: dict[str, int]) -> None:
    pieces = [("a", '{"place": '), ("", '"Rome"}'), ("b", '{"place": '), ("", '"Oslo"}')]
    calls = [{**index, "id": id, "function": {"name": "look", "arguments": words}} for id, words in pieces]
    chunks, _ = read([completion({"tool_calls": [call]}) for call in calls])
    whole: dict[int, str] = {}
    for chunk in chunks:
        assert isinstance(chunk, CallDelta)
        whole[chunk.index] = whole.get(chunk.index, "") + chunk.arguments
    assert whole == {0: '{"place": "Rome"}', 1: '{"place": "Oslo"}'}


def test_arguments_that_come_as_an_object_are_not_lost() -> None:
    call = {"index": 0, "id": "a", "function": {"name": "look", "arguments": {"place": "Rome"}}}
    (chunk,), _ = read([completion({"tool_calls": [call]})])
    assert isinstance(chunk, CallDelta)
    assert json.loads(chunk.arguments) == {"place": "Rome"}


def test_calls_that_share_an_id_are_told_apart_by_their_index() -> None:
    chunks, _ = read([piece(0, "{", "a", "look"), piece(1, "{", "a", "look"), piece(0, "}"), piece(1, "}", "a")])
    assert [chunk.index for chunk in chunks if isinstance(chunk, CallDelta)] == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("reason", "ours"),
    [("stop", "end_turn"), ("length", "max_tokens"), ("content_filter", "refused"), ("eos", "end_turn")],
)
def test_each_stop_reason_has_its_word(reason: str, ours: str) -> None:
    _, finish = read([completion({"content": "x"}, reason)])
    assert finish == Finish(ours, response_id="chatcmpl-1", response_model="m")  # type: ignore[arg-type]  # the words of the table


def test_a_refusal_is_told_in_its_words() -> None:
    chunks, finish = read([completion({"refusal": "I can't."}), completion({}, "stop")])
    assert chunks == [TextDelta("I can't.")]
    assert finish is not None
    assert finish.reason == "refused"


def test_a_reply_is_not_complete_before_its_provider_says_so() -> None:
    assert read(ANSWER[:4])[1] is None
    assert read([USAGE])[1] is None


@pytest.mark.parametrize("event", [None, 3, "x", []])
def test_an_event_that_is_none_is_nonsense(event: object) -> None:
    with pytest.raises(ModelMisbehaved):
        Reader().read(event)


ODD: list[object] = [
    {},
    {"choices": None},
    {"choices": [3]},
    {"choices": [{"delta": "x", "finish_reason": 7}]},
    {"choices": [{"delta": {"content": 3, "tool_calls": [None, {"function": []}]}}]},
    {"usage": "much", "choices": {}},
]


@pytest.mark.parametrize("event", ODD)
def test_fields_of_the_wrong_type_count_as_missing(event: object) -> None:
    reader = Reader()
    chunks = reader.read(event)
    assert all(isinstance(chunk, CallDelta) for chunk in chunks)
    assert reader.finish() is None

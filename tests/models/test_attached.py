"""Pictures and files of tool results, as each provider takes them: in the result, or after all results of the batch."""

from __future__ import annotations

from typing import Any

from safepoint import File, Image, Message, Text, ToolCall, ToolResult
from safepoint.models import ModelRequest, ToolSpec, anthropic_wire, gemini_wire, local_wire, openai_wire

PNG = Image(data=b"\x00", media_type="image/png")
TIFF = Image(data=b"\x00", media_type="image/tiff")
ELSEWHERE = File(url="https://x.org/a.pdf", media_type="application/pdf")
NOTE = File(data=b"hello", media_type="text/plain", name="note.txt")
TOOLS = (ToolSpec("look", "Look.", {"type": "object"}),)
ASKED = (
    Message("user", (Text("hi"),)),
    Message("assistant", (ToolCall("a", "look", {}), ToolCall("b", "look", {}))),
    Message("tool", (ToolResult("a", "look", "[image 1]", parts=(PNG,)), ToolResult("b", "look", "words"))),
)
ON = Message("user", (Text("and now?"),))
SAID = Message("assistant", (Text("A cat."),))
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
WHOSE = {"type": "text", "text": "From the tool look, whose result names them:"}


def request(*messages: Message) -> ModelRequest:
    return ModelRequest((*ASKED, *messages), tools=TOOLS)


def with_parts(*parts: Image | File) -> ModelRequest:
    asked = Message("assistant", (ToolCall("a", "look", {}),))
    told = Message("tool", (ToolResult("a", "look", "see", parts=parts),))
    return ModelRequest((ASKED[0], asked, told), tools=TOOLS)


def openai(sent: ModelRequest) -> list[dict[str, Any]]:
    payload = openai_wire.to_payload("m", sent)
    openai_wire.check_payload(payload)
    return [message for message in payload["messages"] if message["role"] != "assistant"]


def test_openai_gets_them_in_a_user_message_after_all_results() -> None:
    told = (("a", "[image 1]"), ("b", "words"))
    results = [{"role": "tool", "tool_call_id": id, "content": content} for id, content in told]
    shown = {"role": "user", "content": [WHOSE, PICTURE]}
    assert openai(request())[1:] == [*results, shown]
    assert openai(request(SAID, ON))[1:] == [*results, shown, {"role": "user", "content": "and now?"}]


def test_openai_gets_them_ahead_of_the_words_of_a_user_who_speaks_next() -> None:
    assert openai(request(ON))[-1] == {
        "role": "user",
        "content": [WHOSE, PICTURE, {"type": "text", "text": "and now?"}],
    }


def test_anthropic_and_bedrock_get_them_in_the_result() -> None:
    payload = anthropic_wire.to_payload("m", request(), cache=False)
    anthropic_wire.check_payload(payload)
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
    assert payload["messages"][-1]["content"] == [
        {
            "type": "tool_result",
            "tool_use_id": "a",
            "content": [{"type": "text", "text": "[image 1]"}, picture],
            "is_error": False,
        },
        {"type": "tool_result", "tool_use_id": "b", "content": "words", "is_error": False},
    ]
    assert (
        anthropic_wire.to_payload("m", with_parts(NOTE))["messages"][-1]["content"][0]["content"][1]["type"]
        == "document"
    )


def test_gemini_gets_them_after_all_responses() -> None:
    for model in ("gemini-2.5-flash", "gemini-3-pro"):
        payload = gemini_wire.to_payload(model, request(ON))
        gemini_wire.check_payload(payload)
        last = payload["contents"][-1]["parts"]
        assert [next(iter(part)) for part in last] == ["function_response"] * 2 + ["text", "inline_data", "text"]
        assert last[3] == {"inline_data": {"data": b"\x00", "mime_type": "image/png"}}


def test_a_small_local_model_reads_text_files_and_hears_of_the_rest() -> None:
    sent = local_wire.to_payload(with_parts(NOTE, PNG))["messages"][-1]["content"]
    assert sent == (
        "The tool look says: see\nnote.txt:\nhello\n[image not shown: this model reads text only]\nNow answer me."
    )


def test_a_kind_that_a_provider_does_not_take_is_said_and_does_not_fail_the_run() -> None:
    shown = anthropic_wire.to_payload("m", with_parts(TIFF))["messages"][-1]["content"][0]["content"][1]
    assert shown["text"].startswith("[image not shown: Anthropic takes no picture of type image/tiff")
    assert openai(with_parts(ELSEWHERE))[-1]["content"][1]["text"].startswith("[file not shown: chat completions take")

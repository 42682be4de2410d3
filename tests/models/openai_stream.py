"""What OpenAI's servers send: streams of chat completions, written by the book."""

from __future__ import annotations

from typing import Any


def completion(delta: dict[str, Any], reason: str | None = None, **more: object) -> dict[str, Any]:  # Any: JSON
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "m", "choices": [choice], **more}


def piece(index: int, arguments: str = "", id: str | None = None, name: str | None = None) -> dict[str, Any]:
    function: dict[str, Any] = {"arguments": arguments} | ({"name": name} if name else {})
    call: dict[str, Any] = {"index": index, "function": function}
    return completion({"tool_calls": [call | ({"id": id, "type": "function"} if id else {})]})


USAGE: dict[str, Any] = {
    "choices": [],
    "usage": {
        "prompt_tokens": 100,
        "completion_tokens": 20,
        "prompt_tokens_details": {"cached_tokens": 64},
        "completion_tokens_details": {"reasoning_tokens": 5},
    },
}
DONE = "[DONE]"

ANSWER: list[object] = [
    completion({"role": "assistant", "content": ""}),
    completion({"reasoning_content": "Hm. "}),
    completion({"content": "Once upon "}),
    completion({"content": "a time in Łódź."}),
    completion({}, "stop"),
    USAGE,
    DONE,
]
CALLS: list[object] = [
    completion({"role": "assistant", "content": None}),
    completion({"content": "Looking."}),
    piece(0, id="call_a", name="look"),
    piece(0, '{"pla'),
    piece(0, 'ce": "Łódź"}'),
    piece(1, '{"place": ', id="call_b", name="look"),
    piece(1, '"Rome"}'),
    completion({}, "tool_calls"),
    USAGE,
    DONE,
]

"""What Google's servers send: streams of Gemini's answers, written by the book."""

from __future__ import annotations

from typing import Any

Event = dict[str, Any]  # Any: JSON

USAGE: Event = {
    "promptTokenCount": 100,
    "candidatesTokenCount": 20,
    "thoughtsTokenCount": 30,
    "cachedContentTokenCount": 64,
    "totalTokenCount": 150,
}


def response(*parts: Event, finish: str | None = None, **more: object) -> Event:
    candidate: Event = {"index": 0, "content": {"role": "model", "parts": list(parts)}}
    return {"candidates": [candidate | ({"finishReason": finish} if finish else {})], **more}


def call(place: str, id: str, **more: object) -> Event:
    return {"functionCall": {"id": id, "name": "look", "args": {"place": place}}, **more}


ANSWER: list[Event] = [
    response({"text": "The user wants Łódź.", "thought": True}),
    response({"text": "Once upon "}),
    response({"text": "a time in Łódź."}),
    response({"text": "", "thoughtSignature": "AAEC"}, finish="STOP", usageMetadata=USAGE),
]
CALLS: list[Event] = [
    response({"text": "Looking."}),
    response(call("Łódź", "fc_1", thoughtSignature="AAEC"), call("Rome", "fc_2")),
    response({"text": ""}, finish="STOP", usageMetadata=USAGE),
]

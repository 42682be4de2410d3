"""What Anthropic's servers send: streams of messages, written by the book; and the same in Bedrock's frames."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any
from zlib import crc32

Event = tuple[str, dict[str, Any]]  # Any: JSON


def event(kind: str, **fields: object) -> Event:
    return kind, {"type": kind, **fields}


def start(index: int, **block: object) -> Event:
    return event("content_block_start", index=index, content_block=block)


def delta(index: int, kind: str, **fields: object) -> Event:
    return event("content_block_delta", index=index, delta={"type": kind, **fields})


def stop(index: int) -> Event:
    return event("content_block_stop", index=index)


BEGIN = event(
    "message_start",
    message={
        "id": "msg_1",
        "role": "assistant",
        "content": [],
        "usage": {
            "input_tokens": 10,
            "cache_read_input_tokens": 80,
            "cache_creation_input_tokens": 5,
            "output_tokens": 1,
        },
    },
)
THOUGHT = [
    start(0, type="thinking", thinking="", signature=""),
    delta(0, "thinking_delta", thinking="The user wants "),
    delta(0, "thinking_delta", thinking="Łódź."),
    delta(0, "signature_delta", signature="EqQBCg=="),
    stop(0),
]


def end(reason: str) -> list[Event]:
    return [
        event("message_delta", delta={"stop_reason": reason, "stop_sequence": None}, usage={"output_tokens": 42}),
        event("message_stop"),
    ]


ANSWER: list[Event] = [
    BEGIN,
    event("ping"),
    *THOUGHT,
    start(1, type="redacted_thinking", data="c2VjcmV0"),
    stop(1),
    start(2, type="text", text=""),
    delta(2, "text_delta", text="Once upon "),
    delta(2, "text_delta", text="a time in Łódź."),
    stop(2),
    *end("end_turn"),
]
CALLS: list[Event] = [
    BEGIN,
    *THOUGHT,
    start(1, type="text", text=""),
    delta(1, "text_delta", text="Looking."),
    stop(1),
    start(2, type="tool_use", id="toolu_a", name="look", input={}),
    delta(2, "input_json_delta", partial_json=""),
    delta(2, "input_json_delta", partial_json='{"place": "Łó'),
    delta(2, "input_json_delta", partial_json='dź"}'),
    stop(2),
    start(3, type="tool_use", id="toolu_b", name="look", input={}),
    delta(3, "input_json_delta", partial_json='{"place": "Rome"}'),
    stop(3),
    *end("tool_use"),
]


def bedrock_stream(events: list[Event]) -> bytes:
    """The same events as Bedrock sends them: binary frames, each with its checksums."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/vnd.amazon.eventstream\r\nconnection: close\r\n\r\n"
    return head + b"".join(_bedrock_frame(body) for _, body in events)


def _bedrock_frame(body: object) -> bytes:
    payload = json.dumps({"bytes": base64.b64encode(json.dumps(body).encode()).decode()}).encode()
    headers = b"".join(
        bytes([len(name)]) + name + b"\x07" + struct.pack(">H", len(value)) + value
        for name, value in (
            (b":event-type", b"chunk"),
            (b":content-type", b"application/json"),
            (b":message-type", b"event"),
        )
    )
    prelude = struct.pack(">II", 12 + len(headers) + len(payload) + 4, len(headers))
    message = prelude + struct.pack(">I", crc32(prelude)) + headers + payload
    return message + struct.pack(">I", crc32(message))

"""A compatible server with DeepSeek's rule: what it thought in a turn with calls comes back, or the request is refused.

The rule as published: between two user messages with tool calls, each assistant message carries `reasoning_content`, in
all later requests. What it thought itself must come back as it was; an empty str will do where it thought nothing.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

from tests.models.openai_stream import DONE, USAGE, completion, piece
from tests.models.raw_server import RawServer, answer, raw_server, stream

REFUSED = "The `reasoning_content` in the thinking mode must be passed back to the API."
Reply = list[object]


def thinks_and_calls(thought: str, id: str, place: str) -> Reply:
    thinking: list[object] = [completion({"role": "assistant", "content": None, "reasoning_content": ""})]
    thinking += [completion({"content": None, "reasoning_content": word}) for word in thought.split(" ") if word]
    call = piece(0, json.dumps({"place": place}), id=id, name="look")
    return [*thinking, call, completion({}, "tool_calls"), USAGE, DONE]


def thinks_and_says(thought: str, words: str) -> Reply:
    thinking: list[object] = [completion({"reasoning_content": word}) for word in thought.split(" ") if word]
    return [*thinking, completion({"content": words}), completion({}, "stop"), USAGE, DONE]


def fault(request: dict[str, Any], thoughts: dict[str, str]) -> str | None:  # Any: JSON
    """What the server would refuse in this request, which has thought those thoughts for those calls."""
    for turn in _turns(request["messages"]):
        if not any("tool_calls" in message for message in turn):
            continue
        for message in turn:
            back = message.get("reasoning_content")
            if not isinstance(back, str) or message.get("content") is None:
                return REFUSED
            if any(back != thoughts.get(call["id"], back) for call in message.get("tool_calls", [])):
                return "The `reasoning_content` is not what the model thought."
    return None


def _turns(messages: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:  # Any: as above
    turns: list[list[dict[str, Any]]] = [[]]
    for message in messages:
        if message["role"] == "user":
            turns.append([])
        elif message["role"] == "assistant":
            turns[-1].append(message)
    return turns


@asynccontextmanager
async def thinking_server(*replies: Reply, silent_after: int | None = None) -> AsyncGenerator[RawServer]:
    """Plays the replies to requests that it accepts. Of the second one, `silent_after` so many events, silence."""
    left, thoughts = list(replies), dict[str, str]()

    async def act(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if told := fault(server.requests[-1], thoughts):
            writer.write(answer(400, {"error": {"message": told, "type": "invalid_request_error"}}))
            return
        reply = left.pop(0)
        if silent_after is not None and len(replies) - len(left) == 2:
            writer.write(stream(reply[:silent_after], chunked=True).removesuffix(b"0\r\n\r\n"))
            await reader.read()
            return
        _remember(reply, thoughts)
        writer.write(stream(reply, chunked=True))
        await writer.drain()

    async with raw_server(act) as server:
        yield server


def _remember(reply: Reply, thoughts: dict[str, str]) -> None:
    events = [cast("dict[str, Any]", event) for event in reply if isinstance(event, dict)]  # Any: JSON
    deltas: list[dict[str, Any]] = [event["choices"][0]["delta"] for event in events if event["choices"]]
    thought = "".join(delta.get("reasoning_content") or "" for delta in deltas)
    thoughts.update({call["id"]: thought for delta in deltas for call in delta.get("tool_calls", []) if "id" in call})

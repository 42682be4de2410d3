"""What OpenAI's Responses API sends, written by the book: https://platform.openai.com/docs/api-reference."""

from __future__ import annotations

from typing import Any

USAGE: dict[str, Any] = {  # Any: JSON
    "input_tokens": 100,
    "output_tokens": 20,
    "input_tokens_details": {"cached_tokens": 64},
    "output_tokens_details": {"reasoning_tokens": 5},
}


def numbered(*events: dict[str, Any]) -> list[object]:
    """The events with their numbers, as (name, body) pairs."""
    return [(event["type"], event | {"sequence_number": number}) for number, event in enumerate(events)]


def event(kind: str, **more: object) -> dict[str, Any]:
    return {"type": f"response.{kind}", **more}


def state(kind: str, status: str, **more: object) -> dict[str, Any]:
    return event(kind, response={"id": "resp_1", "object": "response", "model": "m", "status": status, **more})


def added(index: int, **item: object) -> dict[str, Any]:
    return event("output_item.added", output_index=index, item=item)


def done(index: int, **item: object) -> dict[str, Any]:
    return event("output_item.done", output_index=index, item=item)


def words(index: int, *pieces: str) -> list[dict[str, Any]]:
    deltas = [event("output_text.delta", output_index=index, content_index=0, delta=piece) for piece in pieces]
    message = {"type": "message", "id": f"msg_{index}", "role": "assistant"}
    return [added(index, **message, content=[]), *deltas, done(index, **message, content=[{"type": "output_text"}])]


def thought(index: int, summary: str, encrypted: str = "gAAAAB==") -> list[dict[str, Any]]:
    item: dict[str, Any] = {"type": "reasoning", "id": f"rs_{index}", "summary": []}
    return [
        added(index, **item, encrypted_content=encrypted[:4]),  # as the service does: the whole comes at the end
        event("reasoning_summary_part.added", output_index=index, summary_index=0),
        event("reasoning_summary_text.delta", output_index=index, summary_index=0, delta=summary),
        done(index, **item, encrypted_content=encrypted),
    ]


def call(index: int, id: str, *arguments: str, name: str = "look") -> list[dict[str, Any]]:
    item = {"type": "function_call", "id": f"fc_{index}", "call_id": id, "name": name}
    deltas = [event("function_call_arguments.delta", output_index=index, delta=piece) for piece in arguments]
    whole = "".join(arguments)
    end = event("function_call_arguments.done", output_index=index, arguments=whole)
    return [added(index, **item, arguments=""), *deltas, end, done(index, **item, arguments=whole)]


BEGIN = [state("created", "in_progress"), state("in_progress", "in_progress")]
END = state("completed", "completed", usage=USAGE)

ANSWER = numbered(*BEGIN, *thought(0, "Hm. "), *words(1, "Once upon ", "a time in Łódź."), END)
CALLS = numbered(
    *BEGIN,
    *thought(0, "Two places."),
    *words(1, "Looking."),
    *call(2, "call_a", '{"pla', 'ce": "Łódź"}'),
    *call(3, "call_b", '{"place": ', '"Rome"}'),
    END,
)

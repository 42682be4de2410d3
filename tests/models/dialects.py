"""How providers of the table stream the same two replies, as their references and public logs show it.

`ANSWER` says "Once upon a time in Łódź."; `CALLS` says "Looking." and calls `look` for Łódź and for Rome.
"""

from __future__ import annotations

from typing import Any

from tests.models.openai_stream import ANSWER, CALLS, DONE, USAGE, completion, piece

Event = Any  # JSON, or a str that goes as it is
COUNTS = USAGE["usage"]


def _thinking(field: str) -> tuple[list[Event], list[Event]]:
    """Thinking comes first, in a field of its own."""
    thought = [completion({"role": "assistant", "content": "", field: word}) for word in ("Let me ", "see.")]
    return [*thought, *ANSWER[2:]], [*thought, *CALLS[1:]]


def _whole_calls(*, indexed: bool, ids: tuple[str, str], usage: dict[str, Any]) -> list[Event]:
    """Each call in one piece, and the counts on the last event that has a choice."""
    calls = [piece(0, '{"place": "Łódź"}', ids[0], "look"), piece(1, '{"place": "Rome"}', ids[1], "look")]
    if not indexed:
        for event in calls:
            del event["choices"][0]["delta"]["tool_calls"][0]["index"]
    return [completion({"content": "Looking."}), *calls, completion({}, "tool_calls", usage=usage), DONE]


def _mistral() -> tuple[list[Event], list[Event]]:
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}
    answer = [
        completion({"role": "assistant", "content": [thinking]}),
        completion({"content": [{"type": "text", "text": "Once upon "}]}),
        completion({"content": "a time in Łódź."}),
        completion({"content": ""}, "stop", usage=COUNTS),
        DONE,
    ]
    return answer, _whole_calls(indexed=True, ids=("D681PevKs", "ax3TnQ9Fw"), usage=COUNTS)


def _groq() -> tuple[list[Event], list[Event]]:
    begin = completion({"role": "assistant", "content": None}, x_groq={"id": "req_1"})
    end = completion({}, "stop", x_groq={"id": "req_1", "usage": COUNTS})
    calls = _whole_calls(indexed=True, ids=("fc_1", "fc_2"), usage=COUNTS)
    return [begin, completion({"reasoning": "Hm."}), *ANSWER[2:4], end, USAGE, DONE], [begin, *calls]


def _moonshot() -> tuple[list[Event], list[Event]]:
    """The counts are inside the last choice."""
    end = completion({}, "stop")
    end["choices"][0]["usage"] = {"prompt_tokens": 100, "completion_tokens": 20, "cached_tokens": 64}
    answer, calls = _thinking("reasoning_content")
    return [*answer[:4], end, DONE], calls


def _openrouter() -> tuple[list[Event], list[Event]]:
    """Counts come with an empty delta; a `reasoning_details` list stands beside the words."""
    details = [{"type": "reasoning.text", "text": "Hm.", "index": 0}]
    thought = completion({"content": "", "reasoning": "Hm.", "reasoning_details": details}, provider="Somebody")
    return [thought, *ANSWER[2:]], [thought, *CALLS[1:]]


DIALECTS: dict[str, tuple[list[Event], list[Event]]] = {
    "azure": ([{"choices": [], "prompt_filter_results": []}, *ANSWER], CALLS),
    "groq": _groq(),
    "mistral": _mistral(),
    "deepseek": _thinking("reasoning_content"),
    "openrouter": _openrouter(),
    "together": ([*ANSWER[:4], completion({}, "eos", usage=COUNTS), DONE], CALLS),
    "fireworks": (ANSWER, CALLS),
    "xai": _thinking("reasoning_content"),
    "cerebras": _thinking("reasoning"),
    "nvidia": _thinking("reasoning_content"),
    "huggingface": (ANSWER, CALLS),
    "github": ([{"choices": [], "prompt_filter_results": []}, *ANSWER], CALLS),
    "moonshotai": _moonshot(),
    "zai": _thinking("reasoning_content"),
    "qwen": _thinking("reasoning_content"),
    "ollama": (ANSWER, _whole_calls(indexed=False, ids=("call_1", "call_2"), usage=COUNTS)),
    "lmstudio": (ANSWER, CALLS),
    "llamacpp": _thinking("reasoning_content"),
    "vllm": _thinking("reasoning"),
}

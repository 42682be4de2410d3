"""What a user meets in the first hour: each item has an example that runs (and types: pyright reads the examples)."""

from __future__ import annotations

import re

import pytest

from tests.house.tree import ROOT

ITEMS = {
    "instructions as a text": r'instructions="',
    "instructions as a function": r"instructions=\w+\)",
    "tools": r"tools=\[",
    "a typed answer": r"output=",
    "model settings": r"ModelSettings\(",
    "settings: the other five": r"(?s)temperature=.*max_tokens=.*tool_choice=.*stop=.*extra=",
    "settings: the two time-outs": r"(?s)timeout_first_token=.*timeout_idle=",
    "retries": r"retries=",
    "fallback models": r"fallback=",
    "how many tools at once": r"max_parallel_tools=",
    "a budget": r"Budget\(",
    "hooks": r"hooks=\[",
    "trim": r"trim=keep_last\(",
    "a trim of one's own": r"trim=with_a_summary",
    "an agent that is generic in its dependencies": r"Agent\[\w+\]\(",
    "the output": r"\.output\b",
    "a prompt with pictures and files": r"(?s)Image\(.*File\(|File\(.*Image\(",
    "a session is created": r"Session\.create\(",
    "a session is loaded": r"Session\.load\(",
    "its messages": r"session\.messages",
    "its state, written by a tool": r"session\.state\[",
    "a fork": r"\.fork\(",
    "a rewind": r"\.rewind\(",
    "a delete": r"\.delete\(",
    "what to do when it is busy": r"if_busy=",
    "a store in memory": r"MemoryStore\(",
    "a store in SQLite": r"SqliteStore\(",
    "a context with dependencies": r"ToolContext\[\w+\]",
    "an agent that tries again": r"raise Retry\(",
    "the words of the answer": r"async for \w+ in run\.text\(\)",
    "without a loop": r"\.run_sync\(",
}


@pytest.mark.parametrize("item", ITEMS)
def test_an_item_of_the_first_hour_has_an_example(item: str) -> None:
    found = [file.name for file in (ROOT / "examples").glob("*.py") if re.search(ITEMS[item], file.read_text())]
    assert found, f"no example shows {item}"

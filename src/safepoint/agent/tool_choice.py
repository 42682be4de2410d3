"""How a model may call tools: `auto`, `none`, `required`, or the name of the one tool that it must call.

Providers disagree about a choice that no tool matches. So Safepoint refuses it as early as it can be known: where the
agent is made, where a composite adds its tools, and at the latest in the request, so that no model ever gets one.
"""

from __future__ import annotations

from collections.abc import Collection

WORDS = ("auto", "none", "required")
TRANSFER = "transfer_to_"
"""The prefix of the tools that a `Handoff` adds to its members."""


def check_tool_choice(choice: str | None, tools: Collection[str]) -> None:
    """Raise `ValueError` if an agent with tools of these names cannot follow the choice."""
    if choice in WORDS and choice in tools:
        raise ValueError(f"tool_choice={choice!r} is a word of its own, and a tool has that name: give it another one")
    if choice == "required" and not tools:
        raise ValueError(f"tool_choice={choice!r}: there is no tool to call; hand in tools=[…], or leave it out")
    if choice is not None and choice not in (*WORDS, *tools):
        known = ", ".join(map(repr, (*WORDS, *tools) if tools else WORDS[:2]))
        raise ValueError(f"tool_choice={choice!r} is no tool of this agent: write one of {known}")


def comes_later(choice: str | None) -> bool:
    """Whether only a composite can know the tool that it names."""
    return choice is not None and (choice == "required" or choice.startswith(TRANSFER))

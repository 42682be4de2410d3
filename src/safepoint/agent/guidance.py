"""What tools have to say in the instructions of their agent, as the tools of a server do."""

from __future__ import annotations

from collections.abc import Iterable

from safepoint.tools.base import BaseTool


def with_guidance(instructions: str | None, tools: Iterable[BaseTool]) -> str | None:
    """The instructions, and below them what the tools say; once, if several tools say the same."""
    said = dict.fromkeys(tool.guidance for tool in tools if tool.guidance)
    return "\n\n".join(filter(None, [instructions, *said])) if said else instructions

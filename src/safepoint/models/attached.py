"""Words around the pictures and files of tool results, for providers that take them elsewhere or not at all."""

from __future__ import annotations

from safepoint.history.parts import Attachment, ToolResult


def whose(result: ToolResult) -> str:
    """What stands before them, where they come apart from their result."""
    return f"From the tool {result.name}, whose result names them:"


def not_shown(part: Attachment, why: Exception | str) -> str:
    """The text that replaces an attachment which the provider does not take."""
    return f"[{part.kind} not shown: {why}]"

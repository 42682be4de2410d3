"""Conversations: the words they are made of, the rules they keep, how they end at a stop, what they cost."""

from safepoint.history.check import check_history
from safepoint.history.closing import ClosedCall, Draft, close_history, notice_text, quoted, result_text, tool_result
from safepoint.history.estimate import ToolDescription, estimate_messages, estimate_tokens
from safepoint.history.parts import (
    File,
    Image,
    Message,
    Notice,
    Part,
    Prompt,
    Reasoning,
    Role,
    Text,
    ToolCall,
    ToolResult,
    UserPart,
    user_message,
)
from safepoint.history.states import CLOSED_STATES, LedgerState
from safepoint.history.wellformed import json_fault, well_formed

__all__ = [
    "CLOSED_STATES",
    "ClosedCall",
    "Draft",
    "File",
    "Image",
    "LedgerState",
    "Message",
    "Notice",
    "Part",
    "Prompt",
    "Reasoning",
    "Role",
    "Text",
    "ToolCall",
    "ToolDescription",
    "ToolResult",
    "UserPart",
    "check_history",
    "close_history",
    "estimate_messages",
    "estimate_tokens",
    "json_fault",
    "notice_text",
    "quoted",
    "result_text",
    "tool_result",
    "user_message",
    "well_formed",
]

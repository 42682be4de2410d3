"""Safepoint: run LLM agents that can be stopped."""

from safepoint._core.groups import CancelToken, GroupReceipt
from safepoint._core.ladder import Ladder
from safepoint._core.points import SafePoint
from safepoint._core.reasons import Reason, Source
from safepoint._core.receipts import Outcome, Receipt
from safepoint.agent.agent import Agent
from safepoint.agent.budget import Budget, Limit, Price
from safepoint.agent.checkpoint import Checkpoint, Question
from safepoint.agent.hooks import AskFirst, Deny, Hooks, Replace
from safepoint.agent.model import ModelSettings
from safepoint.agent.result import RunResult, StopReason
from safepoint.agent.resume import Resume
from safepoint.agent.run import Run
from safepoint.agent.usage import Usage
from safepoint.errors import HistoryError, Retry, RunFailed, SafepointError
from safepoint.history.check import check_history
from safepoint.history.parts import File, Image, Message, Text
from safepoint.tools.context import ToolContext
from safepoint.tools.function import Tool, tool

__all__ = [
    "Agent",
    "AskFirst",
    "Budget",
    "CancelToken",
    "Checkpoint",
    "Deny",
    "File",
    "GroupReceipt",
    "HistoryError",
    "Hooks",
    "Image",
    "Ladder",
    "Limit",
    "Message",
    "ModelSettings",
    "Outcome",
    "Price",
    "Question",
    "Reason",
    "Receipt",
    "Replace",
    "Resume",
    "Retry",
    "Run",
    "RunFailed",
    "RunResult",
    "SafePoint",
    "SafepointError",
    "Source",
    "StopReason",
    "Text",
    "Tool",
    "ToolContext",
    "Usage",
    "check_history",
    "tool",
]

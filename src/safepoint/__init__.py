"""Safepoint: run LLM agents that can be stopped.

Composites, loops of turns and codecs are loaded when they are first named: a program with one agent does not wait for
them.
"""

import logging
from importlib import import_module
from typing import TYPE_CHECKING

from safepoint._core.asks import Ask
from safepoint._core.endings import Cancellation
from safepoint._core.groups import CancelToken, GroupReceipt
from safepoint._core.hold_receipts import HoldReceipt, HoldState
from safepoint._core.holds import Held, Hold
from safepoint._core.ladder import Ladder
from safepoint._core.orphans import Orphan
from safepoint._core.points import SafePoint
from safepoint._core.reasons import Reason, Source
from safepoint._core.receipts import Outcome, Receipt
from safepoint._core.tree import Node
from safepoint.agent.agent import Agent
from safepoint.agent.base import BaseAgent
from safepoint.agent.budget import Budget, Limit, Price
from safepoint.agent.checkpoint import Checkpoint, Question
from safepoint.agent.freeze import Freeze, Switch
from safepoint.agent.hooks import AskFirst, Deny, Hooks, Replace
from safepoint.agent.ledger import LedgerEntry
from safepoint.agent.model import ModelSettings
from safepoint.agent.options import RunOptions
from safepoint.agent.result import ChildResult, RunResult, StopReason
from safepoint.agent.resume import Resume
from safepoint.agent.run import Run
from safepoint.agent.run_state import RunState
from safepoint.agent.tool_context import ToolContext
from safepoint.agent.trim import keep_last, keep_tokens
from safepoint.agent.usage import Usage
from safepoint.errors import CtrlC, HistoryError, Retry, RunFailed, SafepointError
from safepoint.history.check import check_history
from safepoint.history.parts import File, Image, Message, Notice, Reasoning, Text, ToolCall, ToolResult
from safepoint.history.states import LedgerState
from safepoint.tools.function import Tool, tool

if TYPE_CHECKING:
    from safepoint.compose.batch import BatchResult, run_many
    from safepoint.compose.handoff import Handoff
    from safepoint.compose.loop import Loop, loop_done
    from safepoint.compose.parallel import Branch, Parallel
    from safepoint.compose.plan import Finished
    from safepoint.compose.sequential import Sequential
    from safepoint.history.json_codec import messages_from_json, messages_to_json
    from safepoint.turns.loop import TurnLoop

logging.getLogger("safepoint").addHandler(logging.NullHandler())  # silent until a program asks for more

__all__ = [
    "Agent",
    "Ask",
    "AskFirst",
    "BaseAgent",
    "BatchResult",
    "Branch",
    "Budget",
    "CancelToken",
    "Cancellation",
    "Checkpoint",
    "ChildResult",
    "CtrlC",
    "Deny",
    "File",
    "Finished",
    "Freeze",
    "GroupReceipt",
    "Handoff",
    "Held",
    "HistoryError",
    "Hold",
    "HoldReceipt",
    "HoldState",
    "Hooks",
    "Image",
    "Ladder",
    "LedgerEntry",
    "LedgerState",
    "Limit",
    "Loop",
    "Message",
    "ModelSettings",
    "Node",
    "Notice",
    "Orphan",
    "Outcome",
    "Parallel",
    "Price",
    "Question",
    "Reason",
    "Reasoning",
    "Receipt",
    "Replace",
    "Resume",
    "Retry",
    "Run",
    "RunFailed",
    "RunOptions",
    "RunResult",
    "RunState",
    "SafePoint",
    "SafepointError",
    "Sequential",
    "Source",
    "StopReason",
    "Switch",
    "Text",
    "Tool",
    "ToolCall",
    "ToolContext",
    "ToolResult",
    "TurnLoop",
    "Usage",
    "check_history",
    "keep_last",
    "keep_tokens",
    "loop_done",
    "messages_from_json",
    "messages_to_json",
    "run_many",
    "tool",
]

_HOMES = {
    "BatchResult": "compose.batch",
    "Branch": "compose.parallel",
    "Finished": "compose.plan",
    "Handoff": "compose.handoff",
    "Loop": "compose.loop",
    "Parallel": "compose.parallel",
    "Sequential": "compose.sequential",
    "TurnLoop": "turns.loop",
    "loop_done": "compose.loop",
    "messages_from_json": "history.json_codec",
    "messages_to_json": "history.json_codec",
    "run_many": "compose.batch",
}

if not TYPE_CHECKING:  # a type checker that saw it would take every misspelt name for one that exists

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        return value

"""A conversation with one of everything, as a store has to keep it: parts, calls, memories, a checkpoint."""

from __future__ import annotations

from safepoint._core.reasons import Reason, Source
from safepoint.agent.checkpoint import Checkpoint, OpenCall, Question
from safepoint.agent.journal import Counted, Ended, Opened
from safepoint.agent.ledger import LedgerEntry
from safepoint.agent.result import StopReason
from safepoint.agent.usage import Usage
from safepoint.history.parts import File, Image, Message, Notice, Reasoning, Text, ToolCall, ToolResult
from safepoint.history.states import LedgerState
from safepoint.tools.call_state import CallState
from safepoint.tools.options import Effect

STATE = {"user": "Zoë 🙂", "nested": {"list": [1, 2.5, None, True, "x"]}, "empty": {}}
ARGS = {"place": "attic", "deep": {"list": [1, 2.5, None, True, '"quoted"\n']}}


def said(text: str) -> Message:
    return Message("user", (Text(text),))


ASKED = Message(
    "user",
    (
        Text('What is there? Ünïcödé 🙂, "quotes", a\ttab, a line\nbreak and a \0 byte'),
        Image(b"\x89PNG\x00\xff", "image/png"),
        Image(url="https://example.org/a.png"),
        File(b"%PDF\x00", "application/pdf", "plan.pdf"),
    ),
)
CALLS = Message(
    "assistant",
    (
        Reasoning("The attic first.", "a seal"),
        Text("Let me look."),
        ToolCall("call_1", "look", ARGS),
        ToolCall("call_2", "touch", {}, "no JSON object"),
    ),
)
RESULTS = Message(
    "tool", (ToolResult("call_1", "look", "dust"), ToolResult("call_2", "touch", "was cut, outcome unknown", "cut"))
)
ANSWER = Message("assistant", (Text("There is du", incomplete=True), Notice("This run was stopped.")))
EVERYTHING = (ASKED, CALLS, RESULTS, ANSWER)

MEMORY = CallState({"row": 3}, ("yes", 4), {"key": [1]}, (True, "because"))
RUNNING = LedgerEntry("call_1", "look", ARGS, LedgerState.RUNNING, Effect.PURE, started_at=1.5)
FINISHED = LedgerEntry(
    "call_1", "look", ARGS, LedgerState.FINISHED, Effect.PURE, content="dust", started_at=1.5, ended_at=2.5
)
CUT = LedgerEntry(
    "call_2", "touch", {}, LedgerState.CUT, Effect.IRREVERSIBLE, error="it broke", still_running=True, started_at=1.5
)
COUNTED = Counted(2, Usage(20, 7, 2), {"seconds": 2.5, "cost": 0.25}, (said("and the roof?"),))


def checkpoint(id: str = "checkpoint_1", run_id: str = "run_1") -> Checkpoint:
    question = Question("call_2:1", "touch", {"sure": "?"})
    return Checkpoint(
        id,
        "worker",
        run_id,
        StopReason.CANCELLED,
        EVERYTHING,
        (ASKED, CALLS),
        (FINISHED, CUT),
        {"call_2": OpenCall("call_2", "abc", MEMORY, question)},
        1,
        Usage(10, 5, 1, estimated=True),
        Reason("enough", Source.USER, "Zoë"),
        (said("and the cellar?"),),
        {"seconds": 1.5},
    )


def opening(run_id: str = "run_1", index: int = 0, continues: str | None = None) -> Opened:
    return Opened(run_id, "worker", index, (ASKED,), continues, () if continues is None else (FINISHED,))


def ending(run_id: str = "run_1", index: int = 0, saved: Checkpoint | None = None) -> Ended:
    reason = StopReason.END_TURN if saved is None else StopReason.CANCELLED
    return Ended(run_id, reason, index, EVERYTHING, (FINISHED, CUT), Usage(10, 5, 1), saved)

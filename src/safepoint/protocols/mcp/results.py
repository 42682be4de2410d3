"""How a run ended, as the result of a tool call.

    stop_reason                      isError   text
    end_turn                         no        the answer
    interrupted                      no        what is asked, and under which ids
    max_tokens, refused              no        the words so far, and how it ended
    cancelled (not by this client)   yes       the words so far, and why it was stopped
    max_steps, budget, error         yes       the words so far, and what was wrong

A request that its own client cancelled has no result. `structuredContent` names the session and the run, so that the
client can go on with them; `_meta` has the receipt: what became of each call, what was left running, the usage.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from mcp_types import CallToolResult, ContentBlock, ImageContent, TextContent

from safepoint.agent.agent import Agent
from safepoint.agent.base import BaseAgent
from safepoint.agent.checkpoint import Question
from safepoint.agent.result import RunResult, StopReason
from safepoint.history.parts import Attachment, Image
from safepoint.protocols.question_text import question_text
from safepoint.serving.cancel_requests import reason_json
from safepoint.serving.ids import SessionKey
from safepoint.serving.managed_run import ManagedRun
from safepoint.serving.stored_events import usage_json

Json: TypeAlias = dict[str, Any]  # Any: JSON values

RECEIPT = "safepoint/receipt"
JOINED = "joined"

IS_ERROR: Mapping[str, bool] = {
    StopReason.END_TURN: False,
    StopReason.INTERRUPTED: False,
    StopReason.MAX_TOKENS: False,
    StopReason.REFUSED: False,
    StopReason.CANCELLED: True,
    StopReason.MAX_STEPS: True,
    StopReason.BUDGET: True,
    StopReason.ERROR: True,
    JOINED: False,
}


def failed(text: str) -> CallToolResult:
    """A call that began no run: its caller can read what to write instead."""
    return CallToolResult(content=[TextContent(text=text)], is_error=True)


def result_of(managed: ManagedRun) -> CallToolResult:
    """Of a run that is over."""
    outcome = managed.outcome or str(StopReason.ERROR)
    run = managed.run.result if managed.run.ended and managed.withdrawn is None else None
    meta = None if run is None else {RECEIPT: _receipt_json(run)}
    if run is not None and managed.paused:
        return waiting(managed.key, managed.id, run.questions, run.text, meta)
    structured: Json = {"session": managed.key.session, "run": managed.id, "stopReason": outcome}
    if managed.reason is not None:
        structured["reason"] = reason_json(managed.reason)
    words = "" if run is None else run.text
    if run is not None and outcome == StopReason.END_TURN:
        structured["output"] = json.loads(words) if _is_typed(managed.run.agent, run) else words
        text = words
    else:
        text = _joined(words, _why(managed))
    content: list[ContentBlock] = [TextContent(text=text)]
    return CallToolResult(content=content, structured_content=structured, is_error=IS_ERROR[outcome], _meta=meta)


def waiting(
    key: SessionKey, run_id: str, questions: Sequence[Question], words: str = "", meta: Json | None = None
) -> CallToolResult:
    """Of a run that waits for a person: what is asked, and how to answer."""
    asked = "\n".join(f"{each.id}: {question_text(each)}" for each in questions)
    how = f"Call this tool again with session={key.session!r} and answers={{id: answer}}."
    structured: Json = {"session": key.session, "run": run_id, "stopReason": str(StopReason.INTERRUPTED)}
    structured["questions"] = [_question_json(each) for each in questions]
    text = _joined(words, f"It waits for an answer:\n{asked}", how)
    return CallToolResult(content=[TextContent(text=text)], structured_content=structured, is_error=False, _meta=meta)


def output_schema(agent: BaseAgent[Any, Any]) -> Json:  # Any: agents of every kind
    """Of `structuredContent`. The definitions of a typed output move to the top, where its references point to."""
    output = agent.output_tool if isinstance(agent, Agent) else None
    typed: Json = {"type": "string"} if output is None else dict(output.schema)
    definitions = typed.pop("$defs", None)
    properties: Json = {
        "session": {"type": "string", "description": "Give it with the next call to go on with this conversation."},
        "run": {"type": "string"},
        "stopReason": {"type": "string", "enum": sorted(map(str, IS_ERROR))},
        "reason": {"type": "object", "description": "Why it was stopped, and by whom."},
        "questions": {"type": "array", "items": {"type": "object"}, "description": "What is asked, with ids."},
        "output": typed,
    }
    schema: Json = {"type": "object", "properties": properties, "required": ["session", "run", "stopReason"]}
    return schema if definitions is None else {**schema, "$defs": definitions}


def blocks(text: str, parts: Iterable[Attachment]) -> list[ContentBlock]:
    """The words of a tool, and its pictures; the words name the files among them."""
    pictures = [part for part in parts if isinstance(part, Image) and part.data is not None]
    data = [(base64.b64encode(part.data or b"").decode(), part.media_type) for part in pictures]
    return [TextContent(text=text), *(ImageContent(data=each, mime_type=kind) for each, kind in data)]


def _joined(*paragraphs: str) -> str:
    return "\n\n".join(filter(None, paragraphs))


def _why(managed: ManagedRun) -> str:
    """In words that its caller can act on."""
    if managed.outcome == JOINED:
        return "The message has joined the run that is live. Its answer goes to the caller of that run."
    if managed.error is not None:
        return f"{type(managed.error).__name__}: {managed.error}"
    last = managed.feed.last
    end = None if last is None else managed.feed.whole[last].end
    return end.text if end is not None else str(managed.outcome)


def _is_typed(agent: BaseAgent[Any, Any], run: RunResult[Any]) -> bool:  # Any: as above
    """Not if another agent, to which this one has handed over, has given the answer."""
    return isinstance(agent, Agent) and agent.output_tool is not None and not agent.has_handed_over(run.ledger)


def _question_json(question: Question) -> Json:
    payload = json.loads(json.dumps(question.payload, default=str))
    return {"id": question.id, "tool": question.tool, "payload": payload, "kind": question.kind}


def _receipt_json(run: RunResult[Any]) -> Json:  # Any: as above
    calls = [
        {"callId": each.call_id, "name": each.name, "state": str(each.state), "effect": str(each.effect)}
        for each in run.ledger
    ]
    orphans = [{"name": each.name, "path": each.path, "stillRunning": each.still_running} for each in run.orphans]
    return {"calls": calls, "orphans": orphans, "usage": usage_json(run.usage)}

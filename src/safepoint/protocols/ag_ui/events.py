"""A run as AG-UI events. What is Safepoint's own goes into `metadata.safepoint`, or into a CUSTOM event.

Every text, thought, call and step is closed before the run's last event: a client rejects a run that ends with one
open. The last event is RUN_FINISHED or RUN_ERROR, as the table of endings says. Clients before 1.0 do not know the
outcome `cancelled`; they get RUN_ERROR with the code `abort`, which is what they make themselves of an abort.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from safepoint.agent.checkpoint import Question
from safepoint.history.parts import Image
from safepoint.protocols.endings import AG_UI, Ending
from safepoint.protocols.json_text import as_text
from safepoint.protocols.message_parts import (
    CallClosed,
    CallOpened,
    CallOutput,
    FileSaid,
    PartEvent,
    PartMapper,
    StateChanged,
    StepClosed,
    StepOpened,
    TextAdded,
    TextClosed,
    TextOpened,
    UserSaid,
    wire_call_id,
)
from safepoint.protocols.question_text import question_text
from safepoint.protocols.run_facts import RunFacts, facts_of
from safepoint.serving.events import Failure, call_of
from safepoint.serving.feed import Feed, Frame
from safepoint.serving.run_manager import RunManager
from safepoint.serving.shared_state import plain

Json: TypeAlias = dict[str, Any]  # Any: JSON values

PROTOCOL_VERSION = "1.0"
ABORT = "abort"
CANCELLED = "cancelled"
OURS = "safepoint"
TOOL_OUTPUT = "safepoint.tool_output"
FILE = "safepoint.file"
_ANSWER_SCHEMAS: Mapping[str, Json] = {"check": {"type": "boolean"}}


@dataclass(slots=True)
class RunStream:
    """A `StreamEncoder`. `thread_id`, `client_run_id`: as the client calls them; `run_id`: as we do.

    `state`: the session's, as the client is told at the beginning. `front_end_tools`: names of tools whose calls wait
    for the front end.
    """

    manager: RunManager
    run_id: str
    thread_id: str
    client_run_id: str
    knows_cancelled: bool
    state: Json = field(default_factory=dict[str, Any])  # Any: JSON values
    front_end_tools: frozenset[str] = frozenset()
    _mapper: PartMapper = field(default_factory=PartMapper)

    def opening(self) -> str:
        started: Json = {"type": "RUN_STARTED", "threadId": self.thread_id, "runId": self.client_run_id}
        if self.knows_cancelled:
            started["protocolVersion"] = PROTOCOL_VERSION
        started["metadata"] = {OURS: {"runId": self.run_id}}
        return _written([started, {"type": "STATE_SNAPSHOT", "snapshot": self.state}])

    def frame(self, frame: Frame) -> str:
        return _written(self._encoded(self._mapper.map(frame.event)))

    async def ending(self, feed: Feed, failure: Failure | None) -> str:
        """Cancellation: nothing is sent."""
        closing = list(self._encoded(self._mapper.close()))
        if failure is not None and not feed.closed:
            return _written([*closing, run_error(failure.text, failure.kind.lower())])
        return _written([*closing, self._last(await facts_of(self.manager, self.run_id, feed))])

    def _encoded(self, parts: Iterable[PartEvent]) -> Iterator[Json]:
        for part in parts:
            if isinstance(part, StateChanged):
                yield {"type": "STATE_DELTA", "delta": self._patch(part.delta)}
            else:
                yield from _part(part)

    def _patch(self, delta: Mapping[str, Any]) -> list[Json]:  # Any: JSON values
        operations: list[Json] = []
        for name, value in delta.items():
            path = "/" + name.replace("~", "~0").replace("/", "~1")
            if value is not None:
                operations.append({"op": "add", "path": path, "value": plain(value)})
                self.state[name] = value
            elif self.state.pop(name, None) is not None:
                operations.append({"op": "remove", "path": path})
        return operations

    def _last(self, facts: RunFacts) -> Json:
        kind, word = AG_UI[facts.ending]
        if word == CANCELLED and not self.knows_cancelled:
            kind, word = "RUN_ERROR", ABORT
        metadata: Json = {"metadata": {OURS: facts.receipt}}
        if facts.usage is not None:
            metadata["usage"] = [{"inputTokens": facts.usage.input_tokens, "outputTokens": facts.usage.output_tokens}]
        if kind == "RUN_ERROR":
            return {**run_error(facts.message, word), **metadata}
        outcome: Json = {"type": word}
        if facts.ending is Ending.INTERRUPTED:
            outcome = self._waiting(facts)
        finished: Json = {"type": kind, "threadId": self.thread_id, "runId": self.client_run_id, "outcome": outcome}
        return {**finished, **metadata}

    def _waiting(self, facts: RunFacts) -> Json:
        """Calls of the front end's own tools are its work; any other question is an interrupt."""
        asked = [each for each in facts.questions if each.tool not in self.front_end_tools]
        if asked:
            return {"type": "interrupt", "interrupts": [_interrupt(facts, each) for each in asked]}
        return {"type": "success", "pendingToolCallIds": [pending_id(facts, each) for each in facts.questions]}


def run_error(message: str, code: str) -> Json:
    return {"type": "RUN_ERROR", "message": message, "code": code}


def failed_at_once(thread_id: str, run_id: str, message: str, code: str) -> str:
    """A stream that begins no run."""
    return _written([{"type": "RUN_STARTED", "threadId": thread_id, "runId": run_id}, run_error(message, code)])


def pending_id(facts: RunFacts, question: Question) -> str:
    return wire_call_id(facts.turn_id, call_of(question.id))


def _interrupt(facts: RunFacts, question: Question) -> Json:
    found: Json = {"id": question.id, "message": question_text(question)}
    if question not in facts.inner_questions:
        found["toolCallId"] = pending_id(facts, question)
    if question.kind == "check":
        found |= {"reason": "tool_call"}
    else:
        found |= {"reason": "input_required"}
    found["responseSchema"] = _ANSWER_SCHEMAS.get(question.kind, {})
    found["metadata"] = {OURS: {"tool": question.tool, "payload": plain(question.payload)}}
    return found


def _part(part: PartEvent) -> Iterator[Json]:
    match part:
        case StepOpened(number):
            yield {"type": "STEP_STARTED", "stepName": f"step {number}"}
        case StepClosed(number):
            yield {"type": "STEP_FINISHED", "stepName": f"step {number}"}
        case TextOpened() | TextAdded() | TextClosed():
            yield from _thought(part) if part.thought else _text(part)
        case CallOpened(id, message_id, call):
            yield {
                "type": "TOOL_CALL_START",
                "toolCallId": id,
                "toolCallName": call.name,
                "parentMessageId": message_id,
            }
            yield {"type": "TOOL_CALL_ARGS", "toolCallId": id, "delta": as_text(plain(dict(call.args)))}
            yield {"type": "TOOL_CALL_END", "toolCallId": id}
        case CallOutput(id, text):
            yield {"type": "CUSTOM", "name": TOOL_OUTPUT, "value": {"toolCallId": id, "text": text}}
        case CallClosed(id, message_id, result):
            found = {"type": "TOOL_CALL_RESULT", "messageId": message_id, "toolCallId": id, "role": "tool"}
            yield {**found, "content": result.content, "metadata": {OURS: {"state": result.state}}}
        case FileSaid(file):
            value: Json = {"mediaType": file.media_type, "url": file.url}
            value["name"] = None if isinstance(file, Image) else file.name
            yield {"type": "CUSTOM", "name": FILE, "value": value}
        case UserSaid() | StateChanged():
            pass  # the client that said it has it, and others read it in the session


def _text(part: TextOpened | TextAdded | TextClosed) -> Iterator[Json]:
    match part:
        case TextOpened(id, _, speaker):
            opened: Json = {"type": "TEXT_MESSAGE_START", "messageId": id, "role": "assistant"}
            yield opened if speaker is None else {**opened, "name": speaker}
        case TextAdded(id, _, text):
            yield {"type": "TEXT_MESSAGE_CONTENT", "messageId": id, "delta": text}
        case TextClosed(id, _, incomplete):
            closed: Json = {"type": "TEXT_MESSAGE_END", "messageId": id}
            yield {**closed, "metadata": {OURS: {"incomplete": True}}} if incomplete else closed


def _thought(part: TextOpened | TextAdded | TextClosed) -> Iterator[Json]:
    match part:
        case TextOpened(id):
            yield {"type": "REASONING_START", "messageId": id}
            yield {"type": "REASONING_MESSAGE_START", "messageId": id, "role": "reasoning"}
        case TextAdded(id, _, text):
            yield {"type": "REASONING_MESSAGE_CONTENT", "messageId": id, "delta": text}
        case TextClosed(id):
            yield {"type": "REASONING_MESSAGE_END", "messageId": id}
            yield {"type": "REASONING_END", "messageId": id}


def _written(events: Iterable[Json]) -> str:
    return "".join(f"data: {as_text(event)}\n\n" for event in events)

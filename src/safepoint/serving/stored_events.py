"""Stored conversations as the events of `serving.events`: what the viewers of each run were told. Pure."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from heapq import merge
from typing import Any

from msgspec.structs import replace

from safepoint.agent.result import StopReason
from safepoint.agent.usage import Usage
from safepoint.history.parts import Message
from safepoint.serving.events import Failure, MessageEvent, Origin, RunEnd, Turn, waiting_calls
from safepoint.serving.ids import SessionKey
from safepoint.serving.shared_state import lasting
from safepoint.sessions.session import Session
from safepoint.storage.run_records import RunRecord
from safepoint.storage.session_data import StoredRun
from safepoint.storage.shared_state import Note


@dataclass(frozen=True)
class SessionContext:
    """What is known of a session beside its conversation. `agent`: of its app; `speaker`: who speaks first there."""

    agent: str = ""
    speaker: str | None = None
    touched: float = 0.0
    shared: Mapping[str, Any] = field(default_factory=dict[str, Any])  # Any: JSON values
    records: Mapping[str, RunRecord] = field(default_factory=dict[str, RunRecord])
    notes: Sequence[Note] = ()

    @cached_property
    def deltas(self) -> Mapping[str, dict[str, Any]]:  # Any: JSON values
        """What runs did to the state, by the event that tells it."""
        found: dict[str, dict[str, Any]] = {}  # Any: JSON values
        for note in self.notes:
            if (event := note.body.get("event")) is not None:
                found[event] = {**found.get(event, {}), **note.body["stateDelta"]}
        return found

    def request_of(self, run_id: str) -> Mapping[str, Any]:  # Any: JSON values
        record = self.records.get(run_id)
        return record.request if record is not None else {}

    def turn(self, run: StoredRun) -> Turn:
        """As the run had it while it was live."""
        attached = (self.request_of(run_id).get("customMetadata", {}) for run_id in (run.origin, run.run_id))
        metadata = {name: value for each in attached for name, value in each.items()}
        return Turn(run.origin, run.agent, metadata, self.speaker if run.agent == self.agent else None)


def session_events(key: SessionKey, session: Session, beside: SessionContext) -> list[MessageEvent]:
    """All stored messages, each under the run that said it, and changes of the state by clients between them."""
    runs, messages, times = session.runs, session.messages, session.times
    ends = [*(run.index for run in runs[1:]), len(messages)]
    first = runs[0].index if runs else len(messages)
    agent = beside.agent or "model"
    imported = Turn(str(uuid.uuid5(uuid.NAMESPACE_URL, key.stored_as)), agent, origin=Origin.IMPORT)
    brought = enumerate(zip(messages[:first], times[:first], strict=True))
    events = [MessageEvent(imported, position, at, message) for position, (message, at) in brought]
    for run, end in zip(runs, ends, strict=False):
        events += _run_events(run, messages[run.index : end], times[run.index : end], beside)
    patches = [_patch_event(agent, note) for note in beside.notes if "event" not in note.body]
    return list(merge(events, patches, key=lambda event: event.at)) if patches else events


def stored_run_events(session: Session, record: RunRecord, beside: SessionContext) -> list[MessageEvent]:
    """What a run has told, without the message it answered; empty if its turn was taken back."""
    runs, run_id = session.runs, record.run_id
    number = next((number for number, run in enumerate(runs) if run_id in (run.run_id, run.origin)), None)
    if number is None:
        never_ran = record.outcome == StopReason.CANCELLED and record.started_at is None
        return [_withdrawn(record)] if never_ran else []
    first, end = runs[number].index, runs[number + 1].index if number + 1 < len(runs) else len(session.messages)
    events = _run_events(runs[number], session.messages[first:end], session.times[first:end], beside)
    return events[1:] if events and events[0].by_user else events


def before_its_turn(why: str) -> RunEnd:
    """The end of a message that was withdrawn from the queue."""
    return RunEnd(str(StopReason.CANCELLED), f"It was stopped before its turn came: {why}")


def usage_json(usage: Usage) -> dict[str, Any]:  # Any: JSON values
    """As records keep it."""
    return {"inputTokens": usage.input_tokens, "outputTokens": usage.output_tokens, "estimated": usage.estimated}


def _withdrawn(record: RunRecord) -> MessageEvent:
    why = record.reason["text"] if record.reason is not None else ""
    return MessageEvent(Turn(record.run_id, ""), 0, record.ended_at or record.created_at, end=before_its_turn(why))


def _patch_event(agent: str, note: Note) -> MessageEvent:
    """A change of the state by a client, outside any run."""
    return MessageEvent(Turn(note.body["id"], agent, origin=Origin.CLIENT), 0, note.at, state=note.body["stateDelta"])


def _run_events(
    run: StoredRun, messages: tuple[Message, ...], times: tuple[float, ...], beside: SessionContext
) -> list[MessageEvent]:
    asked = run.checkpoint.questions if run.checkpoint is not None else ()
    turn, deltas = beside.turn(run), beside.deltas
    events: list[MessageEvent] = []
    step = 0
    for position, ((speaker, message), at) in enumerate(zip(turn.spoken(messages), times, strict=True), run.index):
        step += message.role == "assistant"
        event = MessageEvent(turn, position, at, message, speaker, step, waiting_calls(message, asked))
        delta = deltas.get(event.id) if deltas else None
        events.append(event if delta is None else replace(event, state=delta))
    delta = lasting(beside.request_of(run.origin).get("stateDelta", {}))
    if events and delta and events[0].by_user:
        events[0] = replace(events[0], state=delta)
    if events and run.ended and run.stop_reason is not None:
        events[-1] = replace(events[-1], end=_end(run, messages, beside))
    return events


def _end(run: StoredRun, messages: tuple[Message, ...], beside: SessionContext) -> RunEnd:
    """How the run ended, as its viewers were told."""
    record, checkpoint = beside.records.get(run.run_id), run.checkpoint
    asked = checkpoint.questions if checkpoint is not None else ()
    usage = checkpoint.spent if checkpoint is not None else None
    if record is not None and record.usage is not None:
        kept = record.usage
        usage = Usage(kept["inputTokens"], kept["outputTokens"], estimated=kept["estimated"])
    end = RunEnd.of(run.stop_reason or "", messages, run.ledger, usage, asked)
    reason = record.reason if record is not None else None
    failed = reason is not None and "error" in reason
    return replace(end, failure=Failure(reason["error"], reason["text"])) if reason is not None and failed else end

"""Values as the text of a row, and back: records of runs, requests, loops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from safepoint.agent.codec import encode as encode_checkpoint
from safepoint.history.json_codec import MESSAGE
from safepoint.history.parts import Message
from safepoint.storage.codec import dump_optional, load_optional
from safepoint.storage.loop_data import (
    HistorySet,
    ItemsAdded,
    ItemsMoved,
    ItemsRemoved,
    LoopChange,
    StoredLoop,
    StoredState,
    StoredTurn,
    TurnBegun,
    TurnFailed,
    TurnOver,
    TurnStopped,
)
from safepoint.storage.postgres.text_codec import escape, unescape
from safepoint.storage.run_records import RunRecord, RunState

Json = dict[str, Any]  # Any: JSON values

RECORD = tuple(each.name for each in fields(RunRecord))
_JSON = ("request", "reason", "usage")
_TEXT = ("run_id", "session", "owner", "key", "digest", "outcome", "by")
# `BY` is a word of PL/pgSQL.
_COLUMN = {"by": "asked_by"}
RECORD_COLUMNS = tuple(_COLUMN.get(name, name) for name in RECORD)


def record_columns(values: Mapping[str, Any]) -> Json:  # Any: fields of a record
    """Fields of a record as the columns of its row. Raises TypeError for a name that no field has."""
    if unknown := [name for name in values if name not in RECORD]:
        raise TypeError(f"a record of a run has no {', '.join(unknown)}")
    columns = {_COLUMN.get(name, name): escape(value) if name in _TEXT else value for name, value in values.items()}
    for name in _JSON:
        if name in columns:
            columns[name] = dump_optional(columns[name])
    return columns


def read_record(columns: Mapping[str, Any]) -> RunRecord:  # Any: JSON values
    found = {name: columns[column] for name, column in zip(RECORD, RECORD_COLUMNS, strict=True)}
    found |= {name: unescape(found[name]) for name in _TEXT}
    found["state"] = RunState(found["state"])
    for name in _JSON:
        found[name] = load_optional(found[name])
    for name in ("created_at", "started_at", "ended_at"):  # JSON writes 1.0 as 1
        found[name] = None if found[name] is None else float(found[name])
    return RunRecord(**found)


def message_bodies(messages: Sequence[Message]) -> list[str]:
    return [MESSAGE.encode(message).decode() for message in messages]


def loop_change(change: LoopChange) -> Json:
    match change:
        case ItemsAdded(items):
            rows = [[item.number, escape(item.text), escape(item.turn), item.joining] for item in items]
            return {"c": "add", "items": rows}
        case ItemsRemoved(numbers):
            return {"c": "remove", "numbers": list(numbers)}
        case ItemsMoved(numbers, turn, joining):
            return {"c": "move", "numbers": list(numbers), "turn": escape(turn), "joining": joining}
        case TurnBegun(key, run_id):
            return {"c": "begin", "key": escape(key), "run": escape(run_id)}
        case TurnStopped(key, runs, checkpoint):
            return _turn(StoredTurn(key, StoredState.STOPPED, runs, checkpoint))
        case TurnFailed(key, runs, error, checkpoint):
            return _turn(StoredTurn(key, StoredState.FAILED, runs, checkpoint, error))
        case TurnOver(key):
            return {"c": "over", "key": escape(key)}
        case HistorySet(index, messages):
            return {"c": "history", "index": index, "messages": message_bodies(messages)}


def whole_loop(stored: StoredLoop) -> list[Json]:
    """The changes that make the record from nothing."""
    changes = [loop_change(ItemsAdded(stored.items)), *map(_turn, stored.turns)]
    return [*changes, loop_change(HistorySet(0, stored.history))]


def _turn(turn: StoredTurn) -> Json:
    """The conversation of its checkpoint is written message by message."""
    checkpoint = turn.checkpoint
    messages = () if checkpoint is None else checkpoint.messages
    data = None if checkpoint is None else encode_checkpoint(checkpoint, known=len(messages)).decode()
    return {
        "c": "turn",
        "key": escape(turn.key),
        "state": str(turn.state),
        "runs": [escape(run) for run in turn.runs],
        "error": escape(turn.error),
        "checkpoint": data,
        "messages": message_bodies(messages),
    }

"""A loop's whole record as bytes: one line that names format, version and digest, then JSON. No pickle.

This is the form for a store of the user's own, which keeps one value per loop. Reading is strict: damaged bytes or a
later version is a `StoreCorrupt`, and the bytes stay what they are. Version 1, which had no turns, is read as well.
"""

from __future__ import annotations

import json
from typing import Any

from safepoint.agent.checkpoint import Checkpoint
from safepoint.agent.codec import digest
from safepoint.errors import StoreCorrupt
from safepoint.history.encoding import Json, decode_message, encode_message
from safepoint.storage.loop_data import StoredItem, StoredLoop, StoredState, StoredTurn

MAGIC = "safepoint-turns"
VERSION = 2


def encode(stored: StoredLoop) -> bytes:
    body = json.dumps(
        {
            "items": [[item.number, item.text, item.turn, item.joining] for item in stored.items],
            "turns": [_turn(turn) for turn in stored.turns],
            "history": [encode_message(message) for message in stored.history],
            "last": stored.last,
        },
        allow_nan=False,
        separators=(",", ":"),
    ).encode()
    return f"{MAGIC} {VERSION} {digest(body)}\n".encode() + body


def _turn(turn: StoredTurn) -> Json:
    checkpoint = None if turn.checkpoint is None else turn.checkpoint.to_bytes().decode("ascii")
    return {
        "key": turn.key,
        "state": str(turn.state),
        "runs": list(turn.runs),
        "error": turn.error,
        "checkpoint": checkpoint,
    }


def decode(data: bytes) -> StoredLoop:
    """Raises `StoreCorrupt`."""
    head, newline, body = data.partition(b"\n")
    words = head.decode("ascii", "replace").split(" ")
    if not newline or len(words) != 3 or words[0] != MAGIC:
        raise StoreCorrupt("these bytes are not the record of a loop; they were left as they are")
    if words[1] not in ("1", "2"):
        raise StoreCorrupt(f"the loop's record has version {words[1][:20]}, this Safepoint reads up to {VERSION}")
    if words[2] != digest(body):
        raise StoreCorrupt("the loop's record is damaged: its digest does not fit; it was left as it is")
    try:
        return (_read_1 if words[1] == "1" else _read_2)(json.loads(body))
    except Exception as error:  # whatever else is wrong with it
        raise StoreCorrupt(f"the loop's record can't be read: {error!r}; it was left as it is") from error


def _read_1(data: Json) -> StoredLoop:
    """Its interrupted items are those of the one turn that its checkpoint continues."""
    kept: Any = data["checkpoint"]  # Any: decoded JSON
    checkpoint = None if kept is None else Checkpoint.from_bytes(kept.encode("ascii"))
    key = checkpoint.run_id if checkpoint is not None else None
    texts = [(str(text), key) for text in data["interrupted"]] + [(str(text), None) for text in data["unhandled"]]
    items = tuple(StoredItem(number, text, turn) for number, (text, turn) in enumerate(texts, 1))
    turns = (StoredTurn(key, StoredState.STOPPED, (key,), checkpoint),) if key is not None else ()
    return StoredLoop(items, turns, tuple(decode_message(message) for message in data["history"]), len(items))


def _read_2(data: Json) -> StoredLoop:
    return StoredLoop(
        tuple(StoredItem(int(number), str(text), turn, bool(joining)) for number, text, turn, joining in data["items"]),
        tuple(_read_turn(turn) for turn in data["turns"]),
        tuple(decode_message(message) for message in data["history"]),
        int(data["last"]),
    )


def _read_turn(data: Json) -> StoredTurn:
    kept: Any = data["checkpoint"]  # Any: decoded JSON
    checkpoint = None if kept is None else Checkpoint.from_bytes(kept.encode("ascii"))
    return StoredTurn(data["key"], StoredState(data["state"]), tuple(data["runs"]), checkpoint, data["error"])

"""A loop's whole record as bytes: one line that names format, version and digest, then JSON. No pickle.

This is the form for a store of the user's own, which keeps one value per loop. `LoopRecord` declares the JSON. Reading
is strict: damaged bytes or a later version is a `StoreCorrupt`, and the bytes stay what they are. Version 1, which had
no turns, is read as well.
"""

from __future__ import annotations

from safepoint._values import Value
from safepoint.agent.checkpoint import Checkpoint
from safepoint.agent.codec import digest
from safepoint.errors import StoreCorrupt
from safepoint.history.json_codec import Codec
from safepoint.history.parts import Message
from safepoint.storage.loop_data import StoredItem, StoredLoop, StoredState, StoredTurn

MAGIC = "safepoint-turns"
VERSION = 3  # since 2 it has turns; since 3 the text of a checkpoint may have more than ASCII
_READS = ("1", "2", "3")


class TurnRecord(Value, frozen=True):
    """`checkpoint`: its bytes, as text."""

    key: str
    state: StoredState
    runs: tuple[str, ...]
    error: str | None
    checkpoint: str | None


class LoopRecord(Value, frozen=True):
    """An item is written as a list of its fields."""

    items: tuple[tuple[int, str, str | None, bool], ...]
    turns: tuple[TurnRecord, ...]
    history: tuple[Message, ...]
    last: int


class LoopRecord1(Value, frozen=True):
    """Version 1. Its interrupted items are those of the one turn that its checkpoint continues."""

    interrupted: tuple[str, ...]
    unhandled: tuple[str, ...]
    history: tuple[Message, ...]
    checkpoint: str | None


_RECORD: Codec[LoopRecord] = Codec(LoopRecord)
_RECORD_1: Codec[LoopRecord1] = Codec(LoopRecord1)


def encode(stored: StoredLoop) -> bytes:
    items = tuple((item.number, item.text, item.turn, item.joining) for item in stored.items)
    body = _RECORD.encode(LoopRecord(items, tuple(map(_turn_record, stored.turns)), stored.history, stored.last))
    return f"{MAGIC} {VERSION} {digest(body)}\n".encode() + body


def _turn_record(turn: StoredTurn) -> TurnRecord:
    checkpoint = None if turn.checkpoint is None else turn.checkpoint.to_bytes().decode()
    return TurnRecord(turn.key, turn.state, turn.runs, turn.error, checkpoint)


def decode(data: bytes) -> StoredLoop:
    """Raises `StoreCorrupt`."""
    head, newline, body = data.partition(b"\n")
    words = head.decode("ascii", "replace").split(" ")
    if not newline or len(words) != 3 or words[0] != MAGIC:
        raise StoreCorrupt("these bytes are not the record of a loop; they were left as they are")
    if words[1] not in _READS:
        raise StoreCorrupt(f"the loop's record has version {words[1][:20]}, this Safepoint reads up to {VERSION}")
    if words[2] != digest(body):
        raise StoreCorrupt("the loop's record is damaged: its digest does not fit; it was left as it is")
    try:
        return _from_record_1(_RECORD_1.decode(body)) if words[1] == "1" else _from_record(_RECORD.decode(body))
    except Exception as error:  # any other fault of the stored value
        raise StoreCorrupt(f"the loop's record can't be read: {error!r}; it was left as it is") from error


def _from_record_1(record: LoopRecord1) -> StoredLoop:
    checkpoint = _checkpoint(record.checkpoint)
    key = checkpoint.run_id if checkpoint is not None else None
    texts = [(text, key) for text in record.interrupted] + [(text, None) for text in record.unhandled]
    items = tuple(StoredItem(number, text, turn) for number, (text, turn) in enumerate(texts, 1))
    turns = (StoredTurn(key, StoredState.STOPPED, (key,), checkpoint),) if key is not None else ()
    return StoredLoop(items, turns, record.history, len(items))


def _from_record(record: LoopRecord) -> StoredLoop:
    items = tuple(StoredItem(*item) for item in record.items)
    turns = (
        StoredTurn(turn.key, turn.state, turn.runs, _checkpoint(turn.checkpoint), turn.error) for turn in record.turns
    )
    return StoredLoop(items, tuple(turns), record.history, record.last)


def _checkpoint(kept: str | None) -> Checkpoint | None:
    return None if kept is None else Checkpoint.from_bytes(kept.encode())

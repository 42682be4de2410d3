"""Checkpoints as bytes: one line that names format, version and digest, then JSON. No pickle, nothing executable.

`StoredCheckpoint` declares the JSON. Reading is strict: a wrong digest, a later version or an unknown kind raises
`CheckpointError`, and the bytes are not touched. A user's value (saved, answered, asked) that has no JSON form degrades
to its description; the rest of the checkpoint is kept.

The two views of a stop begin with the same messages, which are written once; the runs inside it may share them too. A
session also stores these messages, so its store leaves them out of the checkpoint: the size of a stop depends on the
length of its own turn only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import asdict

from safepoint._core.reasons import Reason
from safepoint._values import Value
from safepoint.agent.checkpoint import Checkpoint, OpenCall, Question
from safepoint.agent.ledger import LedgerEntry
from safepoint.agent.stop_reason import StopReason
from safepoint.agent.usage import Usage
from safepoint.errors import CheckpointError
from safepoint.history.json_codec import Codec
from safepoint.history.parts import Message, common
from safepoint.tools.call_state import CallState

MAGIC = "safepoint-checkpoint"
VERSION = 3  # 2 leaves out messages that are stored already; 3 allows results with parts
_READS = ("1", "2", "3")


class StoredMemory(Value, frozen=True):
    """A `CallState` as it is stored. A stored value that lacks a field is damaged."""

    saved: Any  # Any: values of the user's own, as below
    answers: tuple[Any, ...]
    once: Mapping[str, Any]
    approvals: tuple[Any, ...]

    @staticmethod
    def of(memory: CallState) -> StoredMemory:
        return StoredMemory(memory.saved, memory.answers, memory.once, memory.approvals)

    def restored(self) -> CallState:
        return CallState(self.saved, self.answers, dict(self.once), self.approvals)


class StoredCall(Value, frozen=True):
    """An `OpenCall` as it is stored."""

    call_id: str
    tool: str
    memory: StoredMemory
    question: Question | None
    child: StoredCheckpoint | None
    decided: bool | str | None = None  # absent in the first files


class StoredCheckpoint(Value, frozen=True):
    """A `Checkpoint` as it is stored.

    `known`: the number of messages at the start of the closed view that are left out. `shared`: the number of messages
    that the open view shares with the start of the closed one, also left out. Version 1 has all messages twice, and no
    `hooks`.
    """

    id: str
    agent: str
    run_id: str
    stop_reason: StopReason
    messages: tuple[Message, ...]
    open_messages: tuple[Message, ...]
    ledger: tuple[LedgerEntry, ...]
    calls: tuple[StoredCall, ...]
    pending: tuple[Message, ...]
    step: int
    spent: Usage
    used: Mapping[str, float]
    reason: Reason | None
    known: int = 0
    shared: int = 0
    hooks: tuple[StoredCall, ...] = ()
    since: tuple[LedgerEntry, ...] = ()


ENTRY: Codec[LedgerEntry] = Codec(LedgerEntry)
_MEMORY: Codec[StoredMemory] = Codec(StoredMemory)
_CHECKPOINT: Codec[StoredCheckpoint] = Codec(StoredCheckpoint)


def encode(checkpoint: Checkpoint, *, known: int = 0) -> bytes:
    """`known`: leave out that many messages at the start of the closed view; the reader has them."""
    body = _CHECKPOINT.encode(to_stored(checkpoint, known))
    return f"{MAGIC} {VERSION} {digest(body)}\n".encode() + body


def decode(data: bytes, conversation: Sequence[Message] = ()) -> Checkpoint:
    """`conversation`: the source of the messages that were left out."""
    return _decoded(data, conversation)


def decode_dropped(data: bytes) -> Checkpoint:
    """The dropped form of the checkpoint, which needs no messages."""
    return _decoded(data, None).drop()


def _decoded(data: bytes, conversation: Sequence[Message] | None) -> Checkpoint:
    body = _body(data)
    try:
        return from_stored(_CHECKPOINT.decode(body), conversation)
    except (ValueError, TypeError, RecursionError) as error:
        raise CheckpointError(f"the checkpoint can't be read: {error!r}") from error


def _body(data: bytes) -> bytes:
    if not isinstance(data, bytes | bytearray | memoryview):  # pyright: ignore[reportUnnecessaryIsInstance]  # untyped callers
        raise CheckpointError(f"a checkpoint is read from bytes, not from {type(data).__name__}")
    head, newline, body = bytes(data).partition(b"\n")
    words = head.decode("ascii", "replace").split(" ")
    if not newline or len(words) != 3 or words[0] != MAGIC or not words[1].isdecimal():
        raise CheckpointError("these bytes are not a checkpoint: they do not begin with its header")
    if words[1] not in _READS:
        raise CheckpointError(
            f"the checkpoint has version {words[1][:20]}, this Safepoint reads {VERSION}: use the one that wrote it"
        )
    if words[2] != digest(body):
        raise CheckpointError("the checkpoint is damaged: its digest does not fit, perhaps it was cut short")
    return body


def digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()[:32]


def encode_memory(memory: CallState) -> bytes:
    return _MEMORY.encode(StoredMemory.of(memory))


def decode_memory(data: bytes | str) -> CallState:
    """Decode the state of a call. Raises ValueError."""
    return _MEMORY.decode(data).restored()


def to_stored(checkpoint: Checkpoint, known: int = 0) -> StoredCheckpoint:
    """Copy fields by name, except the ones given here, whose stored form differs."""
    closed, open_view = checkpoint.messages, checkpoint.open_messages
    shared = common(closed, open_view)
    changed: dict[str, Any] = {  # Any: each of its field's type
        "known": known,
        "messages": closed[known:],
        "shared": shared,
        "open_messages": open_view[shared:],
        "calls": _stored_calls(checkpoint.calls.values(), closed),
        "hooks": _stored_calls(checkpoint.hooks.values(), closed),
    }
    return StoredCheckpoint(**{**asdict(checkpoint), **changed})


def from_stored(stored: StoredCheckpoint, conversation: Sequence[Message] | None = ()) -> Checkpoint:
    """`conversation`: None if the messages are not wanted."""
    closed, open_view = ((), ()) if conversation is None else _views(stored, conversation)
    around = None if conversation is None else closed
    changed: dict[str, Any] = {  # Any: each of its field's type
        "messages": closed,
        "open_messages": open_view,
        "calls": {call.call_id: _open_call(call, around) for call in stored.calls},
        "hooks": {hook.call_id: _open_call(hook, around) for hook in stored.hooks},
    }
    kept = {name: value for name, value in asdict(stored).items() if name not in ("known", "shared")}
    return Checkpoint(**{**kept, **changed})


def _views(
    stored: StoredCheckpoint, conversation: Sequence[Message]
) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
    if not 0 <= stored.known <= len(conversation):
        raise ValueError(f"it was stored in a session, without the {stored.known} messages that are there")
    closed = (*conversation[: stored.known], *stored.messages)
    if not 0 <= stored.shared <= len(closed):
        raise ValueError("it is shorter than it says")
    return closed, (*closed[: stored.shared], *stored.open_messages)


def _stored_calls(calls: Iterable[OpenCall], around: Sequence[Message]) -> tuple[StoredCall, ...]:
    """A run inside may begin with the messages `around` it; they are left out then."""
    return tuple(
        StoredCall(
            call.call_id,
            call.tool,
            StoredMemory.of(call.memory),
            call.question,
            None if call.child is None else to_stored(call.child, common(around, call.child.messages)),
            call.decided,
        )
        for call in calls
    )


def _open_call(call: StoredCall, around: Sequence[Message] | None) -> OpenCall:
    child = None if call.child is None else from_stored(call.child, around)
    return OpenCall(call.call_id, call.tool, call.memory.restored(), call.question, child, call.decided)

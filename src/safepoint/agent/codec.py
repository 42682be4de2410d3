"""Checkpoints as bytes: one line that names format, version and digest, then JSON. No pickle, nothing executable.

Every field is written and read by name, by the functions below and nothing else. Reading is strict: a wrong digest, a
later version or an unknown kind is a `CheckpointError`, and the bytes stay what they are. A value of the user's own
(saved, answered, asked) that has no JSON form degrades to its description; the checkpoint itself is never lost for it.

The two views of a stop begin with the same messages, which are written once; so may the runs inside it. A session has
them, too: in its store the messages that stand there anyway are left out, so that a stop costs what its own turn is
long and no more.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence

from safepoint._core.reasons import Reason, Source
from safepoint.agent.checkpoint import Checkpoint, OpenCall, Question
from safepoint.agent.ledger import LedgerEntry
from safepoint.agent.result import StopReason
from safepoint.agent.usage import Usage
from safepoint.errors import CheckpointError
from safepoint.history.encoding import (
    Json,
    decode_attachments,
    decode_message,
    decode_value,
    encode_attachments,
    encode_message,
    encode_value,
    encode_values,
)
from safepoint.history.parts import Message, common
from safepoint.history.states import LedgerState
from safepoint.tools.call_state import CallState
from safepoint.tools.options import Effect

MAGIC = "safepoint-checkpoint"
VERSION = 3  # since 2, messages that were written already are left out; since 3, results may have parts
_READS = ("1", "2", "3")


def encode(checkpoint: Checkpoint, *, known: int = 0) -> bytes:
    """`known`: so many messages of the closed view, from the first, are left out; whoever decodes it has them."""
    plain = encode_checkpoint(checkpoint, known)
    body = json.dumps(plain, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode()
    return f"{MAGIC} {VERSION} {digest(body)}\n".encode() + body


def decode(data: bytes, conversation: Sequence[Message] = ()) -> Checkpoint:
    """`conversation`: where the messages are that were left out."""
    return _decoded(data, lambda body: decode_checkpoint(body, conversation))


def decode_dropped(data: bytes) -> Checkpoint:
    """What is left of it once it is dropped, for which no message is needed."""
    return _decoded(data, lambda body: decode_checkpoint(body, None)).drop()


def _decoded(data: bytes, read: Callable[[Json], Checkpoint]) -> Checkpoint:
    body = _body(data)
    try:
        return read(json.loads(body))
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
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


# -- writing and reading, field by field -----------------------------------------------------------------------------


def encode_checkpoint(checkpoint: Checkpoint, known: int = 0) -> Json:
    closed, open_view = checkpoint.messages, checkpoint.open_messages
    shared = common(closed, open_view)
    return {
        "id": checkpoint.id,
        "agent": checkpoint.agent,
        "run_id": checkpoint.run_id,
        "stop_reason": str(checkpoint.stop_reason),
        "known": known,
        "messages": [encode_message(message) for message in closed[known:]],
        "shared": shared,
        "open_messages": [encode_message(message) for message in open_view[shared:]],
        "ledger": [encode_entry(entry) for entry in checkpoint.ledger],
        "calls": [_open_call(call, closed) for call in checkpoint.calls.values()],
        "pending": [encode_message(message) for message in checkpoint.pending],
        "step": checkpoint.step,
        "spent": encode_usage(checkpoint.spent),
        "used": {kind: float(amount) for kind, amount in checkpoint.used.items()},
        "reason": None if checkpoint.reason is None else encode_reason(checkpoint.reason),
        "hooks": [_open_call(call, closed) for call in checkpoint.hooks.values()],
    }


def decode_checkpoint(data: Json, conversation: Sequence[Message] | None = ()) -> Checkpoint:
    """`conversation`: None if no message of it is wanted."""
    closed, open_view = ((), ()) if conversation is None else _views(data, conversation)
    around = None if conversation is None else closed
    calls = [_read_open_call(call, around) for call in data["calls"]]
    hooks = [_read_open_call(call, around) for call in data.get("hooks", ())]  # the first files have none
    return Checkpoint(
        str(data["id"]),
        str(data["agent"]),
        str(data["run_id"]),
        StopReason(data["stop_reason"]),
        closed,
        open_view,
        tuple(decode_entry(entry) for entry in data["ledger"]),
        {call.call_id: call for call in calls},
        int(data["step"]),
        decode_usage(data["spent"]),
        None if data["reason"] is None else decode_reason(data["reason"]),
        tuple(decode_message(message) for message in data["pending"]),
        {str(kind): float(amount) for kind, amount in data["used"].items()},
        {call.call_id: call for call in hooks},
    )


def _views(data: Json, conversation: Sequence[Message]) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
    known, shared = int(data.get("known", 0)), int(data.get("shared", 0))  # version 1 has all messages twice
    if not 0 <= known <= len(conversation):
        raise ValueError(f"it was stored in a session, without the {known} messages that are there")
    closed = (*conversation[:known], *(decode_message(message) for message in data["messages"]))
    if not 0 <= shared <= len(closed):
        raise ValueError("it is shorter than it says")
    return closed, (*closed[:shared], *(decode_message(message) for message in data["open_messages"]))


def _open_call(call: OpenCall, around: Sequence[Message]) -> Json:
    """A run inside may begin with the messages `around` it, and then it leaves them out."""
    question, child = call.question, call.child
    return {
        "call_id": call.call_id,
        "tool": call.tool,
        "memory": encode_memory(call.memory),
        "question": None
        if question is None
        else {
            "id": question.id,
            "tool": question.tool,
            "payload": encode_value(question.payload),
            "kind": question.kind,
        },
        "child": None if child is None else encode_checkpoint(child, common(around, child.messages)),
        "decided": call.decided,
    }


def _read_open_call(data: Json, around: Sequence[Message] | None) -> OpenCall:
    memory, question, child = data["memory"], data["question"], data["child"]
    return OpenCall(
        data["call_id"],
        data["tool"],
        decode_memory(memory),
        None
        if question is None
        else Question(question["id"], question["tool"], decode_value(question["payload"]), question["kind"]),
        None if child is None else decode_checkpoint(child, around),
        data.get("decided"),  # the first files have none
    )


def encode_memory(memory: CallState) -> Json:
    return {
        "saved": encode_value(memory.saved),
        "answers": [encode_value(answer) for answer in memory.answers],
        "once": encode_values(memory.once),
        "approvals": [encode_value(answer) for answer in memory.approvals],
    }


def decode_memory(data: Json) -> CallState:
    fields = {key: decode_value(value) for key, value in data.items()}
    return CallState(fields["saved"], tuple(fields["answers"]), fields["once"], tuple(fields["approvals"]))


def encode_entry(entry: LedgerEntry) -> Json:
    return {
        "call_id": entry.call_id,
        "name": entry.name,
        "args": encode_values(entry.args),
        "state": str(entry.state),
        "effect": str(entry.effect),
        "content": entry.content,
        "error": entry.error,
        "still_running": entry.still_running,
        "point": entry.point,
        "started_at": entry.started_at,
        "ended_at": entry.ended_at,
        "remote": entry.remote,
        **encode_attachments(entry.parts),
    }


def decode_entry(data: Json) -> LedgerEntry:
    fields: Json = {
        **data,
        "args": decode_value(data["args"]),
        "state": LedgerState(data["state"]),
        "effect": Effect(data["effect"]),
        "parts": decode_attachments(data),
    }
    return LedgerEntry(**fields)


def encode_usage(usage: Usage) -> Json:
    return {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "model_calls": usage.model_calls,
        "estimated": usage.estimated,
        "cached_tokens": usage.cached_tokens,
        "reasoning_tokens": usage.reasoning_tokens,
    }


def decode_usage(data: Json) -> Usage:
    return Usage(**data)


def encode_reason(reason: Reason) -> Json:
    return {"text": reason.text, "source": str(reason.source), "by": reason.by}


def decode_reason(data: Json) -> Reason:
    return Reason(data["text"], Source(data["source"]), data["by"])

"""The facts of a run inside another one as JSON and back, for a store that keeps them as a list."""

from __future__ import annotations

from safepoint.agent.codec import (
    decode_checkpoint,
    decode_entry,
    decode_memory,
    decode_usage,
    encode_checkpoint,
    encode_entry,
    encode_memory,
    encode_usage,
)
from safepoint.agent.journal import Called, Counted, Ended, Fact, Inside, Opened, Said
from safepoint.agent.result import StopReason
from safepoint.history.encoding import Json, decode_message, encode_message


def encode_fact(fact: Fact) -> Json:
    """Field by field. How many messages a store may leave out is not kept: it has left out none."""
    match fact:
        case Opened(run_id, agent, index, messages, continues, ledger, at, base):
            return {
                "kind": "opened",
                "run_id": run_id,
                "agent": agent,
                "index": index,
                "messages": [encode_message(message) for message in messages],
                "continues": continues,
                "ledger": [encode_entry(entry) for entry in ledger],
                "at": at,
                "base": None if base is None else encode_checkpoint(base),
            }
        case Said(index, message, at):
            return {"kind": "said", "index": index, "message": encode_message(message), "at": at}
        case Called(entry, memory):
            remembered = None if memory is None else encode_memory(memory)
            return {"kind": "called", "entry": encode_entry(entry), "memory": remembered}
        case Counted():
            return {"kind": "counted", **encode_counted(fact)}
        case Inside(key, inner):
            return {"kind": "inside", "key": key, "fact": encode_fact(inner)}
        case Ended(run_id, stop_reason, index, messages, ledger, usage, checkpoint, at):
            return {
                "kind": "ended",
                "run_id": run_id,
                "stop_reason": str(stop_reason),
                "index": index,
                "messages": [encode_message(message) for message in messages],
                "ledger": [encode_entry(entry) for entry in ledger],
                "usage": encode_usage(usage),
                "checkpoint": None if checkpoint is None else encode_checkpoint(checkpoint),
                "at": at,
            }


def decode_fact(data: Json) -> Fact:
    match data["kind"]:
        case "opened":
            return _read_opened(data)
        case "said":
            return Said(data["index"], decode_message(data["message"]), data["at"])
        case "called":
            memory = data["memory"]
            return Called(decode_entry(data["entry"]), None if memory is None else decode_memory(memory))
        case "counted":
            return decode_counted(data)
        case "inside":
            return Inside(data["key"], decode_fact(data["fact"]))
        case "ended":
            return _read_ended(data)
        case kind:
            raise ValueError(f"no fact of the kind {kind!r}")


def _read_opened(data: Json) -> Opened:
    base = data["base"]
    return Opened(
        data["run_id"],
        data["agent"],
        data["index"],
        tuple(decode_message(message) for message in data["messages"]),
        data["continues"],
        tuple(decode_entry(entry) for entry in data["ledger"]),
        data["at"],
        None if base is None else decode_checkpoint(base),
    )


def _read_ended(data: Json) -> Ended:
    checkpoint = data["checkpoint"]
    return Ended(
        data["run_id"],
        StopReason(data["stop_reason"]),
        data["index"],
        tuple(decode_message(message) for message in data["messages"]),
        tuple(decode_entry(entry) for entry in data["ledger"]),
        decode_usage(data["usage"]),
        None if checkpoint is None else decode_checkpoint(checkpoint),
        data["at"],
    )


def encode_counted(counted: Counted) -> Json:
    return {
        "step": counted.step,
        "spent": encode_usage(counted.spent),
        "used": {kind: float(amount) for kind, amount in counted.used.items()},
        "pending": [encode_message(message) for message in counted.pending],
    }


def decode_counted(data: Json) -> Counted:
    used = {str(kind): float(amount) for kind, amount in data["used"].items()}
    pending = tuple(decode_message(message) for message in data["pending"])
    return Counted(int(data["step"]), decode_usage(data["spent"]), used, pending)

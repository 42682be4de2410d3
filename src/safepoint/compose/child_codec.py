"""What a checkpoint keeps of a child that has finished: its conversation, its ledger, its usage, and its own children.

The typed answer is not kept: the agent that gave it makes it again from the text, or from its children's answers. So a
checkpoint holds nothing that only this process could read.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from safepoint._core.endings import Cancellation
from safepoint._core.points import Level
from safepoint.agent.codec import (
    decode_entry,
    decode_reason,
    decode_usage,
    encode_entry,
    encode_reason,
    encode_usage,
)
from safepoint.agent.result import ChildResult, RunResult, StopReason
from safepoint.errors import CheckpointError
from safepoint.history.encoding import Json, decode_message, encode_message

if TYPE_CHECKING:
    from safepoint.agent.base import BaseAgent

# Any: results of every type, as everywhere in this module.
AnyResult = RunResult[Any]


def dump_result(result: AnyResult) -> str:
    return json.dumps(_encode(result), ensure_ascii=True, separators=(",", ":"))


def load_result(agent: BaseAgent[Any, Any], data: object) -> AnyResult:
    """The result of a finished run of that agent, with its typed answer."""
    try:
        if not isinstance(data, str):
            raise TypeError(f"{type(data).__name__} is no stored result")
        return _decode(json.loads(data), agent)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"what the checkpoint keeps of {agent.name!r} can't be read: {error!r}") from error


def _encode(result: AnyResult) -> Json:
    return {
        "run_id": result.run_id,
        "stop_reason": str(result.stop_reason),
        "text": result.text,
        "messages": [encode_message(message) for message in result.messages],
        "ledger": [encode_entry(entry) for entry in result.ledger],
        "usage": encode_usage(result.usage),
        "cancellation": None if result.cancellation is None else _encode_cancellation(result.cancellation),
        "children": [
            {"name": child.name, "path": child.path, "result": _encode(child.result)} for child in result.children
        ],
    }


def _decode(data: Json, agent: BaseAgent[Any, Any]) -> AnyResult:
    children = tuple(
        ChildResult(child["name"], child["path"], _decode(child["result"], agent.member(child["name"])))
        for child in data["children"]
    )
    cancellation = data.get("cancellation")  # the first files have none
    result: AnyResult = RunResult(
        data["run_id"],
        StopReason(data["stop_reason"]),
        data["text"],
        [decode_message(message) for message in data["messages"]],
        tuple(decode_entry(entry) for entry in data["ledger"]),
        decode_usage(data["usage"]),
        None if cancellation is None else _decode_cancellation(cancellation),
        children=children,
    )
    if result.stop_reason is not StopReason.END_TURN:
        return result
    return replace(result, value=agent.output_of(result))


def _encode_cancellation(cancellation: Cancellation) -> Json:
    """Of a branch that was stopped alone: whoever joins the branches may ask why."""
    return {
        "reason": encode_reason(cancellation.reason),
        "reasons": [encode_reason(reason) for reason in cancellation.reasons],
        "place": cancellation.place,
        "level": int(cancellation.level),
        "escalated": cancellation.escalated,
        "timed_out": cancellation.timed_out,
        "asked_at": cancellation.asked_at,
        "stopped_at": cancellation.stopped_at,
    }


def _decode_cancellation(data: Json) -> Cancellation:
    fields: Json = {
        **data,
        "reason": decode_reason(data["reason"]),
        "reasons": tuple(decode_reason(reason) for reason in data["reasons"]),
        "level": Level(data["level"]),
    }
    return Cancellation(**fields)

"""The stored form of a finished child: its conversation, its ledger, its usage, and its own children.

The typed answer is not stored: the agent that gave it makes it again from the text, or from its children's answers. So
a checkpoint holds nothing that only this process could read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from safepoint._core.endings import Cancellation
from safepoint._values import Value
from safepoint.agent.ledger import LedgerEntry
from safepoint.agent.result import ChildResult, RunResult, StopReason
from safepoint.agent.usage import Usage
from safepoint.errors import CheckpointError
from safepoint.history.json_codec import Codec
from safepoint.history.parts import Message

if TYPE_CHECKING:
    from safepoint.agent.base import BaseAgent

# Any: results of every type, as everywhere in this module.
AnyResult = RunResult[Any]


class StoredChild(Value, frozen=True):
    """A `ChildResult` as it is stored."""

    name: str
    path: str
    result: StoredResult


class StoredResult(Value, frozen=True):
    """A `RunResult` as it is stored. `cancellation`: of a branch that was stopped alone; a join may ask why."""

    run_id: str
    stop_reason: StopReason
    text: str
    messages: tuple[Message, ...]
    ledger: tuple[LedgerEntry, ...]
    usage: Usage
    children: tuple[StoredChild, ...]
    cancellation: Cancellation | None = None  # absent in the first files


_RESULT: Codec[StoredResult] = Codec(StoredResult)


def dump_result(result: AnyResult) -> str:
    return _RESULT.encode(_to_stored(result)).decode()


def load_result(agent: BaseAgent[Any, Any], data: object) -> AnyResult:
    """The result of a finished run of that agent, with its typed answer."""
    try:
        if not isinstance(data, str):
            raise TypeError(f"{type(data).__name__} is no stored result")
        return _from_stored(_RESULT.decode(data), agent)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"what the checkpoint keeps of {agent.name!r} can't be read: {error!r}") from error


def _to_stored(result: AnyResult) -> StoredResult:
    return StoredResult(
        result.run_id,
        result.stop_reason,
        result.text,
        tuple(result.messages),
        result.ledger,
        result.usage,
        tuple(StoredChild(child.name, child.path, _to_stored(child.result)) for child in result.children),
        result.cancellation,
    )


def _from_stored(stored: StoredResult, agent: BaseAgent[Any, Any]) -> AnyResult:
    children = tuple(
        ChildResult(child.name, child.path, _from_stored(child.result, agent.member(child.name)))
        for child in stored.children
    )
    result: AnyResult = RunResult(
        stored.run_id,
        stored.stop_reason,
        stored.text,
        list(stored.messages),
        stored.ledger,
        stored.usage,
        stored.cancellation,
        children=children,
    )
    if result.stop_reason is not StopReason.END_TURN:
        return result
    return replace(result, value=agent.output_of(result))

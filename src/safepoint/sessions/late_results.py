"""Late results: calls that returned after their run had ended, and how the next run learns of them. Pure.

A new run reads of them in the remark that closes the conversation. A run that continues the old one takes a late result
as the result of its own call, and does not make that call again. A call inside a sub-agent, or inside a child of a
composite, has the name that a question from there has: `child/call_1`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from msgspec.structs import replace

from safepoint._core.orphans import Orphan
from safepoint.agent.checkpoint import Checkpoint
from safepoint.agent.journal import Opened, Said
from safepoint.agent.ledger import LedgerEntry
from safepoint.agent.result import RunResult, StopReason
from safepoint.agent.run_context import RunContext
from safepoint.history.closing import quoted
from safepoint.history.parts import Message, Notice
from safepoint.history.states import LedgerState
from safepoint.storage.session_data import Change, LateResult, LateSet, Stored
from safepoint.tools.content import content_of


def ids_inside(checkpoint: Checkpoint | None, path: str, prefix: str = "") -> dict[str, str]:
    """The calls of runs inside the one at that path: from the path of each one's node to its id as seen from there."""
    found: dict[str, str] = {}
    for key, child in _inside(checkpoint):
        # A child of a composite stands right below it, a sub-agent below its call.
        names = [entry.name for entry in checkpoint.ledger if entry.call_id == key] if checkpoint is not None else []
        for place in (f"{path}/{key}", *(f"{path}/{name}:{key}/{child.agent}" for name in names)):
            found |= {
                f"{place}/{entry.name}:{entry.call_id}": f"{prefix}{key}/{entry.call_id}" for entry in child.ledger
            }
            found |= ids_inside(child, place, f"{prefix}{key}/")
    return found


def _inside(checkpoint: Checkpoint | None) -> list[tuple[str, Checkpoint]]:
    calls = checkpoint.calls.items() if checkpoint is not None else ()
    return [(key, call.child) for key, call in calls if call.child is not None]


def late_result(orphan: Orphan, ids: Mapping[str, str]) -> LateResult | None:
    """What it brought, if it is a tool call and has returned. `ids`: of calls in runs inside."""
    call_id = orphan.path.rpartition(f"/{orphan.name}:")[2]
    if not orphan.returned or "/" in call_id:
        return None  # it still runs, or was cancelled, or has failed; or it is a hook or an undo
    content = _content(orphan.result)
    return LateResult(ids.get(orphan.path, call_id), orphan.name, content) if content is not None else None


def _content(value: object) -> str | None:
    """What the model is told of it; None for a sub-agent that was stopped, waits for a person, or has failed."""
    if not issubclass(type(value), RunResult):  # isinstance would ask the value for its class, and it may raise
        return content_of(value).text
    result = cast("RunResult[Any]", value)  # Any: of any output type
    if result.cancellation is not None or result.stop_reason in (StopReason.INTERRUPTED, StopReason.ERROR):
        return None
    return content_of(result.text).text


def back_already(record: RunContext | None, checkpoint: Checkpoint | None, known: Sequence[LateResult]) -> list[Change]:
    """What the live run has left behind and what has come back since is stored with its end."""
    if record is None or not record.orphans:
        return []
    ids = ids_inside(checkpoint, record.node.path)
    came = [late for orphan in record.orphans if (late := late_result(orphan, ids)) is not None]
    return [LateSet((*known, *came))] if came else []


def late_change(stored: Stored, opened: Opened) -> list[Change]:
    """What the beginning of a run changes: the run reads of late results, or takes those of its own calls."""
    if opened.continues is not None:
        used_ids = {entry.call_id for entry in opened.ledger if entry.state is LedgerState.FINISHED_LATE}
        used_ids |= _used_inside(opened.base)
        left = tuple(late for late in stored.late if late.call_id not in used_ids)
        return [LateSet(left)] if left != stored.late else []
    if not _mentions_late(stored):
        return []
    return [Said(opened.index - 1, with_late_notes(stored)[-1], opened.at), LateSet(())]


def with_late_notes(stored: Stored) -> Sequence[Message]:
    """The conversation, its last remark completed with what came back late."""
    if not _mentions_late(stored):
        return stored.messages
    messages = list(stored.messages)
    sentences = " ".join(
        f"The call {late.name} finished after all: {quoted(late.content, 2000)}." for late in stored.late
    )
    before = " ".join(part.text for part in messages[-1].parts if isinstance(part, Notice))
    parts = tuple(part for part in messages[-1].parts if not isinstance(part, Notice))
    messages[-1] = replace(messages[-1], parts=(*parts, Notice(f"{before} {sentences}".strip())))
    return messages


def _used_inside(checkpoint: Checkpoint | None, prefix: str = "") -> set[str]:
    used_ids: set[str] = set()
    for key, child in _inside(checkpoint):
        late = [entry.call_id for entry in child.ledger if entry.state is LedgerState.FINISHED_LATE]
        used_ids |= {f"{prefix}{key}/{call_id}" for call_id in late} | _used_inside(child, f"{prefix}{key}/")
    return used_ids


def completed(checkpoint: Checkpoint, late: Iterable[LateResult]) -> Checkpoint:
    """The checkpoint, its cut calls finished by what they brought, those of runs inside as well."""
    return _all_completed(checkpoint, {(each.call_id, each.name): each.content for each in late}, "")


def _all_completed(checkpoint: Checkpoint, came: Mapping[tuple[str, str], str], prefix: str) -> Checkpoint:
    calls = dict(checkpoint.calls)
    for key, child in _inside(checkpoint):
        calls[key] = replace(calls[key], child=_all_completed(child, came, f"{prefix}{key}/"))
    ledger = tuple(_completed(entry, came, prefix) for entry in checkpoint.ledger)
    return replace(checkpoint, ledger=ledger, calls=calls)


def _completed(entry: LedgerEntry, came: Mapping[tuple[str, str], str], prefix: str) -> LedgerEntry:
    content = came.get((f"{prefix}{entry.call_id}", entry.name))
    if content is None or entry.state is not LedgerState.CUT:
        return entry
    return replace(entry, state=LedgerState.FINISHED_LATE, content=content, still_running=False)


def _mentions_late(stored: Stored) -> bool:
    return bool(stored.late and stored.messages) and stored.messages[-1].role == "assistant"

"""Back to an earlier step: a checkpoint of how a run was then, and what to do about the calls made since.

The earlier checkpoint is computed from the later one, in a plain function. Nothing is undone before a run continues it:
then the undos run, the latest call first, as work of that run. What has no undo stays done, and the model is told.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from safepoint._core.reasons import Reason
from safepoint._core.work import Failed, Returned
from safepoint.agent.checkpoint import Checkpoint
from safepoint.agent.ledger import LedgerEntry, has_effect
from safepoint.agent.run_context import RunContext
from safepoint.agent.steering import joined
from safepoint.agent.stop_reason import StopReason
from safepoint.agent.tool_context import ToolContext
from safepoint.errors import CheckpointError
from safepoint.history.closing import close_history, quoted, remark
from safepoint.history.parts import Message, Text
from safepoint.history.rendering import render_error
from safepoint.history.states import LedgerState
from safepoint.tools.function import Tool

if TYPE_CHECKING:
    from safepoint.agent.work_runner import WorkRunner

_DONE = frozenset({LedgerState.FINISHED, LedgerState.FINISHED_LATE, LedgerState.CUT, LedgerState.STOPPED})


def at_step(checkpoint: Checkpoint, step: int) -> Checkpoint:
    """The checkpoint of the same run at the end of an earlier step; 0 is before its first model call."""
    if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step < max(checkpoint.step, 1):  # pyright: ignore[reportUnnecessaryIsInstance]  # untyped callers
        raise ValueError(f"at({step!r}): write a step from 0 up, below the {checkpoint.step} of this run")
    spoken = [place for place, each in enumerate(checkpoint.open_messages) if each.role == "assistant"]
    if checkpoint.dropped or len(spoken) < checkpoint.step:
        raise CheckpointError(
            "this checkpoint has no steps of its own to go back to: take that of one child, result.children, or the "
            "run's own before a new message followed"
        )
    replies = spoken[len(spoken) - checkpoint.step :]
    kept = checkpoint.open_messages[: replies[step]] if replies else checkpoint.open_messages
    before = {call.id for message in kept for call in message.tool_calls}
    since = tuple([entry for entry in checkpoint.ledger if entry.call_id not in before and has_effect(entry)])
    why = f"taken back to the end of step {step}" if step else "taken back to the beginning"
    notice = remark(f"The conversation was {why}. {_listed('Calls made since', since)}".strip())
    return replace(
        checkpoint,
        id=f"checkpoint_{uuid.uuid4().hex}",
        stop_reason=StopReason.CANCELLED,
        messages=close_history(kept, notice=notice),
        open_messages=tuple(kept),
        ledger=tuple([entry for entry in checkpoint.ledger if entry.call_id in before]),
        calls={},
        hooks={},
        pending=(),
        step=step,
        reason=Reason(why),
        since=(*checkpoint.since, *since),
    )


def _listed(what: str, entries: Sequence[LedgerEntry]) -> str:
    calls = ", ".join(f"{quoted(entry.name, 64)} ({entry.state})" for entry in entries)
    return f"{what}: {calls}." if calls else ""


async def undo_since(runner: WorkRunner, record: RunContext, since: tuple[LedgerEntry, ...]) -> None:
    """Undo the calls made since the step that this run goes back to, the latest first, and tell the model.

    What a stop leaves over goes into the checkpoint of that stop. Cancellation: as in `WorkRunner.wait`.
    """
    record.since, record.taken_back = since, since
    while record.since:
        entry = record.since[-1]
        undone = await _undone(runner, record, entry)
        if undone is None:
            return
        record.since = record.since[:-1]
        record.taken_back = tuple([undone if each is entry else each for each in record.taken_back])
    over = [entry for entry in record.taken_back if entry.state is LedgerState.COMPENSATED]
    left = [entry for entry in record.taken_back if entry.state is not LedgerState.COMPENSATED]
    report = f"{_listed('Undone since then', over)} {_listed('What these calls did remains', left)}".strip()
    note = Message("user", (Text(remark(f"The conversation was taken back to here. {report}")),))
    record.messages[:] = joined(record.messages, [note])


async def _undone(runner: WorkRunner, record: RunContext, entry: LedgerEntry) -> LedgerEntry | None:
    """The entry after its undo, or as it was if it has none; None if the run was stopped first.

    Cancellation: as in `WorkRunner.wait`.
    """
    tool = record.agent.tools.get(entry.name)
    if not isinstance(tool, Tool) or tool.options.undo is None or entry.state not in _DONE:
        return entry
    outcome = await runner.perform(partial(_undo, runner, record, tool, entry), f"undo of {entry.name}")
    if isinstance(outcome, Returned):
        return replace(entry, state=LedgerState.COMPENSATED)
    if isinstance(outcome, Failed):
        return replace(entry, error=f"its undo failed: {render_error(outcome.error)}")
    return None


async def _undo(runner: WorkRunner, record: RunContext, tool: Tool[..., object], entry: LedgerEntry) -> None:
    """Cancellation: cuts the undo."""
    ladder = tool.ladder or record.ladder
    context = ToolContext(deps=record.deps, run=record.run, call_id=entry.call_id, node=record.node, ladder=ladder)
    assert runner.work is not None, "this is that work"
    context.bind(runner.work, runner)
    async with asyncio.timeout(ladder.undo):
        await tool.undo(context, tool.validate(entry.args))

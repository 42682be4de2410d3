"""What a cancel would do, before anybody asks for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from safepoint._core.ladder import Rung, plan
from safepoint._core.points import Level, SafePoint
from safepoint.agent.tool_call import BatchedCall


@dataclass(frozen=True, slots=True)
class Preview:
    """Names of tool calls, each by `name:call_id`. `seconds`: how long the stop may take at most.

    `cut`: would be cut while running. `finish`: runs on to its end first. `not_started`: would never start.
    `in_doubt`: would be cut, and their effect could not be told.
    """

    cut: tuple[str, ...] = ()
    finish: tuple[str, ...] = ()
    not_started: tuple[str, ...] = ()
    in_doubt: tuple[str, ...] = ()
    seconds: float | None = 0.0


def joined(previews: Iterable[Preview]) -> Preview:
    """The same cancel, for several runs of one tree."""
    every = tuple(previews)
    seconds = [each.seconds for each in every if each.seconds is not None]
    return Preview(
        tuple(name for each in every for name in each.cut),
        tuple(name for each in every for name in each.finish),
        tuple(name for each in every for name in each.not_started),
        tuple(name for each in every for name in each.in_doubt),
        max(seconds, default=0.0) if len(seconds) == len(every) else None,
    )


def preview(calls: Sequence[BatchedCall], at: SafePoint) -> Preview:
    """For a safe point `seconds` is None: work that is in flight takes as long as it takes."""
    running = [call for call in calls if call.running]
    queued = [call for call in calls if call.queued]
    if at.level is Level.SAFE:
        starts = (
            [] if at.covers("after_tool") else [call for call in queued if call.mild or not at.covers("before_effect")]
        )
        never = [call for call in queued if call not in starts]
        return Preview(finish=_names(running + starts), not_started=_names(never), seconds=None if running else 0.0)
    force = at.level is Level.FORCE
    finish = [] if force else [call for call in running if _rungs(call, force)[0] is Rung.FINISH]
    cut = [call for call in running if call not in finish]
    return Preview(
        cut=_names(cut),
        finish=_names(finish),
        not_started=_names(queued),
        in_doubt=_names([call for call in cut if not call.mild]),
        seconds=max((_seconds(call, force=force) for call in running), default=0.0),
    )


def _names(calls: list[BatchedCall]) -> tuple[str, ...]:
    return tuple(f"{call.call.name}:{call.call.id}" for call in calls)


def _rungs(call: BatchedCall, force: bool) -> list[Rung]:
    assert call.tool is not None
    return [climb.rung for climb in plan(call.tool.stop_policy, call.ladder, force=force)]


def _seconds(call: BatchedCall, *, force: bool) -> float:
    assert call.tool is not None
    return sum(climb.seconds for climb in plan(call.tool.stop_policy, call.ladder, force=force))

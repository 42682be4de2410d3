"""What a cancel would do, computed before it is asked for.

A preview is computed from the work that runs now: each call with its fate, and how long the stop may take at most. The
bound counts the remaining rungs, open shields, the undo of each call that would be cut, and the runs inside a call. It
cannot count unknown times: those of a storage, or of a shield that a call opens while it is allowed to finish.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum

from safepoint._core.ladder import Rung, WorkKind, plan
from safepoint._core.points import Level, SafePoint
from safepoint._core.tree import Node
from safepoint._core.work import Work
from safepoint._values import Value
from safepoint.agent.tool_call import BatchedCall
from safepoint.agent.tool_execution import Phase, ToolExecution
from safepoint.history.states import LedgerState
from safepoint.tools.options import Effect


class Fate(StrEnum):
    """The fate of a call."""

    FINISHES = "finishes"
    CONTINUES = "continues"  # a sub-agent, or a child of a composite: stops with a checkpoint of its own
    RUNS_AGAIN = "runs_again"  # cut, and a resumed run makes the call again: it is pure or idempotent
    UNDONE = "undone"  # cut, and then its undo runs
    IN_DOUBT = "in_doubt"  # cut, and its effect is unknown
    MAY_NOT_REACT = "may_not_react"  # a thread can only be asked; if it does not react, it is abandoned
    NEVER_STARTS = "never_starts"


class PreviewedCall(Value, frozen=True):
    """One call, or one child of a composite. `kind`: how it is stopped. `remote`: it runs on another server.

    `seconds`: how long its stop may take at most; None for a call that runs to its own end.
    """

    name: str
    call_id: str
    path: str
    effect: Effect
    kind: WorkKind
    fate: Fate
    seconds: float | None = 0.0
    remote: bool = False

    @property
    def label(self) -> str:
        return self.name if self.name == self.call_id else f"{self.name}:{self.call_id}"


_CUT = frozenset({Fate.RUNS_AGAIN, Fate.UNDONE, Fate.IN_DOUBT, Fate.MAY_NOT_REACT})
_MILD = frozenset({Effect.PURE, Effect.IDEMPOTENT})


class Preview(Value, frozen=True):
    """The calls with their fates; calls of runs inside a call follow it.

    `seconds`: how long the stop may take at most; None if it waits for work without a limit.
    `cut`, `finish`, `not_started` and `in_doubt` list calls by fate, each as `name:call_id`.
    """

    calls: tuple[PreviewedCall, ...] = ()
    seconds: float | None = 0.0

    @property
    def cut(self) -> tuple[str, ...]:
        """The calls that would be cut while running."""
        return self._named(lambda call: call.fate in _CUT)

    @property
    def finish(self) -> tuple[str, ...]:
        """The calls that would run to their end first."""
        return self._named(lambda call: call.fate is Fate.FINISHES)

    @property
    def not_started(self) -> tuple[str, ...]:
        """The calls that would never start."""
        return self._named(lambda call: call.fate is Fate.NEVER_STARTS)

    @property
    def in_doubt(self) -> tuple[str, ...]:
        """The calls that would be cut, or may not react, with an unknown effect."""
        doubtful = (Fate.IN_DOUBT, Fate.MAY_NOT_REACT)
        return self._named(lambda call: call.fate in doubtful and call.effect not in _MILD)

    def _named(self, wanted: Callable[[PreviewedCall], bool]) -> tuple[str, ...]:
        return tuple(call.label for call in self.calls if wanted(call))


class CancelQuery(Value, frozen=True):
    """The question to every driver of a tree: what would a cancel `at` that point do if it were made `now`?

    `of_run`: the preview of the run at a node; empty if the cancel does not reach it.
    """

    at: SafePoint
    now: float
    of_run: Callable[[Node], Preview]

    def inside(self, node: Node) -> Preview:
        """The preview of the runs directly below a node."""
        return joined(map(self.of_run, tuple(node.children)))

    @property
    def force(self) -> bool:
        return self.at.level is Level.FORCE


def joined(previews: Iterable[Preview]) -> Preview:
    """The previews of one cancel for several runs side by side."""
    every = tuple(previews)
    return Preview(tuple(call for each in every for call in each.calls), longest(each.seconds for each in every))


def longest(seconds: Iterable[float | None]) -> float | None:
    """The longest time; None, for no limit, if any of them is None."""
    every = tuple(seconds)
    return None if None in every else max((each for each in every if each is not None), default=0.0)


def preview(calls: Sequence[BatchedCall], works: Iterable[Work[object]], query: CancelQuery) -> Preview:
    """The preview of one run. `works`: the work beside its calls, such as a model call or a hook."""
    at, now = query.at, query.now
    if at.level is Level.SAFE:
        waits = joined(_at_safe_point(call, query) for call in calls if call.running or call.queued)
        return Preview(waits.calls, None if any(not work.ended for work in works) else waits.seconds)
    of_works = Preview(seconds=longest(work.stops_within(now, force=query.force) for work in works))
    return joined([of_works, *(_pushed(call, query) for call in calls if call.running or call.queued)])


def _at_safe_point(call: BatchedCall, query: CancelQuery) -> Preview:
    """Work in flight completes; the point decides whether a queued call starts."""
    at, execution = query.at, call.execution
    if execution is not None:
        return Preview((_previewed(call, Fate.FINISHES, None), *query.inside(execution.node).calls), None)
    starts = not at.covers("after_tool") and (call.mild or not at.covers("before_effect"))
    seconds = None if starts else 0.0
    return Preview((_previewed(call, Fate.FINISHES if starts else Fate.NEVER_STARTS, seconds),), seconds)


def _pushed(call: BatchedCall, query: CancelQuery) -> Preview:
    """The preview of one call, and of the runs inside it, for NOW or FORCE."""
    execution = call.execution
    if execution is None:
        return Preview((_previewed(call, Fate.NEVER_STARTS, 0.0),))
    inside = query.inside(execution.node)
    fate = _fate(call, execution, force=query.force)
    seconds = _seconds(execution, inside.seconds or 0.0, query)
    return Preview((_previewed(call, fate, seconds), *inside.calls), seconds)


def _fate(call: BatchedCall, execution: ToolExecution, *, force: bool) -> Fate:
    state = call.entry.state
    if execution.phase is Phase.UNDOING:
        return Fate.IN_DOUBT if force else Fate.UNDONE
    if state is LedgerState.NOT_STARTED:
        return Fate.NEVER_STARTS  # its hooks run, not the tool
    if state is not LedgerState.RUNNING:
        return Fate.FINISHES  # its result is recorded already
    tool, kind = execution.tool, execution.tool.stop_policy.kind
    if kind is WorkKind.CHILD:
        return Fate.CONTINUES
    if plan(tool.stop_policy, call.ladder, force=force)[0].rung is Rung.FINISH:
        return Fate.FINISHES
    if kind is WorkKind.THREAD:
        return Fate.MAY_NOT_REACT
    if execution.has_undo and not force:
        return Fate.UNDONE
    return Fate.RUNS_AGAIN if call.mild else Fate.IN_DOUBT


def _seconds(execution: ToolExecution, inside: float, query: CancelQuery) -> float:
    of_call = execution.stops_within(query.now, force=query.force)
    if execution.tool.stop_policy.kind is WorkKind.CHILD and execution.phase is Phase.WORKING:
        return min(of_call, inside)  # its plan allows the cap, but it needs only as long as the runs inside
    return max(of_call, min(inside, execution.ladder.cap))


def _previewed(call: BatchedCall, fate: Fate, seconds: float | None) -> PreviewedCall:
    kind = call.tool.stop_policy.kind if call.tool is not None else WorkKind.TASK
    entry = call.entry
    return PreviewedCall(entry.name, entry.call_id, call.path, entry.effect, kind, fate, seconds, entry.remote)

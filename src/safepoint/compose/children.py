"""All children of one run of a composite: those that an earlier run has finished, and those that this one runs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from safepoint._core.endings import Touched
from safepoint._core.points import BETWEEN, SafePoint
from safepoint._core.reasons import Reason, Source
from safepoint.agent.checkpoint import Checkpoint
from safepoint.agent.journal import Called, Fact
from safepoint.agent.ledger import LedgerEntry
from safepoint.agent.open_calls import OpenCalls
from safepoint.agent.result import ChildResult, RunResult, StopReason
from safepoint.agent.resume import Resume
from safepoint.agent.run_context import RunContext
from safepoint.compose.child_codec import load_result
from safepoint.compose.child_resume import restore_child
from safepoint.compose.child_run import ChildRun
from safepoint.compose.plan import Child, Progress
from safepoint.history.closing import Draft, quoted
from safepoint.history.states import LedgerState

if TYPE_CHECKING:
    from safepoint.compose.composite import Composite


# Children that run side by side: which of them may start now, which must wait, and which never start.
#
# `advance` is the whole decision, in one plain function: find the children that have ended, check whether the composite
# stands between two children, start the ones that may start. A sequence is a group of one.


class ChildGroup:
    """`limit`: how many run at once. `stop_others`: when one fails, the others are asked to stop at a safe point."""

    def __init__(self, record: RunContext, children: list[ChildRun], limit: int | None, *, stop_others: bool) -> None:
        self.children = children
        self._record = record
        self._limit = limit
        self._stop_others = stop_others
        self._has_failed = False

    def advance(self) -> bool:
        """Advance every child as far as possible; True once none is running."""
        for child in self.children:
            child.harvest()
        self._heed_failure()
        self._look_for_hold()
        for child in self.children:
            if child.queued and self._has_room() and self._may_start():
                child.start()
        return not any(child.running for child in self.children)

    def push(self, *, force: bool) -> None:
        for child in self.children:
            child.push(force=force)

    @property
    def failed(self) -> ChildRun | None:
        for child in self.children:
            if child.failed:
                return child
        return None

    def _heed_failure(self) -> None:
        failed = self.failed if self._stop_others and not self._has_failed else None
        if failed is None:
            return
        self._has_failed = True
        why = Reason(f"the branch {failed.child.key!r} has failed", Source.POLICY)
        for child in self.children:
            if child.run is None:
                child.held_back = True
            elif child.running:
                child.run.node.cancel(SafePoint.ANY, recursive=True, reason=why)

    def _look_for_hold(self) -> None:
        """Whether queued children wait: the composite stands between two of them."""
        record, node = self._record, self._record.node
        moved = any(child.over for child in self.children) and any(child.queued for child in self.children)
        places = record.standing_at(node, BETWEEN) if moved else ()
        record.held_back = places if node.holds_at(*places) else ()

    def _may_start(self) -> bool:
        node = self._record.node
        if self._record.broken is not None or self._has_failed or self._record.held_back:
            return False
        if any(child.over for child in self.children):
            return self._record.check_safe_point(BETWEEN) is None
        return node.check_stop() is None

    def _has_room(self) -> bool:
        return self._limit is None or sum([child.running for child in self.children]) < self._limit


AnyResult = RunResult[Any]  # Any: children have outputs of every type


class Children:
    """Keeps the state of each child, by key."""

    def __init__(self, agent: Composite[Any, Any], record: RunContext, resume: Resume | None) -> None:  # Any: every one
        self._agent = agent
        self._record = record
        self._resume = resume
        # Whether a child has ended in this run: only then does the run stand between two children.
        self.has_moved = False
        self._before: dict[str, AnyResult] = {}
        self._runs: dict[str, ChildRun] = {}
        self._entries = {entry.call_id: entry for entry in resume.checkpoint.ledger} if resume is not None else {}
        for key in (*self._entries, *agent.expected()):
            if key not in record.ledger:
                record.ledger.open(self._reopened(key))

    def _reopened(self, key: str) -> LedgerEntry:
        """A finished child stays finished, with its answer; any other is about to run."""
        entry = self._entries.get(key)
        if entry is None or self._resume is None:
            return LedgerEntry(key, self._agent.member(key).name)
        if entry.state is not LedgerState.FINISHED:
            return LedgerEntry(key, entry.name)
        saved = self._resume.checkpoint.calls[key].memory.saved
        self._before[key] = load_result(self._agent.member(key), saved)
        return entry

    def ended(self) -> dict[str, AnyResult]:
        """The results of all children that have ended, in the order of their start."""
        now = {key: run.result for key, run in self._runs.items() if run.result is not None}
        return {**self._before, **now}

    def run_of(self, child: Child) -> ChildRun:
        """The child, ready to start, or to continue where it was stopped."""
        entry = self._entries.get(child.key)
        restored = restore_child(self._resume, entry) if self._resume is not None and entry is not None else None
        run = self._runs[child.key] = ChildRun(self._record, child, restored)
        return run

    def facts_before(self) -> list[Fact]:
        """The children that an earlier run finished, as facts for the journal."""
        if self._resume is None:
            return []
        calls = self._resume.checkpoint.calls
        return [Called(self._entries[key], calls[key].memory) for key in self._before]

    def calls_made(self) -> Iterator[LedgerEntry]:
        """The tool calls of runs before this one, for a budget that counts them; those still open are made again."""
        for result in self._before.values():
            yield from _calls_of(result)
        for call in self._resume.checkpoint.calls.values() if self._resume is not None else ():
            if call.child is not None:
                yield from _settled_calls(call.child)

    def remains(self, draft: Draft | None) -> OpenCalls:
        """The open state of the children, now that the run no longer waits for any of them."""
        for key, entry in self._entries.items():
            if self._record.ledger[key].state is LedgerState.NOT_STARTED:
                self._record.ledger.put_back(entry)
        opened = dict(self._resume.answered().calls) if self._resume is not None else {}
        path, touched = self._record.node.path, list[Touched]()
        children = [ChildResult(key, f"{path}/{key}", result) for key, result in self._before.items()]
        for key, run in self._runs.items():
            if not run.over:
                run.give_up()
            left = run.left()
            opened[key] = left.open
            touched.append(left.touched)
            if left.result is not None:
                children.append(left.result)
        carried = self._agent.conversation(Progress(tuple(self._record.messages), self.ended()))
        return OpenCalls(
            opened,
            touched=tuple(touched),
            queued=tuple([entry.call_id for entry in self._record.ledger if entry.state is LedgerState.NOT_STARTED]),
            children=tuple(children),
            report=self._sentences(),
            draft=draft or (self._unfinished_words() if carried is None else None),
            messages=carried,
        )

    def _unfinished_words(self) -> Draft | None:
        """The unfinished text of a child that speaks for the composite."""
        for run in self._runs.values():
            result = run.result
            if run.child.speaks and result is not None and result.stop_reason is not StopReason.END_TURN:
                return Draft(result.text)
        return None

    def _sentences(self) -> str:
        """The report on the children for the next model call, if the composite has no answer."""
        by_state: dict[str, list[str]] = {}
        for entry in self._record.ledger:
            by_state.setdefault(_WORDS.get(entry.state, _BEGUN), []).append(_named(entry.call_id))
        return " ".join(
            [f"{what}: {', '.join(by_state[what])}." for what in (_FINISHED, _BEGUN, _NEVER) if what in by_state]
        )


_FINISHED, _BEGUN, _NEVER = "Finished", "Begun, not finished", "Not started"
_WORDS = {LedgerState.FINISHED: _FINISHED, LedgerState.NOT_STARTED: _NEVER}


@lru_cache
def _named(key: str) -> str:
    return quoted(key, 64)


def _calls_of(result: AnyResult) -> Iterator[LedgerEntry]:
    """The ledger of a composite lists its children; the other entries are calls."""
    children = {child.name for child in result.children}
    yield from (entry for entry in result.ledger if entry.call_id not in children)
    for child in result.children:
        yield from _calls_of(child.result)


def _settled_calls(checkpoint: Checkpoint) -> Iterator[LedgerEntry]:
    open_ids = set(checkpoint.calls)
    yield from (entry for entry in checkpoint.ledger if entry.call_id not in open_ids)
    for call in checkpoint.calls.values():
        if call.child is not None:
            yield from _settled_calls(call.child)

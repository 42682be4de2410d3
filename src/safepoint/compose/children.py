"""All children of one run of a composite: those that a run before it has finished, and those that this one runs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from safepoint._core.endings import Touched
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

AnyResult = RunResult[Any]  # Any: children have outputs of every type


class Children:
    """Keeps what became of each child, by key."""

    def __init__(self, agent: Composite[Any, Any], record: RunContext, resume: Resume | None) -> None:  # Any: every one
        self._agent = agent
        self._record = record
        self._resume = resume
        # Whether a child has ended in this very run: only then does the run stand between two children.
        self.has_moved = False
        self._before: dict[str, AnyResult] = {}
        self._runs: dict[str, ChildRun] = {}
        self._entries = {entry.call_id: entry for entry in resume.checkpoint.ledger} if resume is not None else {}
        for key in (*self._entries, *agent.expected()):
            if key not in record.ledger:
                record.ledger.open(self._reopened(key))

    def _reopened(self, key: str) -> LedgerEntry:
        """A finished child stays finished, with its answer; whatever else it was, it is about to run."""
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
        """The child, ready to start, or to go on where it was stopped."""
        entry = self._entries.get(child.key)
        restored = restore_child(self._resume, entry) if self._resume is not None and entry is not None else None
        run = self._runs[child.key] = ChildRun(self._record, child, restored)
        return run

    def facts_before(self) -> list[Fact]:
        """The children that a run before this one has finished, as the journal takes them."""
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
        """What is left of the children, now that nothing waits for any of them."""
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
            if left.told is not None:
                children.append(left.told)
        carried = self._agent.conversation(Progress(tuple(self._record.messages), self.ended()))
        return OpenCalls(
            opened,
            touched=tuple(touched),
            queued=tuple([entry.call_id for entry in self._record.ledger if entry.state is LedgerState.NOT_STARTED]),
            children=tuple(children),
            told=self._sentences(),
            draft=draft or (self._unfinished_words() if carried is None else None),
            messages=carried,
        )

    def _unfinished_words(self) -> Draft | None:
        """What a child had said that speaks for the composite, and did not finish."""
        for run in self._runs.values():
            result = run.result
            if run.child.speaks and result is not None and result.stop_reason is not StopReason.END_TURN:
                return Draft(result.text)
        return None

    def _sentences(self) -> str:
        """What the next model call is told of the children, if the composite has no answer."""
        told: dict[str, list[str]] = {}
        for entry in self._record.ledger:
            told.setdefault(_WORDS.get(entry.state, _BEGUN), []).append(_named(entry.call_id))
        return " ".join([f"{what}: {', '.join(told[what])}." for what in (_FINISHED, _BEGUN, _NEVER) if what in told])


_FINISHED, _BEGUN, _NEVER = "Finished", "Begun, not finished", "Not started"
_WORDS = {LedgerState.FINISHED: _FINISHED, LedgerState.NOT_STARTED: _NEVER}


@lru_cache
def _named(key: str) -> str:
    return quoted(key, 64)


def _calls_of(result: AnyResult) -> Iterator[LedgerEntry]:
    """The ledger of a composite lists its children; only what is no child is a call."""
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

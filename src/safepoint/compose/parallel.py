"""Several agents side by side, on the same prompt; their answers are joined when all have ended."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeAlias, cast, overload

from typing_extensions import TypeVar  # TypeVar defaults; pydantic brings it along

from safepoint._core.ladder import Ladder
from safepoint.agent.base import BaseAgent
from safepoint.agent.budget import Budget
from safepoint.agent.hooks import Hooks
from safepoint.agent.result import OutT, RunResult, StopReason
from safepoint.agent.validation import checked_count, checked_function, listed
from safepoint.compose.composite import Composite, checked_member, keyed, opening, words
from safepoint.compose.plan import Answer, Child, Move, Progress, RunChildren
from safepoint.history.parts import Prompt
from safepoint.tools.context import DepsT

OnFailure: TypeAlias = Literal["stop", "finish"]
_BranchT = TypeVar("_BranchT", default=str, covariant=True)
_MadeT = TypeVar("_MadeT", default=str)
_ForT = TypeVar("_ForT", default=None)  # the class's own DepsT may not stand in the type of its `self`


@dataclass(frozen=True, slots=True)
class Branch(Generic[DepsT, _BranchT]):
    """A branch with a name of its own, or with an input made of the composite's prompt."""

    agent: BaseAgent[DepsT, _BranchT]
    name: str | None = None
    input: Callable[[str], Prompt] | None = None


_Branches: TypeAlias = Sequence[BaseAgent[_ForT, _BranchT] | Branch[_ForT, _BranchT]]


class Parallel(Composite[DepsT, OutT]):
    """`Parallel("search", [web, papers], join=lambda found: …)`; every branch gets the prompt.

    `join` makes the output from all results by name, including those of branches that were stopped alone. Without it
    the output is a dict of the answers, by name, of the branches that gave one. `limit`: how many run at once.
    `on_failure`: when one fails, the others "stop" at a safe point or "finish"; either way the run has failed. A
    message that is added to the run goes to every branch. The place before a branch that has to wait is a safe point
    for every `at`.
    """

    example = "Parallel('search', [web, papers])"
    tells_all = True
    goes_on_without = True

    @overload
    def __init__(
        self: Parallel[_ForT, dict[str, _BranchT]],
        name: str,
        branches: _Branches[_ForT, _BranchT],
        *,
        join: None = None,
        limit: int | None = None,
        on_failure: OnFailure = "stop",
        budget: Budget | None = None,
        hooks: Sequence[Hooks] = (),
        ladder: Ladder | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self: Parallel[_ForT, _MadeT],
        name: str,
        branches: _Branches[_ForT, _BranchT],
        *,
        join: Callable[[Mapping[str, RunResult[_BranchT]]], _MadeT],
        limit: int | None = None,
        on_failure: OnFailure = "stop",
        budget: Budget | None = None,
        hooks: Sequence[Hooks] = (),
        ladder: Ladder | None = None,
    ) -> None: ...

    def __init__(
        self,
        name: str,
        branches: Sequence[Any],
        *,
        join: Callable[[Any], Any] | None = None,
        limit: int | None = None,
        on_failure: OnFailure = "stop",
        budget: Budget | None = None,
        hooks: Sequence[Hooks] = (),
        ladder: Ladder | None = None,
    ) -> None:  # Any: the overloads say which
        every: list[Branch[Any, Any]] = [
            each if isinstance(each, Branch) else Branch(checked_member(each)) for each in listed("branches", branches)
        ]
        if not every:
            raise ValueError(f"Parallel({name!r}, []): write at least one branch")
        if on_failure not in ("stop", "finish"):
            raise ValueError(f"on_failure={on_failure!r}: write 'stop' or 'finish'")
        for each in every:
            checked_function("input", each.input)
        keys = keyed(each.name or checked_member(each.agent).name for each in every)
        self._branches: dict[str, Branch[Any, Any]] = dict(zip(keys, every, strict=True))
        self._join = checked_function("join", join)
        self._limit = None if limit is None else checked_count("limit", limit, least=1)
        self._on_failure = on_failure
        super().__init__(name, budget=budget, hooks=hooks, ladder=ladder)

    def members(self) -> Iterable[BaseAgent[Any, Any]]:  # Any: branches of every type
        return [branch.agent for branch in self._branches.values()]

    def member(self, key: str) -> BaseAgent[Any, Any]:
        return self._branches[key].agent

    def expected(self) -> tuple[str, ...]:
        return tuple(self._branches)

    def plan(self, progress: Progress) -> Move:
        waiting = tuple(
            Child(key, branch.agent, opening(progress, branch.input))
            for key, branch in self._branches.items()
            if key not in progress.ended
        )
        if waiting:
            return RunChildren(waiting, self._limit, stop_others=self._on_failure == "stop")
        results = {key: progress.ended[key] for key in self._branches}
        answers = {key: each.output for key, each in results.items() if each.stop_reason is StopReason.END_TURN}
        if self._join is not None:
            made = self._join(results)
            return Answer(words(made), made)
        text = "\n\n".join(f"{key}:\n{results[key].text}" for key in answers)
        return Answer(words(text), cast("OutT", answers))
